package backend_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// part makes a Part of charges that store decides.
func part(store backend.Taker, first int, charges ...backend.Charge) *backend.Part {
	p := &backend.Part{Take: store.Take}
	for i, c := range charges {
		p.Add(first+i, c)
	}
	return p
}

// slowUndo delays refunds, as a busy network does.
func slowUndo(next backend.Taker, by time.Duration) backend.Taker {
	return storeFunc(func(ctx context.Context, charges []backend.Charge, decisions []backend.Decision) {
		if charges[0].Ask.Cost < 0 {
			time.Sleep(by)
		}
		next.Take(ctx, charges, decisions)
	})
}

// TestUndoOfAWindowThatIsOver: an undo that arrives when the next window has begun, and has been charged,
// gives nothing back there. One that arrives in time gives back what was charged.
func TestUndoOfAWindowThatIsOver(t *testing.T) {
	for late, want := range map[time.Duration]int64{700 * ms: 2, 100 * ms: 5} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				background := backend.NewBackground(time.Minute)
				defer background.Close()
				time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1500 * ms))) // the middle of a window
				store := memory.New(memory.Config{Clock: wall})
				five := fixed(t, 5, algorithms.Second)
				a, b := of(five, "a", 4), of(five, "b", 6)
				decisions := make([]backend.Decision, 2)
				backend.TakeParts(t.Context(), []*backend.Part{part(slowUndo(store, late), 0, a), part(store, 1, b)}, decisions, background)
				if decisions[0].Err != nil || !decisions[0].Allowed || decisions[1].Allowed || decisions[0].Remaining != 5 {
					t.Fatalf("%+v", decisions)
				}
				if late < 500*ms {
					time.Sleep(200 * ms)
				} else {
					time.Sleep(600 * ms)
					if d := take(t.Context(), store, of(five, "a", 3))[0]; !d.Allowed {
						t.Fatalf("the next window: %+v", d)
					}
					time.Sleep(200 * ms)
				}
				synctest.Wait()
				if n := left(t, store, a); n != want {
					t.Errorf("%d left of 5, want %d", n, want)
				}
			})
		})
	}
}

// TestPartsThatDenialsPayFor: where another part denies, a limit with overdraw keeps what it charged, as in
// one step, and the limits beside it get theirs back.
func TestPartsThatDenialsPayFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		background := backend.NewBackground(time.Minute)
		defer background.Close()
		store := memory.New(memory.Config{Clock: wall})
		day := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Day}
		plain := compile(t, day)
		day.Overdraw = true
		overdraw := compile(t, day)
		paid, refunded, denies := of(overdraw, "paid", 3), of(plain, "refunded", 4), of(plain, "denies", 11)
		decisions := make([]backend.Decision, 3)
		backend.TakeParts(t.Context(), []*backend.Part{part(store, 0, paid, refunded), part(store, 2, denies)}, decisions, background)
		synctest.Wait()
		if decisions[0].Remaining != 7 || decisions[1].Remaining != 10 || decisions[2].Allowed {
			t.Errorf("told %+v", decisions)
		}
		if a, b, c := left(t, store, paid), left(t, store, refunded), left(t, store, denies); a != 7 || b != 10 || c != 10 {
			t.Errorf("%d, %d and %d left, want 7, 10 and 10", a, b, c)
		}
	})
}

// TestPartsThatCannotBeDecided: a group of which no part may have been charged is ErrNotTaken. Where one part
// gave no answer, or a refund was made, which cannot be undone for sure, it is not.
func TestPartsThatCannotBeDecided(t *testing.T) {
	failing := func(err error) backend.Taker {
		return storeFunc(func(_ context.Context, _ []backend.Charge, decisions []backend.Decision) {
			for i := range decisions {
				decisions[i] = backend.Decision{Err: err}
			}
		})
	}
	unsent, unknown := failing(fmt.Errorf("%w: not sent", backend.ErrNotTaken)), failing(fmt.Errorf("%w: no answer", backend.ErrUnavailable))
	charge := func(key string, cost int64) backend.Charge { return of(tokens(t, 10, algorithms.Day, 10), key, cost) }
	for name, c := range map[string]struct {
		parts    func(well backend.Taker) []*backend.Part
		notTaken bool
	}{
		"one was not sent": {func(well backend.Taker) []*backend.Part {
			return []*backend.Part{part(well, 0, charge("a", 1)), part(unsent, 1, charge("b", 1))}
		}, true},
		"none was sent": {func(backend.Taker) []*backend.Part {
			return []*backend.Part{part(unsent, 0, charge("a", 1)), part(unsent, 1, charge("b", 1))}
		}, true},
		"no answer, and one not sent": {func(backend.Taker) []*backend.Part {
			return []*backend.Part{part(unknown, 0, charge("a", 1)), part(unsent, 1, charge("b", 1))}
		}, false},
		"one not sent, and no answer": {func(backend.Taker) []*backend.Part {
			return []*backend.Part{part(unsent, 0, charge("a", 1)), part(unknown, 1, charge("b", 1))}
		}, false},
		"a refund, and one not sent": {func(well backend.Taker) []*backend.Part {
			return []*backend.Part{part(well, 0, charge("a", -1)), part(unsent, 1, charge("b", -1))}
		}, false},
		"a refund that waited for others": {func(well backend.Taker) []*backend.Part {
			return []*backend.Part{part(well, 0, charge("a", -1)), part(unsent, 1, charge("b", 1))}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			background := backend.NewBackground(time.Minute)
			defer background.Close()
			decisions := make([]backend.Decision, 2)
			backend.TakeParts(t.Context(), c.parts(memory.New(memory.Config{})), decisions, background)
			for i, d := range decisions {
				if !errors.Is(d.Err, backend.ErrUnavailable) || errors.Is(d.Err, backend.ErrNotTaken) != c.notTaken {
					t.Errorf("charge %d: %v", i, d.Err)
				}
			}
		})
	}
}
