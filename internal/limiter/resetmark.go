package limiter

import (
	"context"
	"slices"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A reset forgives what was consumed. So a reservation from before the reset must not be refunded: the units would be
// available twice. A bucket of a limit with settle notices that by its peaks (package algorithms). The bucket of another
// limit consists of two numbers, and after new charges it looks as if it had never been reset.
//
// So a reset leaves a mark: a bucket of resetMark, which the reset empties. It fills at a known rate,
// so what it holds is the time since the reset. A settlement that refunds first reads the mark. Only
// applications settle limits without settle, so the settlements of proxies need not wait for it.

// resetMarkLife is how long a mark is kept. A reservation that is older refunds nothing.
const resetMarkLife = algorithms.Day

var resetMark = func() *algorithms.Limit {
	l, err := algorithms.Compile(algorithms.Spec{
		Kind: algorithms.TokenBucket, Rate: 1, Period: resetMarkLife, MaxReserved: new(int64), Overdraw: true, // a charge empties the bucket, whatever it holds
	})
	if err != nil {
		panic(err)
	}
	return &l
}()

// resetMarkOf returns a charge of the mark of c's bucket. No bucket has its key, because a key has a length that
// follows from its start.
func resetMarkOf(c *backend.Charge) backend.Charge {
	return backend.Charge{Key: append(slices.Clone(c.Key), 'r'), Limit: resetMark, Owner: c.Owner, Slot: c.Slot}
}

func needsResetMark(l *algorithms.Limit) bool { return l.CanReserve() && !l.Settles }

// markReset leaves the mark of a reset of c's bucket. A bucket of a limit with settle gets one too, because a reload may
// remove settle before a reservation is settled.
func (l *Limiter) markReset(ctx context.Context, c *backend.Charge) error {
	if l.config.IDs == nil || !c.Limit.CanReserve() {
		return nil
	}
	mark := resetMarkOf(c)
	mark.Terms.Cost = 1
	var d [1]backend.Decision
	backend.Take(ctx, l.config.store, []backend.Charge{mark}, d[:])
	return d[0].Err
}

// dropRefunds makes the refunds of c, a settlement, refunds of 0 if their buckets were reset after the reservation. It
// returns the error of the store if that is unknown.
func (l *Limiter) dropRefunds(ctx context.Context, c *Call) error {
	var marks []backend.Charge
	var refunds []*algorithms.Charge
	for i := range c.charges {
		if terms := &c.charges[i].Terms; terms.Cost < 0 && needsResetMark(c.charges[i].Limit) {
			mark := resetMarkOf(&c.charges[i])
			mark.Terms.DryRun, mark.Group = true, len(marks)
			marks, refunds = append(marks, mark), append(refunds, terms)
		}
	}
	if len(marks) == 0 {
		return nil
	}
	decisions := make([]backend.Decision, len(marks))
	backend.Take(ctx, l.config.store, marks, decisions)
	for i := range decisions {
		d, terms := &decisions[i], refunds[i]
		if d.Err != nil {
			return d.Err
		}
		if since := min(algorithms.Micros(d.Value), resetMarkLife); d.At-since >= terms.ChargedAt {
			terms.Cost = 0
		}
	}
	return nil
}
