package backend

import (
	"context"
	"fmt"
	"sync"
)

// Divided is buckets in two Stores: those that second says in Second, the others in First. Which of
// the two must follow from the bucket alone. A group with buckets in both is taken by its parts
// (TakeParts); it cannot be taken once (Charge.Once), which is ErrUnavailable.
func Divided(first, second Store, isSecond func(*Charge) bool, background *Background) Store {
	return &divided{[2]Store{first, second}, isSecond, background}
}

type divided struct {
	stores     [2]Store
	isSecond   func(*Charge) bool
	background *Background
}

// both is the place of groups with buckets in both Stores.
const both = 2

// placeOf is where all of charges are: 0, 1 or both.
func (s *divided) placeOf(charges []Charge) int {
	place := s.place(&charges[0])
	for i := range charges[1:] {
		if s.place(&charges[1+i]) != place {
			return both
		}
	}
	return place
}

func (s *divided) place(c *Charge) int {
	if s.isSecond(c) {
		return 1
	}
	return 0
}

// Take implements Store.
func (s *divided) Take(ctx context.Context, charges []Charge, decisions []Decision) {
	if place := s.placeOf(charges); place != both {
		s.stores[place].Take(ctx, charges, decisions)
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	var whole [2]Part // the groups that are in one Store
	for at := 0; at < len(charges); {
		end := at + GroupLen(charges[at:])
		group, answers := charges[at:end], decisions[at:end]
		if place := s.placeOf(group); place != both {
			for i := range group {
				whole[place].Add(at+i, group[i])
			}
		} else {
			wg.Go(func() { s.takeBoth(ctx, group, answers) })
		}
		at = end
	}
	for place := range whole {
		p := &whole[place]
		if len(p.Charges) == 0 {
			continue
		}
		wg.Go(func() {
			answers := make([]Decision, len(p.Charges))
			s.stores[place].Take(ctx, p.Charges, answers)
			for n, i := range p.Of {
				decisions[i] = answers[n]
			}
		})
	}
}

// takeBoth takes a group with buckets in both Stores.
func (s *divided) takeBoth(ctx context.Context, charges []Charge, decisions []Decision) {
	if charges[0].Once != nil { // neither of them could remember the whole answer
		failAll(decisions, fmt.Errorf("%w: what has an id cannot be taken of limits in two places", ErrUnavailable))
		return
	}
	TakeParts(ctx, s.parts(charges), decisions, s.background)
}

// parts splits a group.
func (s *divided) parts(charges []Charge) []*Part {
	parts := []*Part{{Take: s.stores[0].Take}, {Take: s.stores[1].Take}}
	for i := range charges {
		parts[s.place(&charges[i])].Add(i, charges[i])
	}
	return parts
}

// Reset implements Resetter where the Stores do.
func (s *divided) Reset(ctx context.Context, charge Charge) error {
	return Reset(ctx, s.stores[s.place(&charge)], charge)
}
