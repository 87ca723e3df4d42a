package redis

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

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

// After an attempt to read an unknown layout, batches fail without another one for a while.
func TestAnUnknownLayoutIsNotReadForEachBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		fails := fakeMasters(func() (*goredis.Client, error) { attempts++; return nil, errNoLayout })
		c := &cluster{masters: fails, open: t.Context(), Store: &Store{
			config: Config{Timeout: time.Second}, clock: clock.System, spawn: func(f func()) { f() },
		}}
		c.reloading.Store(true) // so that nothing is read in the background
		for i, want := range []int{1, 1, 2} {
			d := takeAll(submitFunc(c.submitUnknown), limited(1).Charges)
			if attempts != want || !errors.Is(d[0].Err, backend.ErrUnavailable) {
				t.Errorf("batch %d: %d attempts, %v; want %d, and ErrUnavailable", i, attempts, d[0].Err, want)
			}
			time.Sleep(reloadPause * 3 / 4)
		}
	})
}

// A first request may not have enough time to wait for the layout of the Cluster. After the layout has been
// read in the background, the next request uses it without a further wait.
func TestALayoutThatWasReadInTheBackgroundNeedsNoWait(t *testing.T) {
	master := goredis.NewClient(&goredis.Options{Addr: "r1:6379"})
	defer master.Close()
	var questions atomic.Int32
	fake := fakeMasters(func() (*goredis.Client, error) {
		if questions.Add(1) == 1 {
			return nil, errNoLayout
		}
		return master, nil
	})
	machine := &Machine{
		Clock: hookClock{func() {}}, Go: func(f func()) { go f() }, Random: func([]byte) {}, Below: func(int) int { return 0 },
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
		redistest.Eventually(t, "the layout has been read", store.cluster.known.Load)
	}
}

func TestAMasterOfAnOldLayoutIsNotInTheNewOne(t *testing.T) {
	client := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	c := &cluster{open: t.Context(), Store: &Store{senders: map[string]*serverSenders{client.Options().Addr: {}}}}
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
		if stored := c.layout.Load().senders[slot].Load() != nil; stored == moves {
			t.Errorf("the layout was replaced: %v; the master of slot %d is stored: %v, want %v", moves, slot, stored, !moves)
		}
	}
}
