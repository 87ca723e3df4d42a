package backend

import "github.com/rlsidecar/rlsidecar/pkg/algorithms"

// Once has a group's idempotency key. The Store keeps the decisions of the group, in the same step in which it
// charges it, and answers a repeated group with them. So a caller that got no answer can repeat the group. Groups
// that consumed nothing are not kept: a repeated denial is decided again.
//
// A settlement (algorithms.Ask.Settle) of several buckets should be a group of its own for each bucket, with an ID of its
// own. Limits that settle always allow it, so nothing is lost by not charging them together. Then the Store keeps each
// decision in the step that changes the bucket, on any number of nodes: a settlement whose answer was lost can be
// repeated, and is made once. It cannot refund what was never charged, because a bucket that does not contain the
// charge refunds nothing. In one group over several nodes, a lost answer would leave the outcome unknown (ErrPending).
//
// Each kept group needs the room of a bucket.
type Once struct {
	// ID is the idempotency key.
	ID [16]byte
	// Of is a digest of the group. If the ID was used with another digest, the error is ErrReused. A Store of
	// several nodes may not detect this if the buckets of the other group are on another node.
	Of [32]byte
	// For is how long the decisions are kept.
	For algorithms.Micros
}

// Took reports whether a decided group consumed anything, so that its decisions must be kept.
func Took(charges []Charge, decisions []Decision) bool {
	all := true
	for i := range charges {
		d := &decisions[i]
		if d.Err != nil || charges[i].Ask.Look {
			return false
		}
		if charges[i].Limit.ChargesDenied() && charges[i].Ask.Cost > 0 {
			return true
		}
		all = all && d.Allowed
	}
	return all
}
