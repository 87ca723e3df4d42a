package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// A request of a proxy may leave something open: reservations that its id settles, a reservation that its bucket settles,
// and slots. When the work is done, other requests settle and return all of it together, through any sidecar. They may
// charge further limits at the same time.

// estimate is the number of units that a reservation charges in each of its buckets. Real costs are from 0 to realEnd-1.
const (
	estimate = 20
	realEnd  = 60
)

// flight is a request that leaves something open. It has a bucket of its own if it reserves units for an id. That bucket
// shows the judge what was reserved and settled.
type flight struct {
	*request

	w        *world
	rng      *rand.Rand
	within   time.Duration
	reserves int   // the number of buckets that its id settles
	slots    []int // the positions of costs of concurrency limits
	meter    int   // the position of the cost of a limit that settles by bucket, or -1
	room     int   // the position of the cost of a room, or -1
	stay     *stay // nil without a room

	reserved limiter.Reserved // of a request for named limits: what its answer reserves
	begun    bool
	maybe    bool // its slots may be taken, because the outcome of an attempt is unknown

	id      string  // the id in its answer
	sent    []int64 // the real costs in all settlements whose id is not forged
	settled bool    // an answer confirmed a settlement
	late    bool    // the reservation had expired before a settlement, by the clock of its sidecar
}

// ending is a request that settles and returns what a flight has left open.
type ending struct {
	*flight

	id     string
	real   int64
	form   endForm
	forged bool
	tries  int // how often it may be sent again if it fails
}

type endForm int

const (
	byEntry  endForm = iota // an entry has the id, another one the real cost
	byHeader                // a header has the id, the descriptors of the reservation state their costs
	costless                // an entry has the id, and no cost is known
	endForms
	byName endForm = -1 // an application settles what it has reserved by name
)

// fly adds costs to r that leave something open, or none.
func (w *world) fly(rng *rand.Rand, r *request, within time.Duration) {
	f := &flight{request: r, w: w, rng: rng, within: within, meter: -1, room: -1}
	add := func(limit, value string) {
		r.costs = append(r.costs, cost{limit: limit, value: value, units: estimate})
	}
	if rng.IntN(2) == 0 {
		f.reserves = 2
		add("own", r.id)
		add("tokens", strconv.Itoa(rng.IntN(2)))
		if rng.IntN(3) == 0 {
			f.reserves++
			add("budget", strconv.Itoa(rng.IntN(2)))
		}
	}
	if rng.IntN(3) == 0 {
		f.meter = len(r.costs)
		add(meters[rng.IntN(len(meters))], strconv.Itoa(rng.IntN(2)))
	}
	for key := range 2 {
		if rng.IntN(3) == 0 {
			f.slots = append(f.slots, len(r.costs))
			r.costs = append(r.costs, cost{limit: "slots", value: strconv.Itoa(key), units: 1})
		}
	}
	f.addRoom()
	if r.flight = f; f.reserves > 0 {
		w.judge.flights = append(w.judge.flights, f)
	}
}

// flyNamed adds slots or a reservation to r, a request for named limits.
func (w *world) flyNamed(rng *rand.Rand, r *request, within time.Duration) {
	f := &flight{request: r, w: w, rng: rng, within: within, meter: -1, room: -1}
	if rng.IntN(2) == 0 {
		f.slots = append(f.slots, len(r.costs))
		r.costs = append(r.costs, cost{limit: "slots", value: strconv.Itoa(rng.IntN(2)), units: 1})
	}
	f.addRoom()
	if len(f.slots) == 0 && f.room < 0 || rng.IntN(2) == 0 {
		f.reserves = 1
		r.costs = append(r.costs, cost{limit: "own", value: r.id, units: estimate})
		w.judge.flights = append(w.judge.flights, f)
	}
	r.flight = f
}

// taken notes what the answer of a process means for the slots of a flight, and lets the flight begin if it is allowed for
// the first time.
func (f *flight) taken(p *process, c *limiter.Call, err error) {
	allowed, j := err == nil && !p.crashed && !c.Denied && c.Err == nil, f.w.judge
	unclear := p.crashed || err != nil || slices.ContainsFunc(c.Results, func(r limiter.Result) bool {
		return r.Decision.Err != nil && !errors.Is(r.Decision.Err, backend.ErrNotTaken)
	})
	if f.begun {
		return
	}
	for _, i := range f.slots {
		of := j.slotsOf(f.costs[i].value)
		switch {
		case f.maybe && allowed:
			of.lost--
			fallthrough
		case allowed:
			f.w.seen(sawSlot)
			if of.working++; of.working > f.w.capacity() && j.losses == 0 && j.resets[*f.costs[i].bucket()] == 0 {
				j.fail("%d slots of key %s are in use", of.working, f.costs[i].value)
			}
		case p.crashed && !f.maybe, f.underID && unclear && !f.maybe: // the answer is lost, or the request may be repeated
			of.lost++
		case !p.crashed: // p must return the slot itself if it may be taken
			of.entries[p]++
		}
	}
	f.maybe = f.maybe || unclear && (p.crashed || f.underID)
	if f.begun = allowed; !allowed {
		return
	}
	if f.underID {
		f.identify(c)
	} else {
		f.id = string(c.AppendID(nil))
	}
	switch {
	case (f.id == limiter.None) != (f.reserves == 0 && len(f.slots) == 0 && f.room < 0):
		j.fail("request %s was allowed, and reserves %d buckets and %d slots, but its id is %q", f.request.id, f.reserves, len(f.slots), f.id)
		return
	case f.reserves > 0:
		f.w.seen(sawReserved)
	}
	work := 60 * time.Millisecond
	if f.room >= 0 {
		f.stays(c)
		work *= 50
	}
	f.w.after(time.Duration(f.rng.Int64N(int64(work))), nil, f.end)
}

// identify notes what c has reserved by name, as the HTTP API does.
func (f *flight) identify(c *limiter.Call) {
	all := &f.reserved
	all.Domain, all.ID = limiter.PrefixNumber(c.Verdict.Domain.Name), limiter.IdempotencyID("reservation", f.request.id)
	for i := range c.Results {
		if part, ok := c.Part(i, ""); ok && c.Limits[c.Results[i].Descriptor].Reserve {
			part.Number = i
			all.Parts = append(all.Parts, part)
		}
	}
	for _, part := range c.Slots() {
		all.ID = c.SlotID()
		part.Key = slices.Clone(part.Key) // c is used again
		all.Parts = append(all.Parts, part)
	}
	f.id = f.w.processes[0].limiter.ID(all)
}

// end sends no request that ends f, one, or several with the same cost or different ones.
func (f *flight) end() {
	w, times, real := f.w, 1, f.rng.Int64N(realEnd)
	if f.stay != nil {
		f.stay.ended = true
	}
	switch n := f.rng.IntN(12); {
	case n == 0:
		times = 0
	case n < 5:
		times = n
	}
	for _, i := range f.slots {
		of := w.judge.slotsOf(f.costs[i].value)
		if of.working--; times == 0 {
			of.lost++
		}
	}
	for n := range times {
		if n > 0 {
			w.seen(faultSettledTwice)
			if f.rng.IntN(2) == 0 {
				real = f.rng.Int64N(realEnd)
			}
		}
		e := &ending{flight: f, id: f.id, real: real, form: endForm(f.rng.IntN(int(endForms))), tries: 4}
		if f.underID {
			e.form = byName
		}
		switch forges := e.form != byHeader && e.form != byName && n > 0 && f.rng.IntN(6) == 0; {
		case forges:
			e.forge()
		case e.form == costless:
			f.sent = append(f.sent, estimate)
		default:
			f.sent = append(f.sent, real)
		}
		w.after(time.Duration(n)*time.Duration(f.rng.Int64N(int64(5*time.Millisecond))), nil, func() { e.send(n == 0) })
	}
}

func (e *ending) forge() {
	e.w.seen(faultForged)
	b := []byte(e.id)
	at := e.rng.IntN(len(b))
	if b[at]++; e.rng.IntN(2) == 0 {
		b = b[:at]
	}
	e.id, e.forged, e.tries = string(b), true, 1
}

// send sends e to a random process. Only the first request that ends a flight settles by bucket: no store knows whether
// it was sent before.
func (e *ending) send(isFirst bool) {
	w, rng := e.w, e.rng
	r := &request{id: fmt.Sprintf("%s.%d", e.request.id, w.requests), end: e}
	w.requests++
	if isFirst && e.meter >= 0 {
		of := e.costs[e.meter]
		r.costs = append(r.costs, cost{limit: of.limit, value: of.value, units: 1 + e.real, settles: true})
	}
	if rng.IntN(4) == 0 {
		r.witness = "witness"
		r.costs = append(r.costs, cost{limit: "witness", value: r.id, units: 1},
			cost{limit: coldNames[rng.IntN(len(coldNames))], value: strconv.Itoa(rng.IntN(2)), units: 1 + rng.Int64N(3)})
	}
	p := w.processes[rng.IntN(len(w.processes))]
	if e.form == byName {
		w.after(0, p, func() { e.settle(p) })
		return
	}
	w.after(0, p, func() {
		isLog := (len(e.slots) > 0 || e.room >= 0) && !e.forged && rng.IntN(2) == 0
		if isLog || !e.forged {
			for _, i := range e.slots {
				w.judge.slotsOf(e.costs[i].value).entries[p]++
			}
		}
		if isLog && !p.crashed {
			p.limiter.ReturnSlots(e.id, limiter.ReporterLog)
		}
		p.deliver(rng, []*request{r}, e.within, nil)
	})
}

// settle ends a flight of an application, which repeats this until it succeeds.
func (e *ending) settle(p *process) {
	for _, i := range e.slots {
		e.w.judge.slotsOf(e.costs[i].value).entries[p]++
	}
	if p.crashed {
		return
	}
	reserved, c := e.reserved, &limiter.Call{}
	err := p.limiter.Settle(context.Background(), c, limiter.Settle{Reserved: &reserved, Real: e.real})
	if p.crashed {
		return
	}
	switch {
	case errors.Is(err, backend.ErrReused): // it was settled for another cost
		e.w.seen(sawSettledBefore)
		e.settled = true
	case err != nil && !errors.Is(err, backend.ErrPending):
		e.w.judge.fail("settlement of %s: %v", e.request.id, err)
	case err == nil && !c.Denied && !c.Failed:
		e.settled = true
	default:
		if e.tries--; e.tries > 0 {
			e.w.after(time.Duration(e.rng.Int64N(int64(20*time.Millisecond))), nil, func() { e.send(false) })
		}
	}
}

// addTo adds to c what ends the flight.
func (e *ending) addTo(c *limiter.Call) {
	add := func(key, value string) *limiter.Descriptor {
		d := c.AddDescriptor()
		d.Entries = append(d.Entries, descriptors.Entry{Key: key, Value: value})
		return d
	}
	switch e.form {
	case byEntry:
		d := add("settle", e.id)
		d.Cost, d.Explicit, d.Declared = e.real, true, true
	case byHeader:
		c.Request.ID = e.id
		for i := range e.costs {
			if k := &e.costs[i]; slices.Contains(settledByID, k.limit) {
				d := add(k.limit, k.value)
				d.Cost, d.Explicit, d.Declared = e.real, true, true
			}
		}
	}
	add("settle_end", e.id)
}

var settledByID, meters = []string{"own", "tokens", "budget"}, []string{"meter", "brief"}

// answered checks the answer to e.
func (e *ending) answered(s *sending, c *limiter.Call) {
	j, parts, settled, repeated := e.w.judge, 0, true, false
	for i := range c.Settlements {
		switch is := &c.Settlements[i]; {
		case is.Policy == nil && !e.forged && e.id != limiter.None:
			j.fail("the id of %s settles nothing: %v", e.request.id, is.Reason)
		case is.Policy == nil:
		case slices.Contains(meters, is.Policy.Name):
			j.metersAnswered(s, is)
		case e.forged:
			j.fail("a forged id of %s was accepted: %+v", e.request.id, is)
		default:
			parts++
			settled = settled && !is.Failed()
			if repeated = repeated || is.Repeated; is.Repeated {
				e.w.seen(sawSettledBefore)
			}
			if is.Late {
				e.w.seen(sawLate)
				e.late = true
			}
			if e.form == byHeader && !is.Failed() {
				e.w.seen(sawHeader)
			}
		}
	}
	if parts != e.reserves && !e.forged {
		j.fail("a settlement of %s settles %d buckets, want %d", e.request.id, parts, e.reserves)
	}
	if len(s.costs) == 0 && len(e.flight.slots) == 0 && e.room < 0 && !e.forged && settled == c.Denied && !(e.form == byHeader && repeated) {
		j.fail("settlement of %s: settled %v, denied %v", e.request.id, settled, c.Denied)
	}
	if e.forged {
		return
	}
	e.settled = e.settled || settled
	if e.stay != nil && !c.Failed {
		e.stay.returned = true
	}
	if e.tries--; (!settled || c.Failed) && e.tries > 0 {
		e.w.after(time.Duration(e.rng.Int64N(int64(20*time.Millisecond))), nil, func() { e.send(false) })
	}
}

// metersAnswered notes the answer to the settlement of a reservation by its bucket.
func (j *judge) metersAnswered(s *sending, is *limiter.Settlement) {
	j.w.seen(sawMeter)
	k := &s.costs[is.Descriptor]
	if !is.Failed() {
		j.named[*k.bucket()].confirmed += k.units
	}
}
