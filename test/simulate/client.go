package simulate

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// request is a request of a client. The client may send it several times under an ID.
type request struct {
	id       string
	domain   string // "" means the domain sim
	costs    []cost
	witness  string // the limit that has a bucket for this request only; "" means none
	underID  bool
	canceled atomic.Bool
	flight   *flight // nil if the request leaves nothing open
	end      *ending // nil if the request does not end a flight

	parted    bool // its charges are on two servers, in two slots, or sharded
	attempts  int
	allowed   bool
	denied    bool
	charged   bool // it was allowed, or denied by its limits in quota mode only
	untouched int  // the number of answers which state that nothing was charged
	unknown   bool // an attempt has no answer, or its answer does not state whether it was charged

	paid        [][]payment           // the payments according to each answer that allowed the request
	allowedWith func(c *limiter.Call) // called with each answer that allows it, or only the first if underID; may be nil
}

// cost is the number of units that a request consumes of a limit, for a key.
type cost struct {
	limit, value string
	units        int64
	settles      bool // the request states this cost to settle a reservation by its bucket
}

func (c *cost) bucket() *cost { return &cost{limit: c.limit, value: c.value} }

// sending is one attempt to send a request to a process.
type sending struct {
	*request

	process       *process
	at            time.Duration // when it was sent, by the monotonic clock of the process
	moment        int64         // when it was sent, by loop.now
	within        time.Duration // the time within which the answer must arrive
	pause         int64         // process.pausedUntil when it was sent
	answered      bool
	unitsSufficed bool
	epochs        int64 // the sum of the epochs of its buckets when it was sent; judge.peek explains epochs
	retries       []retry
	snapshot      *limiter.Snapshot
}

// delivery has the requests from one read of a connection. It is reused, because listeners reuse their
// buffers.
type delivery struct {
	process *process
	batch   *limiter.Batch
	calls   []*limiter.Call
	planned []bool
	sent    []*sending
}

func (w *world) client(n int, rng *rand.Rand, length time.Duration) {
	hot, gap := rng.IntN(3) == 0, time.Duration(100+rng.IntN(8000))*time.Microsecond
	if hot {
		gap = time.Duration(100+rng.IntN(800)) * time.Microsecond
	}
	if w.isSlow {
		gap *= 10
	}
	within := []time.Duration{0, 0, 0, 20, 20, 20, 12, 12, 6, 3}[rng.IntN(10)] * time.Millisecond
	source := &backend.Source{Flush: func() {}}
	var next func()
	sent, left, key := 0, 2+rng.IntN(10), ""
	pays := !hot && rng.IntN(6) == 0
	if hot {
		left, key = 10+rng.IntN(40), hotNames[rng.IntN(len(hotNames))]
		if rng.IntN(3) == 0 {
			key = coldNames[rng.IntN(len(coldNames))]
		}
	}
	next = func() {
		if left--; left < 0 || w.now > int64(w.length) {
			return
		}
		w.after(time.Duration(rng.Int64N(int64(2*gap))), nil, next)
		p := w.processes[(n+rng.IntN(2))%len(w.processes)]
		switch {
		case !hot && !pays && rng.IntN(4) == 0:
			sent++
			w.sendOnce(rng, fmt.Sprintf("o%d.%d", n, sent), p, within)
		case !hot && rng.IntN(24) == 0:
			w.reset(rng, p)
		case pays || !hot && rng.IntN(6) == 0:
			sent++
			w.pay(rng, fmt.Sprintf("p%d.%d", n, sent), p, within)
		default:
			several := make([]*request, 1+rng.IntN(3))
			for i := range several {
				sent++
				several[i] = w.draw(rng, fmt.Sprintf("%d.%d", n, sent), key, within)
			}
			w.after(0, p, func() { p.deliver(rng, several, within, source) })
		}
	}
	w.after(time.Duration(rng.Int64N(int64(length/2))), nil, next)
}

// hotKey is charged so often that sidecars remember its denials.
const hotKey = "h"

var hotNames, coldNames = []string{"hotday", "hotwindow", "hotbucket", "sharded", "shardday"}, []string{"day", "window", "bucket", "sure", "slide", "log", "queue", "sharded", "shade", "debtor", "guarded"}

// quotaNames are limits in quota mode. Each is charged alone. They deny a request only together.
var quotaNames = []string{"quota", "burst"}

func isQuota(limit string) bool { return slices.Contains(quotaNames, limit) }

func (r *request) addQuotas(rng *rand.Rand) {
	for _, name := range quotaNames {
		if rng.IntN(3) > 0 {
			r.costs = append(r.costs, cost{limit: name, value: strconv.Itoa(rng.IntN(2)), units: 1 + rng.Int64N(6)})
		}
	}
}

// otherNames are limits whose on_backend_failure is not deny.
var otherNames = []string{"lenient", "strict", "share"}

// draw returns a random request. If hot is not "", it is the name of a limit, and the request charges one of hotNames or
// this limit.
func (w *world) draw(rng *rand.Rand, id, hot string, within time.Duration) *request {
	r := &request{id: id, witness: "witness"}
	w.requests++
	if hot != "" {
		if rng.IntN(8) == 0 {
			hot = hotNames[rng.IntN(len(hotNames))]
		}
		r.costs = append(r.costs, cost{limit: hot, value: hotKey, units: 1 + rng.Int64N(2)*rng.Int64N(3)})
		if rng.IntN(4) > 0 {
			r.witness = ""
			return r
		}
	}
	if rng.IntN(8) == 0 {
		r.witness = ""
		for range 1 + rng.IntN(2) {
			r.costs = append(r.costs, cost{limit: otherNames[rng.IntN(len(otherNames))], value: strconv.Itoa(rng.IntN(2)), units: 1 + rng.Int64N(3)})
		}
		return r
	}
	r.costs = append(r.costs, cost{limit: r.witness, value: r.id, units: 1})
	for range rng.IntN(3) {
		r.costs = append(r.costs, cost{limit: coldNames[rng.IntN(len(coldNames))], value: strconv.Itoa(rng.IntN(2)), units: 1 + rng.Int64N(3)})
	}
	if w.hasOperators && rng.IntN(2) == 0 {
		r.costs = append(r.costs, cost{limit: "tuned", value: strconv.Itoa(rng.IntN(2)), units: 1 + rng.Int64N(3)})
	}
	if rng.IntN(4) == 0 {
		r.addQuotas(rng)
	}
	rng.Shuffle(len(r.costs), func(i, j int) { r.costs[i], r.costs[j] = r.costs[j], r.costs[i] })
	if rng.IntN(2) == 0 {
		w.fly(rng, r, within)
	}
	return r
}

func (p *process) deliver(rng *rand.Rand, requests []*request, within time.Duration, source *backend.Source) {
	w := p.w
	var d *delivery
	if n := len(p.free); n > 0 {
		d = p.free[n-1]
		p.free = p.free[:n-1]
	} else {
		d = &delivery{process: p, batch: p.limiter.NewBatch()}
	}
	d.batch.Reset()
	d.sent, d.planned = d.sent[:0], d.planned[:0]
	for i, r := range requests {
		if i == len(d.calls) {
			d.calls = append(d.calls, &limiter.Call{})
		}
		c := d.calls[i]
		c.Reset()
		c.Request.Domain, c.Returns = cmp.Or(r.domain, "sim"), true
		for _, k := range r.costs {
			x := c.AddDescriptor()
			x.Entries = append(x.Entries, descriptors.Entry{Key: k.limit, Value: k.value})
			x.Cost = k.units
			if slices.Contains(meters, k.limit) {
				if x.Explicit, x.Declared = true, true; !k.settles {
					x.Cost = 0
				}
			}
		}
		if r.end != nil {
			r.end.addTo(c)
		}
		if within > 0 && rng.IntN(16) == 0 {
			c.Canceled = &r.canceled
			w.afterPlain(time.Duration(rng.Int64N(int64(within))), p, func() {
				w.seen(faultCancel)
				r.canceled.Store(true)
			})
		}
		d.sent = append(d.sent, w.recordSending(p, r, within))
		planned, err := d.batch.Add(c)
		if err != nil {
			w.judge.fail("request %s: %v", r.id, err)
		}
		d.planned = append(d.planned, planned)
		w.judge.planned(p, r, c)
		s := d.sent[i]
		s.snapshot = c.Snapshot
		s.unitsSufficed, s.epochs = w.judge.peeks(s, c)
		s.retries = w.judge.retriesOf(s.retries[:0], c)
	}
	deadline := time.Time{}
	if within > 0 {
		deadline = p.Now().Add(within)
	}
	returned, done := false, false
	end := func() {
		for i := range d.sent {
			d.finish(i)
		}
		p.free = append(p.free, d)
	}
	d.batch.Submit(deadline, source, func() {
		if done = true; returned {
			end()
		}
	})
	returned = true
	if done {
		end()
		return
	}
	for i := range d.sent {
		if d.planned[i] && d.batch.Known(d.calls[i]) {
			d.finish(i)
		}
	}
}

// finish answers request i, unless it already has an answer or could not be added to the batch.
func (d *delivery) finish(i int) {
	if s := d.sent[i]; !s.answered && d.planned[i] {
		d.batch.Finish(d.calls[i])
		d.process.w.judge.answered(s, d.calls[i], nil)
	}
}

func (w *world) recordSending(p *process, r *request, within time.Duration) *sending {
	s := &sending{request: r, process: p, at: p.monotonic(), moment: w.now, within: timeout, pause: p.pausedUntil}
	if within > 0 {
		s.within = min(timeout, max(0, within-margin))
	}
	r.attempts++
	w.judge.sent(s)
	return s
}

// sendOnce sends a request with an ID for named limits. It may send the request again.
func (w *world) sendOnce(rng *rand.Rand, id string, p *process, within time.Duration) {
	r := &request{id: id, witness: "once", underID: true}
	w.requests++
	r.costs = []cost{{limit: "once", value: r.id, units: 1}, {limit: "reserved", value: strconv.Itoa(rng.IntN(2)), units: 1 + rng.Int64N(3)}}
	if rng.IntN(3) == 0 {
		r.costs = append(r.costs, cost{limit: "quick", value: strconv.Itoa(rng.IntN(2)), units: 1 + rng.Int64N(3)})
	}
	switch rng.IntN(4) {
	case 0, 1:
		w.flyNamed(rng, r, within)
	case 2: // they cannot be combined with slots
		r.addQuotas(rng)
	}
	w.checkRepeatedly(rng, r, p, within)
}

func (w *world) checkRepeatedly(rng *rand.Rand, r *request, p *process, within time.Duration) {
	w.after(0, p, func() { p.check(r, within) })
	for range rng.IntN(3) {
		w.seen(faultRepeat)
		p := w.processes[rng.IntN(len(w.processes))]
		w.after(time.Duration(rng.Int64N(int64(60*time.Millisecond))), p, func() { p.check(r, within) })
	}
}

// check makes a process answer a request under its ID, in the same way as the HTTP API.
func (p *process) check(r *request, within time.Duration) {
	if p.crashed {
		return
	}
	c := &limiter.Call{}
	c.Request.Domain = cmp.Or(r.domain, "sim")
	for _, k := range r.costs {
		c.Limits = append(c.Limits, limiter.NamedCharge{Name: k.limit, Key: []string{k.value}, Count: k.units, Reserve: k.limit == "own"})
	}
	c.IdempotencyKey = limiter.IdempotencyKey{ID: r.id, Lifetime: 10 * 60 * algorithms.Second}
	ctx := context.Background()
	if within > 0 {
		end, cancel := context.WithDeadline(ctx, p.Now().Add(within))
		defer cancel()
		ctx = end
	}
	s := p.w.recordSending(p, r, within)
	err := p.limiter.Check(ctx, c)
	p.w.judge.answered(s, c, err)
}
