package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func underID(id uint32, charges ...backend.Charge) []backend.Charge {
	o := &backend.IdempotencyKey{Lifetime: 600 * algorithms.Second}
	binary.BigEndian.PutUint32(o.ID[:], id)
	for i := range charges {
		o.Digest[i] = charges[i].Key[0] + byte(charges[i].Terms.Cost)
		charges[i].IdempotencyKey = o
	}
	return charges
}

func takeAll(s backend.Store, charges []backend.Charge) []backend.Decision {
	d := make([]backend.Decision, len(charges))
	backend.Take(context.Background(), s, charges, d)
	return d
}

// The script has run before its answer is lost.
func TestLostAnswersAreChargedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := startProxy(t, server.Addr, seed(t))
	s := open(t, Config{URL: "redis://" + p.Addr, Timeout: 2 * time.Second})
	p.do(faults{share: 0.3, close: true})
	c := backend.Charge{Key: []byte("lost"), Limit: limitOf(1000), Terms: algorithms.Charge{Cost: 1}}
	var wg sync.WaitGroup
	for worker := range uint32(4) {
		wg.Go(func() {
			for n := range uint32(50) {
				d := takeAll(s, underID(worker<<16+n, c))
				for d[0].Err != nil && t.Context().Err() == nil {
					time.Sleep(time.Millisecond)
					d = takeAll(s, underID(worker<<16+n, c))
				}
				if !d[0].Allowed {
					t.Errorf("got %+v; want allowed", d[0])
				}
			}
		})
	}
	wg.Wait()
	p.do(faults{})
	if p.damaged.Load() == 0 {
		t.Error("no answer was lost")
	}
	if d := takeOne(t, s, c, algorithms.Charge{DryRun: true}); d.Remaining != 800 {
		t.Errorf("%d left of 1000 after 200 calls, want 800", d.Remaining)
	}
}

func TestRecordsLiveAsLongAsTheyMust(t *testing.T) {
	t.Parallel()
	server, s := started(t)
	before := time.Now()
	takeAll(s, underID(1, backend.Charge{Key: []byte("k"), Limit: limitOf(9), Terms: algorithms.Charge{Cost: 1}}))
	left := livesFor(t, server, "o"+string([]byte{0, 0, 0, 1})+strings.Repeat("\x00", 12))
	if left < 600*time.Second-time.Since(before)-time.Millisecond || left > 600*time.Second {
		t.Errorf("lives %v more, want 10 min", left)
	}
}

// A Cluster cannot charge these groups in one step: they have buckets in several slots, or shards.
func TestClaimsAreMadeOnce(t *testing.T) {
	t.Parallel()
	cluster := on(t, "cluster")
	one, other := open(t, cluster), open(t, cluster)
	shards := sharded(t, windowSpec(100), 10, "s")
	shards.Terms.Cost = 35 // two shards together have fewer units
	chargesClaimed(t, one, other, shards)
	claimsAreChargedOnce(t, one, other)
}

// The claim is in the first Redis, and the group has a bucket in each of the two.
func TestAGroupWithBucketsInTwoRedisIsClaimedOnce(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"server", "sentinel", "cluster"} {
		t.Run(form, func(t *testing.T) {
			first, second := on(t, form), on(t, "server")
			divided := func() backend.Store {
				undos := stores.NewUndos(nil, time.Second)
				t.Cleanup(undos.Close)
				return stores.Divided(open(t, first), open(t, second), func(c *backend.Charge) bool { return c.Key[0]%2 == 0 }, undos)
			}
			claimsAreChargedOnce(t, divided(), divided())
		})
	}
}

// chargesClaimed charges a group that needs a claim through storeA, and repeats it through storeB. Both stores use the
// same Redis.
func chargesClaimed(t *testing.T, storeA, storeB backend.Store, group ...backend.Charge) {
	t.Helper()
	before := left(storeA, group[0])
	id := uint32(len(group))
	first := takeAll(storeA, underID(id, group...))
	if !first[0].Allowed || first[0].Replayed {
		t.Fatalf("got %+v; want allowed and not replayed", first)
	}
	for i, d := range takeAll(storeB, underID(id, group...)) {
		if want := first[i]; !d.Replayed || d.Decision != want.Decision || d.At != want.At {
			t.Errorf("repeated by another sidecar: got %+v, want %+v", d, want)
		}
	}
	if now := left(storeA, group[0]); now != before-group[0].Terms.Cost {
		t.Errorf("%d left, want %d", now, before-group[0].Terms.Cost)
	}
	group[0].Terms.Cost++
	if d := takeAll(storeB, underID(id, group...)); !errors.Is(d[0].Err, backend.ErrReused) {
		t.Errorf("the id of another group, want ErrReused: got %+v", d)
	}
}

func left(s backend.Store, c backend.Charge) int64 {
	c.Terms.Cost = 0
	return takeAll(s, []backend.Charge{c})[0].Remaining
}

// claimsAreChargedOnce charges groups of two buckets in several ways. Both stores must use the same Redis.
func claimsAreChargedOnce(t *testing.T, storeA, storeB backend.Store) {
	t.Helper()
	a := backend.Charge{Key: []byte("a"), Limit: limitOf(100), Terms: algorithms.Charge{Cost: 2}}
	b := backend.Charge{Key: []byte("b"), Limit: limitOf(4), Terms: algorithms.Charge{Cost: 1}}
	chargesClaimed(t, storeA, storeB, a, b)
	t.Run("a denial is decided again", func(t *testing.T) {
		full := b
		full.Terms.Cost = 4
		for range 2 {
			if d := takeAll(storeA, underID(10, a, full)); d[0].Err != nil || d[1].Allowed || d[1].Replayed {
				t.Errorf("3 left of 4: got %+v; want no error, denied and not replayed", d)
			}
		}
		full.Terms.Cost = -1
		takeAll(storeA, []backend.Charge{full})
		full.Terms.Cost = 4
		if d := takeAll(storeB, underID(10, a, full)); !d[0].Allowed || !d[1].Allowed || d[0].Replayed {
			t.Errorf("4 left of 4: got %+v; want both allowed, and the first not replayed", d)
		}
	})
	t.Run("concurrently", func(t *testing.T) {
		c, d := a, a
		c.Key, d.Key = []byte("c"), []byte("d")
		var wg sync.WaitGroup
		var taken atomic.Int64
		for i := range 16 {
			wg.Go(func() {
				s := []backend.Store{storeA, storeB}[i%2]
				for id := range uint32(10) {
					got := takeAll(s, underID(20+id, c, d))
					switch {
					case got[0].Allowed && !got[0].Replayed:
						taken.Add(1)
					case !got[0].Replayed && !errors.Is(got[0].Err, backend.ErrPending):
						t.Errorf("got %+v; want it allowed, replayed, or the error backend.ErrPending", got)
					}
				}
			})
		}
		wg.Wait()
		if n := taken.Load(); n != 10 || left(storeA, c) != 80 || left(storeA, d) != 80 {
			t.Errorf("10 ids were charged %d times; %d and %d left; want 10 times, and 80 left in both", n, left(storeA, c), left(storeA, d))
		}
	})
}
