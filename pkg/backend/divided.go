package backend

import "fmt"

// Divided is buckets in two Stores: those that isSecond chooses in second, the others in first. Which of
// the two must follow from the bucket alone. A group with buckets in both is taken by its parts (Parts). For such a
// group to be taken once (Charge.Once) first must be a Claimer; else it is ErrUnavailable.
func Divided(first, second Store, isSecond func(*Charge) bool, undos *Undos) Store {
	place := func(_ int, c *Charge) int {
		if isSecond(c) {
			return 1
		}
		return 0
	}
	const both, onceInBoth = 2, 3
	routes := [4]Route{{first}, {second}}
	router := NewRouter(func(group []Charge) *Route {
		in := place(0, &group[0])
		for i := range group[1:] {
			if place(0, &group[1+i]) == in {
				continue
			}
			if group[0].Once != nil {
				return &routes[onceInBoth]
			}
			return &routes[both]
		}
		return &routes[in]
	}, nil)
	routes[both].Store = Parts(router, place, undos)
	routes[onceInBoth].Store = unclaimed{}
	if claimer, ok := first.(Claimer); ok {
		routes[onceInBoth].Store = claimer.Claimed(routes[both].Store)
	}
	return router
}

// Claimer is a Store that keeps claims.
type Claimer interface {
	// Claimed makes a Store of groups that are taken once but cannot be taken and remembered in one step: their ID is
	// claimed first, then next takes the group. Where the outcome of that is not known the claim stays, and
	// another attempt is answered ErrPending: the group is taken once at the most.
	Claimed(next Store) Store
}

// unclaimed refuses groups that no Store could remember as a whole.
type unclaimed struct{}

// Submit implements Store.
func (unclaimed) Submit(b *Batch) {
	b.Fail(fmt.Errorf("%w: a request with an id cannot be taken of limits in two places", ErrNotTaken))
}
