package redis

import (
	"context"
	"errors"
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

type failingMasters struct{ attempts int }

func (m *failingMasters) MasterForKey(context.Context, string) (*goredis.Client, error) {
	m.attempts++
	return nil, errNoLayout
}

func (m *failingMasters) ForEachMaster(context.Context, func(context.Context, *goredis.Client) error) error {
	return errNoLayout
}

// The batch that does not read the layout fails at once.
func TestOneOfTwoBatchesReadsAnUnknownLayout(t *testing.T) {
	m, failed := &failingMasters{}, 0
	c := &cluster{masters: m, open: t.Context(), timeout: time.Second, closed: true} // closed, so that nothing runs in the background
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
	if m.attempts != 1 || failed != 2 {
		t.Errorf("%d attempts to read the layout, and %d batches failed; want one attempt by two failing batches", m.attempts, failed)
	}
}
