package backend

import (
	"context"
	"fmt"
	"sync"
)

// Divided is buckets in two Stores: those that second says in Second, the others in First. Which of
// the two must follow from the bucket alone. A group with buckets in both is taken by its parts
// (TakeParts). For such a group to be taken once (Charge.Once) first must be a Claimer; else it is
// ErrUnavailable.
func Divided(first, second Taker, isSecond func(*Charge) bool, background *Background) Taker {
	return &divided{[2]Taker{first, second}, isSecond, background}
}

// Claimer is a Store that keeps claims.
type Claimer interface {
	// TakeClaimed takes a group once that cannot be taken and remembered in one step: its ID is claimed
	// first, then take takes the group. Where nobody can tell what came of that the claim stays, and who
	// asks again is told ErrPending: it is taken once at the most.
	TakeClaimed(ctx context.Context, charges []Charge, decisions []Decision, take TakeFunc)
}

// TakeFunc is the Take of a Store.
type TakeFunc func(ctx context.Context, charges []Charge, decisions []Decision)

type divided struct {
	stores     [2]Taker
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
	take := func(ctx context.Context, charges []Charge, decisions []Decision) {
		TakeParts(ctx, s.parts(charges), decisions, s.background)
	}
	if charges[0].Once == nil {
		take(ctx, charges, decisions)
		return
	}
	claimer, ok := s.stores[0].(Claimer)
	if !ok { // neither of them could remember the whole answer
		failAll(decisions, fmt.Errorf("%w: what has an id cannot be taken of limits in two places", ErrUnavailable))
		return
	}
	claimer.TakeClaimed(ctx, charges, decisions, take)
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
