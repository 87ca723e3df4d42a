package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// The layout stores the senders of all slots for up to 255 senders. For slots of further senders it returns nil, so
// that they are looked up each time.
func TestTheLayoutKnowsTheSenderOfEachSlot(t *testing.T) {
	l, senders := &layout{}, make([]senderTo, 300)
	for slot := range slots {
		if got := l.sender(slot); got != nil {
			t.Fatalf("slot %d has a sender; want none before one is stored", slot)
		}
		l.note(slot, &senders[slot%len(senders)])
		if l.sender(slot) != nil {
			l.note(slot, &senders[0]) // must not replace the sender that the slot has
		}
	}
	for slot := range slots {
		want := &senders[slot%len(senders)]
		if slot%len(senders) >= maxIndexed {
			want = nil
		}
		if l.sender(slot) != want {
			t.Errorf("slot %d has another sender than the one stored first, or one although the layout is full", slot)
		}
	}
}

type hookClock struct{ hook func() }

func (c hookClock) Now() time.Time {
	c.hook()
	return time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC)
}

func (hookClock) AfterFunc(time.Duration, func()) clock.Timer { return time.NewTimer(0) }

var errNoLayout = errors.New("no layout")

// answers is a goredis.Hook that answers each command.
type answers func(cmd goredis.Cmder)

func (answers) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (a answers) ProcessHook(goredis.ProcessHook) goredis.ProcessHook {
	return func(_ context.Context, cmd goredis.Cmder) error {
		a(cmd)
		return cmd.Err()
	}
}

func (a answers) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(_ context.Context, cmds []goredis.Cmder) error {
		for _, cmd := range cmds {
			a(cmd)
		}
		return cmds[0].Err()
	}
}

// fakeMasters finds the master of each key with a function.
type fakeMasters func() (*goredis.Client, error)

func (m fakeMasters) MasterForKey(context.Context, string) (*goredis.Client, error) { return m() }

func (m fakeMasters) ForEachMaster(context.Context, func(context.Context, *goredis.Client) error) error {
	_, err := m()
	return err
}

// The batch that does not read the layout fails at once.
func TestOneOfTwoBatchesReadsAnUnknownLayout(t *testing.T) {
	attempts, failed := 0, 0
	fails := fakeMasters(func() (*goredis.Client, error) { attempts++; return nil, errNoLayout })
	c := &cluster{masters: fails, open: t.Context(), timeout: time.Second, closed: true} // closed, so that nothing runs in the background
	submit := func() {
		c.submitUnknown(&backend.Batch{
			Charges: []backend.Charge{{Key: []byte("k")}}, Decisions: make([]backend.Decision, 1), Waits: true,
			Done: func(b *backend.Batch) {
				if errors.Is(b.Decisions[0].Err, backend.ErrUnavailable) {
					failed++
				}
			},
		})
	}
	simultaneous := true
	c.clock = hookClock{func() {
		if simultaneous { // submits the second batch after the first one has found the failed attempt, and before it reads the layout
			simultaneous = false
			submit()
		}
	}}
	c.unknown.Store(&unknown{err: errNoLayout})
	submit()
	if attempts != 1 || failed != 2 {
		t.Errorf("%d attempts to read the layout, and %d batches failed; want one attempt by two failing batches", attempts, failed)
	}
}

// A first request may not have enough time to wait for the layout of the Cluster. After the layout has been
// read in the background, the next request uses it without a further wait.
func TestALayoutThatWasReadInTheBackgroundNeedsNoWait(t *testing.T) {
	master := goredis.NewClient(&goredis.Options{Addr: "r1:6379"})
	defer master.Close()
	questions := 0
	fake := fakeMasters(func() (*goredis.Client, error) {
		if questions++; questions == 1 {
			return nil, errNoLayout
		}
		return master, nil
	})
	machine := &Machine{
		Clock: hookClock{func() {}}, Go: func(f func()) { f() }, Random: func([]byte) {}, Below: func(int) int { return 0 },
		Masters: func(*goredis.ClusterClient) Masters { return fake },
		Connect: func(client *goredis.Client, _ func(context.Context, string) (string, error)) {
			client.AddHook(answers(func(cmd goredis.Cmder) { cmd.SetErr(errors.New("reached " + client.Options().Addr)) }))
		},
	}
	store := away(t, Config{URL: "redis+cluster://r0", Machine: machine})
	for _, want := range []string{"no layout", "reached r1:6379"} {
		if err := takeAll(store, limited(1).Charges)[0].Err; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the answer is %v, not %q", err, want)
		}
	}
}

func TestAMasterOfAnOldLayoutIsNotInTheNewOne(t *testing.T) {
	client := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	c := &cluster{senders: map[string]*senderTo{}, open: t.Context(), sender: func(string, func(string) *node) (backend.Store, *node) { return nil, nil }}
	moves := false
	c.masters = fakeMasters(func() (*goredis.Client, error) {
		if moves {
			c.layout.Store(&layout{})
		}
		return client, nil
	})
	c.layout.Store(&layout{})
	for _, moves = range []bool{false, true} {
		slot := 7
		if moves {
			slot = 8
		}
		c.findSender(slot, &backend.Charge{Key: []byte("k")})
		if stored := c.layout.Load().sender(slot) != nil; stored == moves {
			t.Errorf("the layout was replaced: %v; the master of slot %d is stored: %v, want %v", moves, slot, stored, !moves)
		}
	}
}
