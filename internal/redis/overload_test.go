package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// paced is a server that decides one call after the other, and its clients. A client gets an answer at its deadline, 10 ms
// after Submit, at the latest.
type paced struct {
	store   backend.Store
	each    time.Duration // for a charge
	clients sync.WaitGroup
	until   time.Time // when the clients end

	mu   sync.Mutex
	rng  *rand.Rand // guarded by mu
	free time.Time  // when the server has no calls any more; guarded by mu
}

const (
	roundTrip = 100 * time.Microsecond
	perCall   = 100 * time.Microsecond
	turn      = 500 * time.Microsecond // what a client has to send meanwhile is sent at once
)

func newPaced(each time.Duration) *paced {
	p := &paced{each: each, rng: rand.New(rand.NewPCG(1, 2)), until: time.Now().Add(600 * ms)}
	p.store = stores.Deadline(nil, blocking(10*ms, p.decide), 10*ms, 0, nil)
	return p
}

func (p *paced) decide(_ context.Context, c *call) error {
	p.mu.Lock()
	if arrives := time.Now().Add(roundTrip / 2); p.free.Before(arrives) {
		p.free = arrives
	}
	work := perCall + time.Duration(c.charges)*p.each
	p.free = p.free.Add(time.Duration(float64(work) * (0.7 + 0.6*p.rng.Float64())))
	due := p.free.Add(roundTrip / 2)
	p.mu.Unlock()
	time.Sleep(time.Until(due))
	return echo(c)
}

// random returns a number below n.
func (p *paced) random(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rng.IntN(n)
}

// tally counts the answers to single charges.
type tally struct{ decided, all atomic.Int64 }

// submit submits a batch of n charges of s, and counts those that are decided in time.
func (p *paced) submit(s *backend.Source, n int, count *tally, done func()) {
	b := in(s, batchOf(ones(n)...))
	b.Known = make([]atomic.Bool, n)
	b.Done = func(b *backend.Batch) {
		for i := range b.Decisions {
			if b.Decisions[i].Err == nil {
				count.decided.Add(1)
			}
		}
		count.all.Add(int64(n))
		done()
	}
	p.store.Submit(b)
}

// client calls send every now and then, until the load ends.
func (p *paced) client(pause func() time.Duration, send func()) {
	p.clients.Go(func() {
		for time.Now().Before(p.until) {
			send()
			time.Sleep(pause())
		}
	})
}

func everyTurn() time.Duration { return turn }

// busy keeps n charges outstanding on one connection.
func (p *paced) busy(n int, count *tally) {
	s, waiting := &backend.Source{}, new(atomic.Int64)
	waiting.Store(int64(n))
	p.client(everyTurn, func() {
		for left := int(waiting.Swap(0)); left > 0; left -= maxBatch {
			part := min(left, maxBatch)
			p.submit(s, part, count, func() { waiting.Add(int64(part)) })
		}
	})
}

// flood sends times as many charges as the server can decide, over n connections.
func (p *paced) flood(n int, times float64, count *tally) (capacity float64) {
	capacity = float64(maxBatch) / (perCall + maxBatch*p.each).Seconds()
	sources, due := make([]backend.Source, n), 0.0
	p.client(everyTurn, func() {
		due += times * capacity * turn.Seconds()
		for each := max(1, int(due)/n); due >= 1; {
			part := min(each, maxBatch, int(due))
			due -= float64(part)
			p.submit(&sources[p.random(n)], part, count, func() {})
		}
	})
	return capacity
}

// A server gets more charges than it can decide, on one connection or on many. It must decide nearly as many in time as
// it can, and nearly all of another source, which sends few. So must one whose busy connection has as many charges
// outstanding as it likes.
func TestOverloadKeepsTheRateOfDecisions(t *testing.T) {
	for _, each := range []time.Duration{4 * time.Microsecond, 12 * time.Microsecond, 25 * time.Microsecond} {
		under := func(is string, least float64, load func(p *paced, all *tally) (want float64)) {
			t.Helper()
			synctest.Test(t, func(t *testing.T) {
				p, quiet, all := newPaced(each), &tally{}, &tally{}
				began, few := time.Now(), &backend.Source{}
				p.client(func() time.Duration { return time.Duration(p.random(10_000)) * time.Microsecond }, func() {
					p.submit(few, 1, quiet, func() {})
				})
				want := load(p, all)
				p.clients.Wait()
				if rate := float64(all.decided.Load()) / time.Since(began).Seconds(); rate < want {
					t.Errorf("%v a charge, %s: %.0f were decided in time in a second, want %.0f", each, is, rate, want)
				}
				time.Sleep(time.Second) // until all are decided
				if share := float64(quiet.decided.Load()) / float64(quiet.all.Load()); share < least {
					t.Errorf("%v a charge, %s: of the quiet source %.3f were decided in time, want %.2f", each, is, share, least)
				}
			})
		}
		for _, connections := range []int{1, 20, 100} {
			for _, times := range []float64{0.8, 2, 5} {
				under(fmt.Sprintf("%d connections, %v times the capacity", connections, times), 0.9, func(p *paced, all *tally) float64 {
					return 0.85 * min(1, times) * p.flood(connections, times, all)
				})
			}
		}
		under("20 connections, 5 times the capacity, and the first call takes as long as one to a far server", 0.8, func(p *paced, all *tally) float64 {
			p.free = time.Now().Add(2 * nearTrip)
			p.submit(&backend.Source{}, 1, all, func() {})
			return 0.7 * p.flood(20, 5, all) // less, because it is found out only then that the server is near
		})
		for _, outstanding := range []int{100, 1000, 10_000} {
			under(fmt.Sprint(outstanding, " outstanding"), 0.95, func(p *paced, all *tally) float64 {
				p.busy(outstanding, all)
				return 0
			})
		}
	}
}
