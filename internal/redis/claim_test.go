package redis

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// lostThenLate is a hook for the calls that replace or delete a claim. The first call reaches Redis, and its answer is
// lost. The second call, a repetition of the first, arrives late.
type lostThenLate struct {
	calls   atomic.Int32
	late    chan struct{} // closed when the second call may continue
	arrived chan struct{} // closed when the second call has been answered
}

func (l *lostThenLate) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (l *lostThenLate) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

func (l *lostThenLate) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		switch cmd.Name() {
		case "set", "del", "eval", "evalsha":
		default:
			return next(ctx, cmd)
		}
		if l.calls.Add(1) == 1 {
			_ = next(ctx, cmd)
			cmd.SetErr(io.EOF)
			return io.EOF
		}
		<-l.late
		defer close(l.arrived)
		return next(ctx, cmd)
	}
}

func decidedAs(allowed bool) backend.Store {
	return submitFunc(func(b *backend.Batch) {
		for i := range b.Decisions {
			b.Decisions[i] = backend.Decision{Decision: algorithms.Decision{Allowed: allowed}, At: 1}
		}
		b.Done(b)
	})
}

func chargeClaimed(s *Store, group []backend.Charge, store backend.Store) (d [1]backend.Decision) {
	backend.Take(context.Background(), s.Claimed(store, s.undos), group, d[:])
	return d
}

// The answer of a call that deletes or answers a claim was lost, so the call is sent again. It arrives after
// another caller has claimed the same ID. It must not remove the new claim, because then a third caller would
// be charged too.
func TestALateCallKeepsTheClaimOfAnotherCaller(t *testing.T) {
	for name, allowed := range map[string]bool{"after a denial": false, "after an answer that has expired": true} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			connect := func() *Store {
				return open(t, Config{URL: "redis://" + server.Addr, Timeout: 30 * time.Second})
			}
			one, other := connect(), connect()
			group := underID(1, backend.Charge{Key: []byte("k"), Limit: limitOf(9), Terms: algorithms.Charge{Cost: 1}})
			chargeClaimed(other, group, decidedAs(false)) // from now on the server knows the script
			hook := &lostThenLate{late: make(chan struct{}), arrived: make(chan struct{})}
			one.client.AddHook(hook)
			if d := chargeClaimed(one, group, decidedAs(allowed)); d[0].Err != nil || d[0].Allowed != allowed {
				t.Fatalf("got %+v; want no error and allowed %v", d, allowed)
			}
			if allowed {
				server.Do("FLUSHALL") // the answer has expired
			}
			charged := 0
			chargeClaimed(other, group, submitFunc(func(b *backend.Batch) {
				close(hook.late)
				<-hook.arrived
				third := chargeClaimed(other, group, submitFunc(func(b *backend.Batch) {
					charged++
					decidedAs(true).Submit(b)
				}))
				if !errors.Is(third[0].Err, backend.ErrPending) {
					t.Errorf("while the second call is being decided: got %+v; want the error backend.ErrPending", third)
				}
				charged++
				decidedAs(true).Submit(b)
			}))
			if d := chargeClaimed(other, group, decidedAs(true)); !d[0].Replayed || charged != 1 {
				t.Errorf("charged %d times; then got %+v; want once, and a replayed answer", charged, d)
			}
		})
	}
}

type unanswered struct {
	calls atomic.Int32
}

func (u *unanswered) DialHook(next goredis.DialHook) goredis.DialHook          { return next }
func (u *unanswered) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (u *unanswered) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		err := next(ctx, cmds)
		if u.calls.Add(1) > 1 {
			return err
		}
		for _, cmd := range cmds {
			cmd.SetErr(io.EOF)
		}
		return io.EOF
	}
}

// If the claim of an ID got no answer, the group was not sent, so the claim must not block a repeated
// group.
func TestUnansweredClaimsAreDropped(t *testing.T) {
	_, s := started(t)
	s.client.AddHook(&unanswered{})
	group := underID(1, backend.Charge{Key: []byte("k"), Limit: limitOf(9), Terms: algorithms.Charge{Cost: 1}})
	d := chargeClaimed(s, group, decidedAs(true))
	if !errors.Is(d[0].Err, backend.ErrUnavailable) {
		t.Fatalf("got %+v; want the error backend.ErrUnavailable", d)
	}
	redistest.Eventually(t, "the claim is gone", func() bool {
		return chargeClaimed(s, group, decidedAs(true))[0].Err == nil
	})
}

// Groups beyond the bound are refused, and those that have ended make room.
func TestGroupsWithClaimsAreBounded(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Config{URL: "redis://" + server.Addr, Timeout: 30 * time.Second})
	charge := backend.Charge{Key: []byte("k"), Limit: limitOf(9), Terms: algorithms.Charge{Cost: 1}}
	for round := range 2 {
		var group []backend.Charge
		for i := range maxClaims + 3 {
			one := underID(uint32(round<<16|i), charge)[0]
			one.Group = i
			group = append(group, one)
		}
		var charged sync.WaitGroup
		charged.Add(maxClaims)
		held := submitFunc(func(b *backend.Batch) {
			if !b.Detached {
				t.Error("a detached batch became one with a waiting caller")
			}
			charged.Done()
			go func() {
				charged.Wait()
				decidedAs(true).Submit(b)
			}()
		})
		refused := 0
		done := make(chan struct{})
		b := &backend.Batch{Charges: group, Decisions: make([]backend.Decision, len(group)), Detached: true, Done: func(*backend.Batch) { close(done) }}
		s.Claimed(held, s.undos).Submit(b)
		<-done
		for i := range b.Decisions {
			if d := &b.Decisions[i]; errors.Is(d.Err, backend.ErrNotTaken) {
				refused++
			} else if d.Err != nil || !d.Allowed {
				t.Errorf("group %d: got %+v; want allowed, or the error backend.ErrNotTaken", i, *d)
			}
		}
		if refused != 3 {
			t.Errorf("round %d: %d groups of %d were refused, want 3", round, refused, len(group))
		}
	}
}

// Without an answer it is unknown whether a group was charged. Its claim must stay, or the same request would be
// charged again.
func TestGroupsWithoutAnAnswerKeepTheirClaim(t *testing.T) {
	_, s := started(t)
	group := underID(1, backend.Charge{Key: []byte("k"), Limit: limitOf(9), Terms: algorithms.Charge{Cost: 1}})
	charged := 0
	lost := submitFunc(func(b *backend.Batch) {
		charged++
		b.Fail(backend.ErrUnavailable)
	})
	for i, want := range []error{backend.ErrUnavailable, backend.ErrPending, backend.ErrPending} {
		if d := chargeClaimed(s, group, lost); !errors.Is(d[0].Err, want) || charged != 1 {
			t.Errorf("request %d: got %+v, submitted %d times; want the error %v, and 1", i, d, charged, want)
		}
	}
}

// One of the two Redis servers of a group cannot be reached, so the group was certainly not charged. Its ID must not
// stay claimed.
func TestUnsentGroupsLeaveNoClaim(t *testing.T) {
	port := redistest.FreePort(t)
	first := redistest.Start(t)
	undos := stores.NewUndos(nil, 10*time.Second)
	t.Cleanup(undos.Close)
	second := away(t, Config{URL: "redis://127.0.0.1:" + strconv.Itoa(port), Timeout: 5 * time.Second})
	store := stores.Divided(open(t, Config{URL: "redis://" + first.Addr, Timeout: 5 * time.Second}), second,
		func(c *backend.Charge) bool { return c.Key[0] == 'b' }, undos)
	a := backend.Charge{Key: []byte("a"), Limit: limitOf(100), Terms: algorithms.Charge{Cost: 2}}
	b := backend.Charge{Key: []byte("b"), Limit: limitOf(100), Terms: algorithms.Charge{Cost: 1}}
	for range 10 { // more failures than open the circuit breaker
		for i, d := range takeAll(store, underID(1, a, b)) {
			if !errors.Is(d.Err, backend.ErrUnavailable) {
				t.Fatalf("charge %d: %+v; want the error backend.ErrUnavailable", i, d)
			}
		}
	}
	redistest.StartAt(t, port)
	redistest.Eventually(t, "the group is decided", func() bool {
		d := takeAll(store, underID(1, a, b))
		if errors.Is(d[0].Err, backend.ErrPending) {
			t.Fatalf("the ID is still claimed: %+v; want an error other than backend.ErrPending", d)
		}
		return d[0].Allowed && d[1].Allowed
	})
	redistest.Eventually(t, "what the failed tries had consumed is refunded", func() bool {
		a.Terms.Cost, b.Terms.Cost = 0, 0
		return takeAll(store, []backend.Charge{a})[0].Remaining == 98 && takeAll(store, []backend.Charge{b})[0].Remaining == 99
	})
}

// A part of a group takes a slot, and another part denies. A repetition would take a slot with the same ID. If it did so
// before the first slot is returned, the return would take its slot away.
func TestASlotIsReturnedBeforeItsRequestIsRepeated(t *testing.T) {
	for name, err := range map[string]error{
		"the return is late": nil, "a call of the return fails": backend.ErrUnavailable, "a call of the return is refused": backend.ErrNotTaken,
	} {
		t.Run(name, func(t *testing.T) {
			_, s := started(t)
			var full atomic.Bool
			full.Store(true)
			returned := make(chan *backend.Batch)
			store := memory.New(memory.Config{})
			slots := submitFunc(func(b *backend.Batch) {
				if b.Charges[0].Terms.Slot.Op != algorithms.ReturnSlot {
					store.Submit(b)
					return
				}
				go func() { returned <- b }()
			})
			take := takeUnderID(t, s, slots, submitFunc(func(b *backend.Batch) { decidedAs(!full.Load()).Submit(b) }))
			if d := take(1); d[0].Err != nil || d[1].Err != nil || d[1].Allowed {
				t.Fatalf("got %+v; want denied", d)
			}
			full.Store(false)
			if err != nil {
				(<-returned).Fail(err)
			}
			back := <-returned
			for range 3 {
				if d := take(1); !errors.Is(d[0].Err, backend.ErrPending) {
					t.Fatalf("before the return: got %+v; want the error backend.ErrPending", d)
				}
			}
			store.Submit(back)
			if err != nil && !errors.Is(err, backend.ErrNotTaken) { // the failed call may still arrive
				time.Sleep(50 * time.Millisecond)
				if d := take(1); !errors.Is(d[0].Err, backend.ErrPending) {
					t.Errorf("after a call that failed: got %+v; want the error backend.ErrPending", d)
				}
				return
			}
			redistest.Eventually(t, "the group is decided", func() bool {
				d := take(1)
				return d[0].Allowed && d[1].Allowed
			})
			if d := take(2); d[0].Allowed || d[0].Err != nil {
				t.Errorf("a second slot of one: got %+v; want denied", d)
			}
		})
	}
}

// takeUnderID returns a function that charges a group with an ID: a slot of one, which is in slots, and a unit, which is
// in units. The claims are in s.
func takeUnderID(t *testing.T, s *Store, slots, units backend.Store) func(id byte) [2]backend.Decision {
	undos := stores.NewUndos(nil, time.Minute)
	t.Cleanup(undos.Close)
	parts := stores.NewRouter(func(group []backend.Charge) *stores.Route {
		if group[0].Terms.Slot != nil {
			return &stores.Route{Store: slots}
		}
		return &stores.Route{Store: units}
	}, nil)
	claimed := s.Claimed(stores.Parts(parts, func(i int, _ *backend.Charge) int { return i }, undos), undos)
	return func(id byte) (d [2]backend.Decision) {
		slot := backend.Charge{Key: []byte("slots"), Limit: compiledSlots(t, 1, 600*algorithms.Second)}
		slot.Terms = algorithms.Charge{Cost: 1, Slot: &algorithms.Slot{ID: [16]byte{id}}}
		group := underID(uint32(id), slot, backend.Charge{Key: []byte("k"), Limit: limitOf(9), Terms: algorithms.Charge{Cost: 1}})
		backend.Take(context.Background(), claimed, group, d[:])
		return d
	}
}

func TestClaimsPassTheBreaker(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Config{URL: "redis://" + server.Addr, Timeout: 50 * time.Millisecond})
	group := underID(1, backend.Charge{Key: []byte("k"), Limit: limitOf(9), Terms: algorithms.Charge{Cost: 1}})
	server.Pause()
	taken := submitFunc(func(b *backend.Batch) { t.Error("a group was charged"); b.Fail(backend.ErrUnavailable) })
	redistest.Eventually(t, "the circuit breaker is open", func() bool {
		d := chargeClaimed(s, group, taken)
		return errors.Is(d[0].Err, errOpen) && errors.Is(d[0].Err, backend.ErrNotTaken)
	})
	server.Resume()
	redistest.Eventually(t, "groups are charged again", func() bool {
		group[0].IdempotencyKey.ID[0]++ // a new ID, because a claim that got no answer may stay until it is deleted
		return chargeClaimed(s, group, decidedAs(true))[0].Err == nil
	})
}
