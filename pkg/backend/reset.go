package backend

import "context"

// ResetBucket makes the bucket of charge one never seen. An error wraps ErrUnavailable; whether the bucket was
// reset is not known then.
func ResetBucket(ctx context.Context, s Store, charge Charge) error {
	charge.Reset, charge.Once = true, nil
	var d [1]Decision
	Take(ctx, s, []Charge{charge}, d[:])
	return d[0].Err
}
