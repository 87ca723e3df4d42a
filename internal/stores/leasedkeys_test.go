package stores

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/clock"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// hotBucket returns a shard with one hot key "a". The bucket refills by 1,000 units a second, and its leases last 50 ms.
func hotBucket(t *testing.T) (*cacheShard, *hotKey) {
	t.Helper()
	limit := limittest.Compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1000, Period: algorithms.Second})
	l := &hotKey{charge: backend.Charge{
		Key: []byte("a"), Limit: limit, Lease: &algorithms.Lease{Most: 100, For: 50_000}, Terms: algorithms.Charge{Cost: 3, Hash: 9},
	}, edge: never}
	return &cacheShard{store: &CacheStore{}, maxBuckets: 16, buckets: map[string]*bucket{"a": {hot: l}}, hot: map[*hotKey]struct{}{l: {}}}, l
}

// A lease has half the units that the key uses in the duration of a lease, in whole multiples of the cost, and at
// most an eighth of the remaining units. Lease.Most bounds the sum of the leases of a key. Each failure halves the lease.
func TestSizesOfLeases(t *testing.T) {
	const span = 50 * time.Millisecond
	for _, test := range []struct {
		name                  string
		used                  float64
		cost, remaining, have int64
		failed                int
		want                  int64
	}{
		{"half of what is used", 60, 1, 1e6, 0, 0, 30},
		{"a multiple of the cost", 60, 7, 1e6, 0, 0, 28},
		{"the bound", 1e6, 1, 1e6, 0, 0, 100},
		{"the rest of the bound", 1e6, 1, 1e6, 60, 0, 40},
		{"the cost is the rest of the bound", 1e6, 40, 1e6, 60, 0, 40},
		{"the cost is more than the rest", 1e6, 41, 1e6, 60, 0, 0},
		{"an eighth of what remains", 1e6, 1, 80, 0, 0, 10},
		{"too little remains", 1e6, 11, 80, 0, 0, 0},
		{"after three failures", 1e6, 1, 1e6, 0, 3, 12},
		{"after very many failures", 1e6, 1, 1e6, 0, 1000, 0},
	} {
		_, l := hotBucket(t)
		l.used, l.grants[0].left, l.failed, l.last.Remaining = test.used, test.have, test.failed, test.remaining
		if got := l.leaseSize(test.cost, span); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
}

func TestWhichKeysBecomeCold(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*hotKey)
		after  time.Duration
		cold   bool
	}{
		"unused":                   {func(*hotKey) {}, time.Second + 1, true},
		"used a second ago":        {func(*hotKey) {}, time.Second, false},
		"with a longer lease":      {func(l *hotKey) { l.charge.Lease = &algorithms.Lease{Most: 1, For: 2 * algorithms.Second} }, 2 * time.Second, false},
		"units are leased":         {func(l *hotKey) { l.grants[1].left = 1 }, time.Minute, false},
		"a lease is requested":     {func(l *hotKey) { l.ahead = &ahead{} }, time.Minute, false},
		"unused with an old lease": {func(l *hotKey) { l.charge.Lease = &algorithms.Lease{Most: 1, For: 2 * algorithms.Second} }, 2*time.Second + 1, true},
	} {
		sh, l := hotBucket(t)
		l.lastRequestAt = time.Hour
		test.change(l)
		if sh.cool(time.Hour + test.after); (len(sh.hot) == 0) != test.cold || l.removed != test.cold {
			t.Errorf("%s: %d keys, removed %t; want cold %t", name, len(sh.hot), l.removed, test.cold)
		}
	}
}

// A lease ends a little earlier than its terms permit. A grant that arrives after its key was removed is lost.
func TestTheEndOfAGrant(t *testing.T) {
	sh, l := hotBucket(t)
	sh.granted(l, 5, &backend.Decision{At: 77}, time.Second, 2*time.Second)
	if g := l.grants[0]; g.left != 5 || g.until != time.Second+50*time.Millisecond-50*time.Microsecond-time.Microsecond || g.chargedAt != 77 || g.grantedAt != time.Second {
		t.Errorf("got %+v; want 5 units that were charged at 77, from 1 s until 50 ms later, less 51 us", g)
	}
	sh.drop([]byte("a"))
	if sh.granted(l, 5, &backend.Decision{}, time.Second, 2*time.Second); l.left() != 0 || !l.removed || len(sh.hot) != 0 {
		t.Errorf("a removed key: got %d units, removed %t, %d hot keys; want none, true, and none", l.left(), l.removed, len(sh.hot))
	}
}

func TestReturnsOfOneKey(t *testing.T) {
	sh, l := hotBucket(t)
	other := backend.Charge{Key: []byte("b"), Terms: algorithms.Charge{Cost: -2}}
	earlier := backend.Charge{Key: []byte("a"), Terms: algorithms.Charge{Cost: -4}}
	sh.returns = []backend.Charge{other, earlier}
	l.grants = [2]grant{{left: 30, chargedAt: 5, grantedAt: time.Second - 10*time.Millisecond}, {left: 7, chargedAt: 6, grantedAt: time.Second - 7*time.Millisecond}}
	list := sh.returnAll(nil, l, time.Second)
	if len(list) != 2 || list[0].Terms != (algorithms.Charge{Cost: -30, Hash: 9, ChargedAt: 5}) || list[0].Lease != nil || list[1].Terms.Cost != -4 {
		t.Errorf("got %+v; want 30 units and the 4 that were waiting: 7 units have flowed in since the second grant", list)
	}
	if len(sh.returns) != 1 || !bytes.Equal(sh.returns[0].Key, other.Key) || l.left() != 0 || sh.stats.Returned != 20 {
		t.Errorf("%+v are waiting, %d leased, %d returned; want the return of the other key, 0, and 20 because 10 have flowed in", sh.returns, l.left(), sh.stats.Returned)
	}
	l.grants[0] = grant{left: 1, grantedAt: time.Second - time.Millisecond/2}
	if list := sh.returnAll(nil, l, time.Second); len(list) != 1 || list[0].Terms.Cost != -1 {
		t.Errorf("got %+v; want the return of one unit, of which half has flowed in", list)
	}
	for range 2 * maxReturns {
		sh.queueReturn(earlier)
	}
	sh.queueReturn(backend.Charge{Key: []byte("a"), Terms: algorithms.Charge{Cost: 3}}) // a positive cost returns nothing
	if len(sh.returns) != maxReturns {
		t.Errorf("%d returns are waiting, want at most %d", len(sh.returns), maxReturns)
	}
}

type submitted struct{ charges []backend.Charge }

func (s *submitted) Submit(b *backend.Batch) {
	s.charges = append(s.charges, b.Charges...)
	b.Finish()
}

func TestCloseSendsTheReturnsThatWait(t *testing.T) {
	below := &submitted{}
	s := Cache(below, CacheConfig{})
	sh, _ := s.shard([]byte("a"))
	sh.queueReturn(backend.Charge{Key: []byte("a"), Terms: algorithms.Charge{Cost: -4}})
	if s.Close(); len(below.charges) != 1 || below.charges[0].Terms.Cost != -4 {
		t.Errorf("Close submitted %+v, want the return of 4 units", below.charges)
	}
}

type timers struct {
	clock.Clock
	count int
}

func (c *timers) AfterFunc(time.Duration, func()) clock.Timer { c.count++; return nil }

func TestLeasesHaveOneTimer(t *testing.T) {
	clock := &timers{Clock: clock.System}
	s := Cache(nil, CacheConfig{Clock: clock})
	if s.arm(); clock.count != 1 {
		t.Errorf("%d timers, want 1", clock.count)
	}
	if s.arm(); clock.count != 1 {
		t.Errorf("%d timers after a second call, want 1", clock.count)
	}
	s.armed.Store(false)
	s.closed.Store(true)
	if s.arm(); clock.count != 1 {
		t.Errorf("%d timers after Close, want 1", clock.count)
	}
}

func TestARouterReportsDecidedBatches(t *testing.T) {
	var seen []int
	a, b := &Route{&submitted{}}, &Route{&submitted{}}
	r := NewRouter(func(group []backend.Charge) *Route {
		if group[0].Key[0] == 'a' {
			return a
		}
		return b
	}, func(b *backend.Batch) { seen = append(seen, len(b.Charges)) })
	for _, test := range []struct {
		keys string
		want []int
	}{{"", nil}, {"aaa", []int{3}}, {"aab", []int{2, 1}}} {
		seen = nil
		batch := &backend.Batch{Decisions: make([]backend.Decision, len(test.keys))}
		for i := range test.keys {
			batch.Charges = append(batch.Charges, backend.Charge{Key: []byte{test.keys[i]}, Group: i})
		}
		done := 0
		batch.Done = func(*backend.Batch) { done++ }
		if r.Submit(batch); done != 1 || !slices.Equal(seen, test.want) {
			t.Errorf("%q: ended %d times, reported %v; want once, and %v", test.keys, done, seen, test.want)
		}
	}
}
