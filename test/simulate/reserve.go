package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// estimate is the number of units that a reservation charges in each of its buckets. Real costs are from 0 to realEnd-1.
const (
	estimate = 20
	realEnd  = 60
)

// reserving is a request that reserves units, with the requests that settle it. It has a bucket of its own,
// which shows the judge its charges.
type reserving struct {
	*request

	id      string  // the id of the reservation; "" before the answer
	sent    []int64 // the real costs in all settlements whose id is not forged
	settled bool    // an answer confirmed a settlement
	late    bool    // the reservation had expired before a settlement, by the clock of its sidecar
}

// reserve sends a request that reserves units. Later it sends no settlement, one, or several: with the same
// cost or different ones, to one sidecar or two, or with a forged id.
func (w *world) reserve(rng *rand.Rand, id string, p *process, within time.Duration) {
	v := &reserving{request: &request{id: id, witness: "own"}}
	w.requests++
	v.costs = []cost{{"own", id, estimate}, {"tokens", fmt.Sprint(rng.IntN(2)), estimate}}
	if rng.IntN(3) == 0 {
		v.costs = append(v.costs, cost{"budget", fmt.Sprint(rng.IntN(2)), estimate})
	}
	w.judge.reservations = append(w.judge.reservations, v)
	work := time.Duration(rng.Int64N(int64(80 * time.Millisecond)))
	settlements, real := rng.IntN(4), rng.Int64N(realEnd)
	v.allowedWith = func(c *limiter.Call) {
		if v.id = string(c.AppendID(nil)); v.id == limiter.None {
			w.judge.fail("request %s was allowed, and its answer has no id to settle", id)
			return
		}
		w.seen(sawReserved)
		for n := range settlements {
			if n > 0 {
				w.seen(faultSettledTwice)
				if rng.IntN(2) == 0 {
					real = rng.Int64N(realEnd)
				}
			}
			w.settleLater(rng, v, work, real, within)
		}
	}
	w.after(0, p, func() { p.deliver(rng, []*request{v.request}, within, nil) })
}

// settleLater makes a random process settle v when the work is done. If a settlement fails it is sent again, up
// to three times, unless its id is forged.
func (w *world) settleLater(rng *rand.Rand, v *reserving, work time.Duration, real int64, within time.Duration) {
	id, forged := v.id, rng.IntN(12) == 0
	if forged {
		w.seen(faultForged)
		b := []byte(id)
		at := rng.IntN(len(b))
		if b[at]++; rng.IntN(2) == 0 {
			b = b[:at]
		}
		id = string(b)
	} else {
		v.sent = append(v.sent, real)
	}
	tries := 4
	var try func()
	try = func() {
		p := w.processes[rng.IntN(len(w.processes))]
		w.after(0, p, func() {
			settled := p.settle(v, id, real, forged, within)
			if tries--; !settled && !forged && tries > 0 {
				w.after(time.Duration(rng.Int64N(int64(20*time.Millisecond))), nil, try)
			}
		})
	}
	w.after(work+time.Duration(rng.Int64N(int64(5*time.Millisecond))), nil, try)
}

// settle makes p settle v, as Envoy does at the end of a stream. It reports whether the answer confirms the
// settlement.
func (p *process) settle(v *reserving, id string, real int64, forged bool, within time.Duration) (settled bool) {
	if p.crashed {
		return false
	}
	w := p.w
	c := &limiter.Call{}
	c.Request.Domain = "sim"
	for i, key := range [...]string{"settle", "settle_end"} {
		d := c.AddDescriptor()
		d.Entries = append(d.Entries, descriptors.Entry{Key: key, Value: id})
		if i == 0 {
			d.Cost, d.Explicit, d.Declared = real, true, true
		}
	}
	ctx := context.Background()
	if within > 0 {
		end, cancel := context.WithDeadline(ctx, p.Now().Add(within))
		defer cancel()
		ctx = end
	}
	err := p.limiter.Check(ctx, c)
	if p.crashed { // the process has died, so the answer is lost
		return false
	}
	return w.judge.settlement(p, v, c, err, forged)
}

func (j *judge) settlement(p *process, v *reserving, c *limiter.Call, err error, forged bool) (settled bool) {
	w := j.w
	if err != nil {
		j.fail("settlement of %s: %v", v.request.id, err)
		return false
	}
	if forged {
		for i := range c.Settlements {
			if s := &c.Settlements[i]; s.Policy != nil {
				j.fail("a forged id of %s was accepted: %+v", v.request.id, s)
			}
		}
		return false
	}
	if len(c.Settlements) != len(v.costs) {
		j.fail("a settlement of %s settles %d buckets, want %d", v.request.id, len(c.Settlements), len(v.costs))
		return false
	}
	settled = true
	for i := range c.Settlements {
		s := &c.Settlements[i]
		settled = settled && !s.Failed()
		if s.Late {
			w.seen(sawLate)
			v.late = true
		}
		if s.Repeated {
			w.seen(sawSettledBefore)
		}
	}
	if settled == c.Denied {
		j.fail("settlement of %s: settled %v, denied %v", v.request.id, settled, c.Denied)
	}
	w.note("%s: answer to a settlement of %s: settled %v", p.name, v.request.id, settled)
	v.settled = v.settled || settled
	return settled
}

// reserved checks at the end how much v's own bucket was charged: the estimate or one of the real costs, once,
// or nothing if the request was not allowed.
func (j *judge) reserved(v *reserving) {
	b := j.named[cost{limit: "own", value: v.request.id}]
	if b == nil || j.losses+j.failovers > 0 {
		return // a new bucket may settle a reservation whose record is lost
	}
	may := slices.Clone(v.sent)
	if !v.settled || v.late {
		may = append(may, estimate)
	}
	if !v.allowed && (v.unknown || v.parted) || !v.allowed && !v.unknown {
		may = append(may, 0)
	}
	if v.parted && !j.w.faultless && !v.allowed {
		return // a refund of a part may be lost
	}
	if j.clockSteppedBack && b.charged >= 0 && b.charged <= realEnd {
		return // a refund may be smaller then
	}
	if !slices.Contains(may, b.charged) {
		j.fail("%s: its own bucket was charged %d, and may be charged %v: %s, settled %v", v.request.id, b.charged, may, v.request, v.settled)
	}
}

// consumed checks the buckets of reservations. Each may be charged its limit, plus the amounts by which real
// costs exceed their estimates.
func (j *judge) consumed(b *bucket) {
	capacity, beyond := int64(0), int64(0)
	for _, l := range b.numbers {
		capacity = max(capacity, l.Capacity)
	}
	for _, v := range j.reservations {
		for i := range v.costs {
			if v.costs[i].limit == b.limit && v.costs[i].value == b.value && len(v.sent) > 0 {
				beyond += max(0, slices.Max(v.sent)-estimate)
			}
		}
	}
	capacity *= int64(1 + j.resets[b.id()])
	if b.kind == algorithms.TokenBucket {
		l := b.numbers[0] // all configurations have the same number
		capacity += int64(b.last-b.first)*l.Rate/(int64(l.Period())) + 1
	}
	if j.losses+j.failovers == 0 && !j.clockStepped && (b.charged > capacity+beyond || b.charged < 0) {
		j.fail("%s %s: %d charged, the limit is %d and settlements may add %d", b.limit, b.value, b.charged, capacity, beyond)
	}
}
