package redis

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// The charge stays, although its answer is an error.
func TestAChargeThatTooFewReplicasConfirmIsNotAllowed(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	redistest.StartReplica(t, master)
	c := backend.Charge{Key: []byte("k"), Limit: limitOf(10), Terms: algorithms.Charge{Cost: 1}}
	take := func(replicas int, timeout time.Duration) backend.Decision {
		return takeAll(open(t, Config{URL: "redis://" + master.Addr, Timeout: timeout, WaitReplicas: replicas}), []backend.Charge{c})[0]
	}
	if d := take(0, 10*time.Second); !d.Allowed { // from now on the server knows the script
		t.Fatalf("got %+v; want allowed", d)
	}
	if d := take(2, time.Second); !errors.Is(d.Err, backend.ErrUnavailable) || errors.Is(d.Err, backend.ErrNotTaken) || d.Allowed || !strings.Contains(d.Err.Error(), " of 2 replicas have confirmed") { // a slow machine has 0 of them
		t.Errorf("two must confirm: %+v; want an ErrUnavailable that is not an ErrNotTaken, with the number of replicas", d)
	}
	if d := take(1, 10*time.Second); d.Err != nil || !d.Allowed || d.Remaining != 7 {
		t.Errorf("one must confirm: %+v; want allowed and 7 remaining", d)
	}
}

// slotsOf returns two Charges whose slots belong to the first of three masters, and the numbers of these slots.
func slotsOf(store *Store, name string) (charges []backend.Charge, numbers []int) {
	for i := 0; len(charges) < 2; i++ {
		c := backend.Charge{Key: fmt.Appendf(nil, "%s %d", name, i), Limit: limitOf(100), Terms: algorithms.Charge{Cost: 1}, Group: i}
		if slot := store.keys.slot(&c); slot < slots/3 {
			charges, numbers = append(charges, c), append(numbers, slot)
		}
	}
	return charges, numbers
}

func moveEmptySlot(t *testing.T, c *redistest.Cluster, slot int) {
	t.Helper()
	target := c.Masters[1].Do("CLUSTER", "MYID")
	for _, s := range []*redistest.Server{c.Masters[1], c.Masters[0], c.Masters[2]} {
		s.Do("CLUSTER", "SETSLOT", slot, "NODE", target)
	}
}

// A slot has moved since the layout was last read.
func TestMovedSlots(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	t.Run("the first Take is answered", func(t *testing.T) {
		s := open(t, Config{URL: cluster.URL(), Timeout: 5 * time.Second})
		charges, numbers := slotsOf(s, "one slot")
		takeAll(s, charges[1:])
		moveEmptySlot(t, cluster, numbers[0])
		if d := takeAll(s, charges[:1]); !d[0].Allowed || d[0].Remaining != 99 {
			t.Errorf("got %+v; want allowed and 99 remaining", d)
		}
	})
	t.Run("with another slot that has not moved", func(t *testing.T) {
		s := open(t, Config{URL: cluster.URL(), Timeout: 5 * time.Second})
		charges, numbers := slotsOf(s, "two slots")
		sender := s.cluster.route(charges[:1]).Store // the sender to the master that had both slots
		moveEmptySlot(t, cluster, numbers[0])
		for i, d := range takeAll(sender, charges) {
			if !d.Allowed || d.Remaining != 99 {
				t.Errorf("charge %d: got %+v; want allowed and 99 remaining", i, d)
			}
		}
	})
	t.Run("and the new master's answer is lost", func(t *testing.T) {
		s := open(t, Config{URL: cluster.URL(), Timeout: 5 * time.Second})
		charges, numbers := slotsOf(s, "lost")
		moveEmptySlot(t, cluster, numbers[0])
		to := s.sender(cluster.Masters[1].Addr).node
		hook := &lostReplies{transport: to.wire}
		to.wire = hook
		if d := takeAll(s, charges[:1]); !errors.Is(d[0].Err, backend.ErrUnavailable) || errors.Is(d[0].Err, backend.ErrNotTaken) {
			t.Errorf("got %+v; want an ErrUnavailable that is not an ErrNotTaken", d)
		}
		if n := hook.lost.Load(); n != 1 {
			t.Errorf("%d answers were lost; want 1", n)
		}
		hook.over.Store(true)
		if d := takeOne(t, s, charges[0], algorithms.Charge{DryRun: true}); d.Remaining != 99 {
			t.Errorf("%d left of 100 after one charge; want 99 remaining", d.Remaining)
		}
	})
}

// A record is in the slot of its group. So the same ID with a bucket in another slot is another call, not an error.
func TestTheSameIDInAnotherSlotIsAnotherCall(t *testing.T) {
	t.Parallel()
	s := open(t, on(t, "cluster"))
	charges, _ := slotsOf(s, "id")
	for i, c := range charges {
		if d := takeAll(s, underID(1, c)); !d[0].Allowed || d[0].Replayed {
			t.Errorf("slot %d: got %+v; want allowed, and not an earlier answer", i, d[0])
		}
	}
	if d := takeAll(s, underID(1, charges[0])); !d[0].Allowed || !d[0].Replayed {
		t.Errorf("repeated: got %+v; want the earlier answer", d[0])
	}
}

// A slot has moved since the layout was last read. The replicas of its new master confirm the charge.
func TestAChargeAtAnotherMasterIsConfirmedThere(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	for replicas, allowed := range map[int]bool{1: true, 2: false} {
		s := open(t, Config{URL: cluster.URL(), Timeout: 5 * time.Second, WaitReplicas: replicas})
		charges, numbers := slotsOf(s, fmt.Sprint("confirmed by ", replicas))
		moveEmptySlot(t, cluster, numbers[0])
		d := takeAll(s, charges[:1])[0]
		if d.Allowed != allowed || errors.Is(d.Err, backend.ErrUnavailable) == allowed {
			t.Errorf("%d replicas must confirm: got %+v; want allowed %v, and otherwise an ErrUnavailable", replicas, d, allowed)
		}
	}
}

type lostReplies struct {
	transport

	lost atomic.Int32
	over atomic.Bool
}

func (l *lostReplies) start(x *exchange) {
	if done := x.done; !l.over.Load() {
		x.done = func() {
			l.lost.Add(1)
			x.done, x.err = done, io.EOF
			done()
		}
	}
	l.transport.start(x)
}

// Of two shards, the one with more units is drawn. The inflow since its last known state counts. A shard that has just
// failed is not drawn.
func TestDrawPrefersTheFullerShard(t *testing.T) {
	synctest.Test(t, drawPrefersTheFullerShard) // in a synctest bubble, because a failure counts for a short time only
}

func drawPrefersTheFullerShard(t *testing.T) {
	t.Helper()
	shards, err := algorithms.Split(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 40, Period: algorithms.Second}, 4) // 10 units each, refilled at 10/s
	if err != nil {
		t.Fatal(err)
	}
	now := 1000 * algorithms.Second
	m := shardMemory{now: func() algorithms.Micros { return now }, clock: time.Now, random: rand.IntN}
	observe := func(i int, left int64) {
		d := backend.Decision{At: now}
		d.Value = left * shards[i].Unit()
		m.observe([]byte("k"), shards, i, &d)
	}
	draws := func(what string, order ...int) {
		t.Helper()
		n := map[int]int{}
		for range 2000 {
			n[m.draw([]byte("k"), shards, 0)]++
		}
		if n[order[0]] <= n[order[1]] || n[order[1]] <= n[order[2]] || n[order[2]] == 0 || n[order[3]] != 0 {
			t.Errorf("%s: drawn %v times; want the order %v, and the last never", what, n, order)
		}
	}
	for i, left := range []int64{3, 9, 0, 6} {
		observe(i, left)
	}
	draws("as seen", 1, 3, 0, 2)
	now += algorithms.Second / 2 // five units flow into each shard, so shard 1 is full
	observe(3, 4)
	observe(1, 6)
	draws("with what has flowed in", 0, 1, 2, 3) // the shards 0 to 3 have 8, 6, 5 and 4 units
	now += algorithms.Second / 10
	observe(0, 4)
	observe(1, 8)
	observe(2, 3)
	failed := backend.Decision{Err: backend.ErrUnavailable}
	m.observe([]byte("k"), shards, 1, &failed)
	draws("one that fails", 3, 0, 2, 1) // the shards 3, 0 and 2 have 5, 4 and 3 units; shard 1 has 8, and has failed
	time.Sleep(reloadPause)
	draws("one that failed a while ago", 1, 3, 0, 2)
	m.now = nil
	observe(0, 3)
	observe(2, 0)
	observe(3, 6)
	time.Sleep(time.Second / 2)
	observe(1, 4)
	draws("with what has flowed in by the clocks of the shards", 3, 0, 2, 1)
}

type submitFunc func(b *backend.Batch)

func (f submitFunc) Submit(b *backend.Batch) { f(b) }
