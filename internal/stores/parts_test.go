package stores_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

type submitFunc func(b *backend.Batch)

func (f submitFunc) Submit(b *backend.Batch) { f(b) }

func slowUndo(next backend.Store, delay time.Duration) backend.Store {
	return submitFunc(func(b *backend.Batch) {
		if b.Charges[0].Terms.Cost >= 0 {
			next.Submit(b)
			return
		}
		time.AfterFunc(delay, func() { next.Submit(b) })
	})
}

type testPart struct {
	store   backend.Store
	charges []backend.Charge
}

func part(store backend.Store, charges ...backend.Charge) testPart { return testPart{store, charges} }

func chargeInParts(t *testing.T, undos *stores.Undos, parts ...testPart) []backend.Decision {
	t.Helper()
	routes, where := make([]stores.Route, len(parts)), map[string]int{}
	var group []backend.Charge
	for i, p := range parts {
		routes[i].Store = p.store
		for _, c := range p.charges {
			where[string(c.Key)] = i
			group = append(group, c)
		}
	}
	router := stores.NewRouter(func(group []backend.Charge) *stores.Route { return &routes[where[string(group[0].Key)]] }, nil)
	store := stores.Parts(router, func(_ int, c *backend.Charge) int { return where[string(c.Key)] }, undos)
	decisions := make([]backend.Decision, len(group))
	backend.Take(t.Context(), store, group, decisions)
	return decisions
}

// An undo that arrives in a later window refunds nothing, even if that window has charges of its own. An undo in the
// window of the charge refunds the charge.
func TestUndoOfAWindowThatIsOver(t *testing.T) {
	for late, want := range map[time.Duration]int64{700 * ms: 2, 100 * ms: 5} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				undos := stores.NewUndos(nil, time.Minute)
				defer undos.Close()
				time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(1500 * ms))) // the middle of a window
				store := memory.New(memory.Config{Clock: storetest.Times(wall)})
				five := fixed(t, 5, algorithms.Second)
				a, b := of(five, "a", 4), of(five, "b", 6)
				decisions := chargeInParts(t, undos, part(slowUndo(store, late), a), part(store, b))
				if decisions[0].Err != nil || !decisions[0].Allowed || decisions[1].Allowed || decisions[0].Remaining != 5 {
					t.Fatalf("got %+v; want no error, allowed, denied and 5 remaining", decisions)
				}
				if late < 500*ms {
					time.Sleep(200 * ms)
				} else {
					time.Sleep(600 * ms)
					if d := take(t.Context(), store, of(five, "a", 3))[0]; !d.Allowed {
						t.Fatalf("the next window: %+v; want allowed", d)
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

// A group over two servers is decided in parts. What a limit with overdraw consumed although another part denied has a
// retry time. Nothing stays consumed if the group contains a refund, in whatever part, or if the units were reserved.
func TestWhatADeniedPartOfAGroupChanges(t *testing.T) {
	overdraw := compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Day, Overdraw: true, MaxReserved: new(int64(50))})
	other := compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Day})
	reserved := of(overdraw, "overdraw", 6)
	reserved.Terms.Reserve = true
	for name, test := range map[string]struct {
		first, second []backend.Charge
		left          int64 // units of the limit with overdraw, of 10
		retry         algorithms.Micros
	}{
		"charged":            {[]backend.Charge{of(overdraw, "overdraw", 6)}, []backend.Charge{of(other, "denies", 11)}, 4, algorithms.Day / 5},
		"reserved":           {[]backend.Charge{reserved}, []backend.Charge{of(other, "denies", 11)}, 10, 0},
		"beside a refund":    {[]backend.Charge{of(overdraw, "overdraw", 6), of(other, "refund", -1)}, []backend.Charge{of(other, "denies", 11)}, 10, 0},
		"a refund elsewhere": {[]backend.Charge{of(overdraw, "overdraw", 6)}, []backend.Charge{of(other, "denies", 11), of(other, "refund", -1)}, 10, 0},
		"it denies":          {[]backend.Charge{of(overdraw, "overdraw", 13)}, []backend.Charge{of(other, "allows", 1)}, 0, 13 * algorithms.Day / 10},
		"it denies a refund": {[]backend.Charge{of(overdraw, "overdraw", 13)}, []backend.Charge{of(other, "refund", -1)}, 10, 0},
		"its refund":         {[]backend.Charge{of(overdraw, "overdraw", -6)}, []backend.Charge{of(other, "denies", 11)}, 10, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				undos := stores.NewUndos(nil, time.Minute)
				defer undos.Close()
				store := memory.New(memory.Config{Clock: storetest.Times(wall)})
				decisions := chargeInParts(t, undos, part(store, test.first...), part(store, test.second...))
				synctest.Wait()
				if d := decisions[0]; d.RetryAfter != test.retry {
					t.Errorf("got %+v, want retry after %d", d, test.retry)
				}
				if n := left(t, store, of(overdraw, "overdraw", 1)); n != test.left {
					t.Errorf("%d left, want %d", n, test.left)
				}
			})
		})
	}
}

// The error of a group is ErrNotTaken if no units stay consumed: each part was not sent, or was charged and is
// undone. The error is only ErrUnavailable if a part gave no answer, or if a refund was made, which cannot be undone
// reliably.
func TestPartsThatCannotBeDecided(t *testing.T) {
	failing := func(err error) backend.Store { return submitFunc(func(b *backend.Batch) { b.Fail(err) }) }
	unsent, unknown := failing(fmt.Errorf("%w: not sent", backend.ErrNotTaken)), failing(fmt.Errorf("%w: no answer: %w", backend.ErrUnavailable, context.DeadlineExceeded))
	charge := func(key string, cost int64) backend.Charge { return of(tokens(t, 10, algorithms.Day, 10), key, cost) }
	well := memory.New(memory.Config{})
	for name, c := range map[string]struct {
		a, b     testPart
		notTaken bool
	}{
		"one was not sent":                {part(well, charge("a", 1)), part(unsent, charge("b", 1)), true},
		"none was sent":                   {part(unsent, charge("a", 1)), part(unsent, charge("b", 1)), true},
		"no answer, and one not sent":     {part(unknown, charge("a", 1)), part(unsent, charge("b", 1)), false},
		"one not sent, and no answer":     {part(unsent, charge("a", 1)), part(unknown, charge("b", 1)), false},
		"a refund, and one not sent":      {part(well, charge("a", -1)), part(unsent, charge("b", -1)), false},
		"a refund, and no answer":         {part(well, charge("a", -1)), part(unknown, charge("b", -1)), false},
		"a refund that waited for others": {part(well, charge("a", -1)), part(unsent, charge("b", 1)), true},
	} {
		t.Run(name, func(t *testing.T) {
			undos := stores.NewUndos(nil, time.Minute)
			defer undos.Close()
			for i, d := range chargeInParts(t, undos, c.a, c.b) {
				if !errors.Is(d.Err, backend.ErrUnavailable) || errors.Is(d.Err, backend.ErrNotTaken) != c.notTaken || errors.Is(d.Err, context.DeadlineExceeded) != strings.Contains(name, "no answer") {
					t.Errorf("charge %d: %v; want an ErrUnavailable, which is an ErrNotTaken: %v, and the error of a part without an answer", i, d.Err, c.notTaken)
				}
			}
		})
	}
}

func TestPartsInEveryOrder(t *testing.T) {
	answers := [4]backend.Decision{
		{Decision: algorithms.Decision{Allowed: true}, At: 7}, {}, {Err: backend.ErrNotTaken}, {Err: backend.ErrUnavailable},
	}
	limit := tokens(t, 10, algorithms.Day, 10)
	for script := range 4 * 4 * 4 {
		for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			for refund := range noRefund + 1 {
				p := scriptedParts{answers: [3]backend.Decision{answers[script%4], answers[script/4%4], answers[script/16]}, refund: refund}
				if p.run(t, limit, order); t.Failed() {
					t.Fatalf("script %d, order %v, refund %d", script, order, refund)
				}
			}
		}
	}
}

const noRefund = 3

type scriptedParts struct {
	answers [3]backend.Decision
	refund  int
}

func (p scriptedParts) run(t *testing.T, limit *algorithms.Limit, order []int) {
	t.Helper()
	var pending [3]*backend.Batch
	var undone [3]int
	var below []backend.Store
	charges := []backend.Charge{of(limit, "d", 1)} // a group of its own before the parts
	undos := stores.NewUndos(nil, time.Minute)
	for i := range pending {
		cost := int64(1)
		if i == p.refund {
			cost = -1
		}
		charges = append(charges, of(limit, string(rune('a'+i)), cost))
		charges[i+1].Group = 1
		below = append(below, submitFunc(func(b *backend.Batch) {
			if !b.Detached {
				pending[i] = b
				return
			}
			if u := b.Charges[0]; u.Terms.Cost != -cost || u.Terms.ChargedAt != 7 || u.Terms.DryRun {
				t.Errorf("part %d is undone by %+v; want cost %v, charged at 7 and not dry run", i, u.Terms, -cost)
			}
			undone[i]++
			b.Done(b)
		}))
	}
	below = append(below, memory.New(memory.Config{}))
	s := stores.Parts(byFirstByte(below...), func(_ int, c *backend.Charge) int { return int(c.Key[0]) }, undos)
	outer, done := submit(s, charges)
	answer := func(i int) {
		pending[i].Decisions[0] = p.answers[i]
		pending[i].Done(pending[i])
	}
	all, failed := true, error(nil)
	for _, i := range order {
		if i != p.refund {
			if p.refund < noRefund && pending[p.refund] != nil {
				t.Error("the refund was sent before the other parts")
			}
			answer(i)
			all = all && p.answers[i].Allowed
			failed = stores.MoreSevere(failed, p.answers[i].Err)
		}
	}
	if p.refund < noRefund {
		if peek := pending[p.refund].Charges[0].Terms.DryRun; peek == all {
			t.Errorf("all others allowed: %v; the refund is a dry run: %v; want a dry run unless all others are allowed", all, peek)
		}
		answer(p.refund)
		failed = stores.MoreSevere(failed, p.answers[p.refund].Err)
	}
	p.check(t, outer, all, failed, undone)
	if undos.Close(); *done != 1 {
		t.Errorf("done %d times; want 1", *done)
	}
}

// check checks the decisions and the undos. all means that every part except the refund was allowed. failed is the
// error that takes precedence, or nil. undone has the number of undos of each part.
func (p scriptedParts) check(t *testing.T, outer *backend.Batch, all bool, failed error, undone [3]int) {
	t.Helper()
	whole := all && (p.refund == noRefund || p.answers[p.refund].Allowed)
	if d := outer.Decisions[0]; d.Err != nil || !d.Allowed {
		t.Errorf("the other group: got %+v; want allowed", d)
	}
	for i, d := range outer.Decisions[1:] {
		if want := p.answers[i].Allowed && failed == nil; !errors.Is(d.Err, failed) || d.Allowed != want {
			t.Errorf("part %d: got %+v, want allowed %v, %v", i, d, want, failed)
		}
		want := 0
		if p.answers[i].Allowed && !whole && (i != p.refund || all) {
			want = 1
		}
		if undone[i] != want {
			t.Errorf("part %d was undone %d times, want %d", i, undone[i], want)
		}
	}
}

// The client closes the connection after a part of its request was charged.
func TestAnUndoIsNotCanceledWithItsRequest(t *testing.T) {
	undos := stores.NewUndos(nil, time.Second)
	canceled := &atomic.Bool{}
	var undone atomic.Int64
	store := stores.Parts(routed(submitFunc(func(b *backend.Batch) {
		for i := range b.Charges {
			c := &b.Charges[i]
			switch {
			case c.Canceled != nil && c.Canceled.Load(): // as the Redis store does
				b.Decisions[i] = backend.Decision{Err: backend.ErrNotTaken}
			case c.Terms.Cost < 0:
				undone.Add(-c.Terms.Cost)
			default:
				b.Decisions[i].Allowed = string(c.Key) == "a"
			}
		}
		canceled.Store(true)
		b.Done(b)
	})), func(i int, _ *backend.Charge) int { return i }, undos)
	limit := tokens(t, 10, algorithms.Second, 10)
	charges := []backend.Charge{of(limit, "a", 3), of(limit, "b", 1)}
	for i := range charges {
		charges[i].Canceled = canceled
	}
	take(t.Context(), store, charges...)
	undos.Close()
	if undone.Load() != 3 {
		t.Errorf("%d of 3 units were refunded; want 3", undone.Load())
	}
}

func TestAChargeThatIsUndoneDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		undos := stores.NewUndos(nil, time.Minute)
		defer undos.Close()
		store := memory.New(memory.Config{Clock: storetest.Times(wall)})
		reserved := of(tokens(t, 1, algorithms.Second, 5), "a", 8)
		reserved.Terms.Reserve = true
		d := chargeInParts(t, undos, part(store, reserved), part(store, of(fixed(t, 5, algorithms.Day), "b", 6)))
		if !d[0].Allowed || d[1].Allowed || d[0].Wait != 0 || d[0].Remaining != 5 {
			t.Errorf("got %+v; want the first charge allowed, 5 units left and no wait; the second denied", d)
		}
	})
}
