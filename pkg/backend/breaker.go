package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Breaker stops asking a Store that fails: after five failures in a row, or when half of at least
// twenty Takes within a second failed, Takes are answered ErrUnavailable at once; every 200 ms one
// of them is let through, and if it is answered all are again. changed is told when it opens (true)
// and closes; it may be nil.
func Breaker(next Store, changed func(open bool)) Store {
	return &breaker{next, gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1,
		Interval:    time.Second,
		Timeout:     200 * time.Millisecond,
		ReadyToTrip: func(n gobreaker.Counts) bool {
			return n.ConsecutiveFailures >= 5 || n.Requests >= 20 && 2*n.TotalFailures >= n.Requests
		},
		OnStateChange: func(_ string, from, to gobreaker.State) {
			// Half open is still open to those who ask; only what they all see is told.
			if open := to == gobreaker.StateOpen; changed != nil && (open && from == gobreaker.StateClosed || to == gobreaker.StateClosed) {
				changed(open)
			}
		},
	})}
}

type breaker struct {
	next    Store
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]
}

// Take implements Store.
func (b *breaker) Take(ctx context.Context, charges []Charge, decisions []Decision) {
	done, err := b.circuit.Allow()
	if err != nil {
		failAll(decisions, fmt.Errorf("%w: not asked while it fails", ErrNotTaken))
		return
	}
	b.next.Take(ctx, charges, decisions)
	for i := range decisions {
		if errors.Is(decisions[i].Err, ErrUnavailable) {
			done(decisions[i].Err)
			return
		}
	}
	done(nil)
}
