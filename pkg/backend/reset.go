package backend

import (
	"context"
	"errors"
)

// Resetter is a Store that can forget a bucket.
type Resetter interface {
	// Reset makes the bucket of charge as one never seen: charge's Key, Slot, Limit and Shards say
	// which. An error wraps ErrUnavailable; whether the bucket was forgotten is not known then.
	Reset(ctx context.Context, charge Charge) error
}

// ErrNoReset: the Store is no Resetter.
var ErrNoReset = errors.New("the backend cannot forget a bucket")

// Reset has store forget the bucket of charge.
func Reset(ctx context.Context, store Taker, charge Charge) error {
	r, ok := store.(Resetter)
	if !ok {
		return ErrNoReset
	}
	return r.Reset(ctx, charge)
}

// ResetBucket makes the bucket of charge one never seen. An error wraps ErrUnavailable; whether the bucket was
// reset is not known then.
func ResetBucket(ctx context.Context, s Store, charge Charge) error {
	charge.Reset, charge.Once = true, nil
	var d [1]Decision
	Take(ctx, s, []Charge{charge}, d[:])
	return d[0].Err
}
