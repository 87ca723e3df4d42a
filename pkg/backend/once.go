package backend

import "github.com/rlsidecar/rlsidecar/pkg/algorithms"

// IdempotencyKey identifies a group that may be repeated. The Store keeps the decisions of the group, in the same step
// in which it charges it, and answers a repeated group with them. So a caller that got no answer can repeat the group.
// Groups that consumed nothing are not kept: a repeated denial is decided again.
//
// A settlement (algorithms.Charge.Settle) of several buckets should be a group of its own for each bucket, with its own
// ID. Limits that settle always allow it, so nothing is lost by not charging them together. Then the Store keeps each
// decision in the step that changes the bucket, on any number of nodes: a settlement whose answer was lost can be
// repeated, and is made once. It cannot refund what was never charged, because a bucket that does not contain the
// charge refunds nothing. In one group over several nodes, a lost answer would leave the outcome unknown (ErrPending).
//
// Each kept group needs the room of a bucket.
type IdempotencyKey struct {
	// ID is unique for the group.
	ID [16]byte
	// Digest is a digest of the group. If the ID was used with another digest, the error is ErrReused. A Store of
	// several nodes may not detect this if the buckets of the other group are on another node.
	Digest [32]byte
	// Lifetime is how long the decisions are kept.
	Lifetime algorithms.Micros
}

// ConsumedAny reports whether a decided group consumed anything, so that its decisions must be kept.
func ConsumedAny(charges []Charge, decisions []Decision) bool {
	for i := range charges {
		d := &decisions[i]
		if d.Err != nil || charges[i].Terms.DryRun {
			return false
		}
		if charges[i].Limit.ChargesDenied() && charges[i].Terms.Cost > 0 {
			return true
		}
	}
	return Allowed(charges, decisions)
}
