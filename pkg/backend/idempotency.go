package backend

import "github.com/rlsidecar/rlsidecar/pkg/algorithms"

// IdempotencyKey identifies a group of charges that may be submitted again.
//
// The Store keeps the decisions of the group, in the same step in which it charges the group, and answers a
// repeated group with them. So a caller that got no answer can repeat the group. Decisions of groups that
// consumed nothing are not kept: a repeated denial is decided again.
//
// A settlement (algorithms.Charge.Settle) of several buckets should be one group per bucket, each with its
// own ID. The groups need not be charged together, because limits that settle allow every settlement. A group of
// one bucket is on one node, where the Store keeps the decision in the same step. So a settlement whose answer
// was lost can be repeated, and takes effect once. If the settlement were one group over several nodes, a lost
// answer would leave its outcome unknown (ErrPending).
//
// Each kept decision counts like a bucket towards the bounds of the Store.
type IdempotencyKey struct {
	// ID is unique for the group.
	ID [16]byte
	// Digest is a digest of the group's content. If the ID was used with another digest, the error is ErrReused. A
	// Store of several nodes can miss this if the buckets of the other group are on another node.
	Digest [32]byte
	// Lifetime is how long the decisions are kept.
	Lifetime algorithms.Micros
}

// ConsumedAny is for Stores. It reports whether a decided group may have consumed units: it is not a dry run,
// and it is allowed or one of its limits charges denied requests. If so, the Store must keep its decisions.
func ConsumedAny(charges []Charge, decisions []Decision) bool {
	takes, refunds := false, false
	for i := range charges {
		c := &charges[i]
		if decisions[i].Err != nil || c.Terms.DryRun {
			return false
		}
		takes, refunds = takes || c.ChargesDenied(), refunds || c.Refunds()
	}
	return takes && !refunds || Allowed(charges, decisions)
}
