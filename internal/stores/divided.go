package stores

import "github.com/rlsidecar/rlsidecar/pkg/backend"

// Divided returns a Store that consists of two Stores. A bucket is in second if isSecond returns true for it,
// and otherwise in first. isSecond must depend on the bucket only. A group with buckets in both Stores is
// charged in parts (see Parts). If such a group has an idempotency key, first claims the key.
func Divided(first Claimer, second backend.Store, isSecond func(*backend.Charge) bool, undos *Undos) backend.Store {
	place := func(_ int, c *backend.Charge) int {
		if isSecond(c) {
			return 1
		}
		return 0
	}
	const both, onceInBoth = 2, 3
	routes := [4]Route{{first}, {second}}
	router := NewRouter(func(group []backend.Charge) *Route {
		in := place(0, &group[0])
		for i := range group[1:] {
			if place(0, &group[1+i]) == in {
				continue
			}
			if group[0].IdempotencyKey != nil {
				return &routes[onceInBoth]
			}
			return &routes[both]
		}
		return &routes[in]
	}, nil)
	routes[both].Store = Parts(router, place, undos)
	routes[onceInBoth].Store = first.Claimed(routes[both].Store, undos)
	return router
}

// Claimer is a Store that can keep claims of idempotency keys.
type Claimer interface {
	backend.Store
	// Claimed returns a Store for groups with idempotency keys that cannot be charged and stored in one step. That
	// Store first claims the ID, and then charges the group with the Store next. If the outcome is unknown, the
	// claim stays, and a repeated group gets ErrPending. So the group is charged at most once. undos are those of next.
	Claimed(next backend.Store, undos *Undos) backend.Store
}
