package backend

import "context"

// ResetBucket makes the bucket of charge a new one. An error wraps ErrUnavailable; the bucket may or may
// not have been reset then.
func ResetBucket(ctx context.Context, s Store, charge Charge) error {
	charge.Reset, charge.IdempotencyKey = true, nil
	var d [1]Decision
	Take(ctx, s, []Charge{charge}, d[:])
	return d[0].Err
}
