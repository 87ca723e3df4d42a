package redis

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// rig simulates a queue, its server and its clients in virtual time. The server decides one call after the other. A
// client gets an answer when its batch is complete or refused, and at the deadline at the latest.
type rig struct {
	q       queue
	rng     *rand.Rand
	rtt     time.Duration // of a call without charges
	perCall time.Duration // of the server
	each    time.Duration // of the server, for a charge
	timeout time.Duration

	now    time.Duration
	events events
	free   time.Duration // when the server has no calls any more
	calls  map[*backend.Batch]func(complete bool)
}

type occurrence struct {
	at time.Duration
	do func()
}

type events []occurrence

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(occurrence)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

func newRig(each time.Duration) *rig {
	return &rig{
		q: newQueue(10 * ms), rng: rand.New(rand.NewPCG(1, 2)), rtt: 100 * time.Microsecond, perCall: 100 * time.Microsecond,
		each: each, timeout: 10 * ms, calls: map[*backend.Batch]func(bool){},
	}
}

func (r *rig) after(d time.Duration, do func()) { heap.Push(&r.events, occurrence{r.now + d, do}) }

func (r *rig) run(until time.Duration) {
	for len(r.events) > 0 && r.events[0].at <= until {
		e := heap.Pop(&r.events).(occurrence)
		r.now = e.at
		e.do()
	}
}

// submit submits a batch of n charges of s. answered is called once, with the number of charges that were decided in
// time.
func (r *rig) submit(s *backend.Source, n int, answered func(decided int)) {
	b := in(s, batchOf(ones(n)...))
	b.Deadline, b.Known = at(r.now+r.timeout), make([]atomic.Bool, n)
	ended := false
	end := func(complete bool) {
		decided := 0
		for i := range b.Decisions {
			if (complete || b.IsKnown(i)) && b.Decisions[i].Err == nil {
				decided++
			}
		}
		if !ended {
			ended = true
			answered(decided)
		}
	}
	do, err := r.q.submit(b, at(r.now))
	if err != nil {
		answered(0)
		return
	}
	r.calls[b] = end
	r.after(r.timeout, func() { end(false) })
	r.perform(do)
}

func (r *rig) perform(do effects) {
	if do.tickAfter > 0 {
		r.after(do.tickAfter, func() { r.perform(r.q.tick(at(r.now))) })
	}
	if do.start {
		r.after(0, r.fill)
	}
}

func (r *rig) fill() {
	c := &call{}
	sends := r.q.fill(c, at(r.now))
	r.end(c)
	if !sends {
		r.perform(r.q.startDue(at(r.now)))
		return
	}
	work := r.perCall + time.Duration(c.charges)*r.each
	r.free = max(r.free, r.now+r.rtt/2) + time.Duration(float64(work)*(0.7+0.6*r.rng.Float64()))
	heap.Push(&r.events, occurrence{r.free + r.rtt/2, func() {
		r.answered(c)
	}})
}

func (r *rig) answered(c *call) {
	r.q.took(c, at(r.now), false)
	c.markKnown()
	r.q.complete(c)
	r.end(c)
	r.perform(r.q.callEnded(at(r.now)))
}

// end answers the batches that are complete. A decision without an error counts as decided.
func (r *rig) end(c *call) {
	for _, b := range c.ended {
		end := r.calls[b]
		delete(r.calls, b)
		end(true)
	}
	c.ended = nil
}

// tally counts the answers to single charges.
type tally struct{ decided, denied int }

func (c *tally) add(n, decided int) {
	c.decided += decided
	c.denied += n - decided
}

func (c *tally) share() float64 { return float64(c.decided) / float64(max(1, c.decided+c.denied)) }

// quiet sends a charge every five milliseconds, on the average.
func (r *rig) quiet(count *tally) {
	s := &backend.Source{}
	var next func()
	next = func() {
		r.submit(s, 1, func(decided int) { count.add(1, decided) })
		r.after(time.Duration(r.rng.Int64N(int64(10*ms))), next)
	}
	r.after(0, next)
}

// busy keeps n charges outstanding on one connection. It sends a charge again 500 us after its answer.
func (r *rig) busy(n int, count *tally) {
	s := &backend.Source{}
	waiting := n
	var flush func()
	flush = func() {
		for waiting > 0 {
			part := min(waiting, maxBatch)
			waiting -= part
			r.submit(s, part, func(decided int) {
				count.add(part, decided)
				r.after(500*time.Microsecond, func() {
					if waiting += part; waiting == part {
						r.after(0, flush)
					}
				})
			})
		}
	}
	r.after(0, flush)
}

// flood sends times as many charges as the server can decide, over n connections.
func (r *rig) flood(n int, times float64, count *tally) (capacity float64) {
	capacity = float64(maxBatch) / (r.perCall + maxBatch*r.each).Seconds()
	sources := make([]backend.Source, n)
	const turn = 500 * time.Microsecond // what has arrived meanwhile is read at once
	due := 0.0
	var next func()
	next = func() {
		due += times * capacity * turn.Seconds()
		for each := max(1, int(due)/n); due >= 1; {
			part := min(each, maxBatch, int(due))
			due -= float64(part)
			r.submit(&sources[r.rng.IntN(n)], part, func(decided int) { count.add(part, decided) })
		}
		r.after(turn, next)
	}
	r.after(0, next)
	return capacity
}

// A server gets more charges than it can decide, on one connection or on many. It must decide nearly as many in time as
// it can, and nearly all of another source, which sends few. So must one whose busy connection has as many charges
// outstanding as it likes.
func TestOverloadKeepsTheRateOfDecisions(t *testing.T) {
	const last = 400 * ms
	for _, each := range []time.Duration{4 * time.Microsecond, 12 * time.Microsecond, 25 * time.Microsecond} {
		under := func(is string, least float64, load func(r *rig, all *tally) (want float64)) {
			t.Helper()
			r := newRig(each)
			var quiet, all tally
			r.quiet(&quiet)
			want := load(r, &all)
			r.run(last)
			if rate := float64(all.decided) / last.Seconds(); rate < want {
				t.Errorf("%v a charge, %s: %.0f were decided in time in a second, want %.0f", each, is, rate, want)
			}
			if quiet.share() < least {
				t.Errorf("%v a charge, %s: of the quiet source %.3f were decided in time, want %.2f", each, is, quiet.share(), least)
			}
		}
		for _, connections := range []int{1, 20, 100} {
			for _, times := range []float64{0.8, 2, 5} {
				under(fmt.Sprintf("%d connections, %v times the capacity", connections, times), 0.95, func(r *rig, all *tally) float64 {
					return 0.85 * min(1, times) * r.flood(connections, times, all)
				})
			}
		}
		for _, outstanding := range []int{100, 1000, 10_000} {
			under(fmt.Sprint(outstanding, " outstanding"), 0.98, func(r *rig, all *tally) float64 {
				r.busy(outstanding, all)
				return 0
			})
		}
	}
}
