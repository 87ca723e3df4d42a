package simulate

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Flights take slots of two concurrency limits. The ttl of "slots" is so long that no slot expires. So the work that the judge
// knows never exceeds the capacity, and at the end only the slots of clients and sidecars that died are left. Flights of slow
// worlds also take "rooms", whose ttl is shorter than some flights. They renew them, or lose them.

// mostSlots is the capacity to which operators may raise the one of the configuration.
const slotCapacity, mostSlots = 3, 5

// slotLimit has the numbers of the limit with which package limiter returns slots.
var slotLimit = func() *algorithms.Limit {
	capacity := int64(algorithms.MaxSlots)
	l, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.Concurrency, Capacity: &capacity, Period: algorithms.MaxSlotTTL})
	if err != nil {
		panic(err)
	}
	return &l
}()

// capacity returns the largest capacity of slots in w.
func (w *world) capacity() int64 {
	if w.hasOperators {
		return mostSlots
	}
	return slotCapacity
}

// slotsOf is what the judge knows of one bucket of slots.
type slotsOf struct {
	working int64              // slots of clients that work
	lost    int64              // slots that nothing returns, because a client or a sidecar died
	entries map[*process]int64 // slots whose return a sidecar has accepted, or must send itself
}

func (j *judge) slotsOf(key string) *slotsOf {
	if j.slots[key] == nil {
		j.slots[key] = &slotsOf{entries: map[*process]int64{}}
	}
	return j.slots[key]
}

// slotsEnd checks that only slots are left whose client or sidecar died. A failover may lose a return, even one that was
// repeated: the repetition found nothing to return on the old master.
func (j *judge) slotsEnd() {
	if j.losses+j.failovers > 0 {
		return
	}
	for _, s := range j.w.servers {
		for name, v := range s.keys {
			if !v.bucket || v.state.By.Kind != algorithms.Concurrency {
				continue
			}
			if v.state.By.Period() == roomTTL {
				if s.get(name) != nil && !j.clockSteppedBack {
					j.fail("%s: slots are left, though all have expired", name)
				}
				continue
			}
			key := name[len(name)-1:]
			of := j.slotsOf(key)
			most := of.lost
			for p, n := range of.entries {
				if p.crashed {
					most += n
				}
			}
			if v.state.Value > most+of.working {
				j.fail("%d slots of key %s are left, at most %d of them lost their client or sidecar", v.state.Value, key, most)
			}
		}
	}
}

const roomTTL = algorithms.Second

// addRoom adds the cost of a room to f, or nothing.
func (f *flight) addRoom() {
	if f.w.isSlow && f.rng.IntN(2) == 0 {
		f.room = len(f.costs)
		f.costs = append(f.costs, cost{limit: "rooms", value: strconv.Itoa(f.rng.IntN(2)), units: 1})
	}
}

// stay is a room that a flight has taken, by the clock of the server: since from, and at least to until.
type stay struct {
	from, until algorithms.Micros
	ended       bool // its return may have been sent
	returned    bool // an answer confirms its return
}

// stays notes the room that c, the answer to f, has taken. The server allowed it, so fewer flights than the capacity held
// one at that moment.
func (f *flight) stays(c *limiter.Call) {
	k, j := &f.costs[f.room], f.w.judge
	at := slices.IndexFunc(c.Results, func(r limiter.Result) bool { return r.Descriptor == f.room })
	f.stay = &stay{from: c.Results[at].Decision.At}
	f.stay.until = f.stay.from + roomTTL
	held := 1
	for _, other := range j.rooms[k.value] {
		if !other.ended && other.from <= f.stay.from && other.until > f.stay.from {
			held++
		}
	}
	if held > slotCapacity && f.exact() {
		j.fail("%d rooms of key %s are in use", held, k.value)
	}
	j.rooms[k.value] = append(j.rooms[k.value], f.stay)
	if f.rng.IntN(4) > 0 {
		f.w.after(time.Duration(f.rng.Int64N(int64(time.Second))), nil, f.renew)
	}
}

// exact reports whether only returns and time free rooms: no loss, no reset and no step of a clock.
func (f *flight) exact() bool {
	j := f.w.judge
	return j.losses+j.failovers == 0 && !j.clockStepped && j.resets[*f.costs[f.room].bucket()] == 0
}

// renew renews the slots of f through any sidecar, again and again, and once more after its end.
func (f *flight) renew() {
	w, p := f.w, f.w.processes[f.rng.IntN(len(f.w.processes))]
	if !f.stay.ended {
		w.after(time.Duration(f.rng.Int64N(int64(time.Second))), nil, f.renew)
	}
	w.after(0, p, func() {
		if p.crashed {
			return
		}
		if f.rng.IntN(3) == 0 {
			p.limiter.RenewSlots(f.id, limiter.ReporterAccessLog)
			return
		}
		var r limiter.Reserved
		if !p.limiter.Open(f.id, &r) {
			w.judge.fail("%s cannot read the id of %s", p.name, f.request.id)
			return
		}
		server := w.judge.named[*f.costs[f.room].bucket()].server
		returned, sent := f.stay.returned, server.now()
		outcomes := p.limiter.Renew(context.Background(), &r)
		slots := slices.DeleteFunc(r.Parts, func(part limiter.ReservedPart) bool { return part.TTL == 0 })
		for i, outcome := range outcomes {
			f.renewed(&slots[i], outcome, returned, sent, server.now())
		}
	})
}

// renewed checks the outcome of a renewal that was sent and answered at these times of the server.
func (f *flight) renewed(part *limiter.ReservedPart, outcome limiter.SlotOutcome, returned bool, sent, answered algorithms.Micros) {
	w, isRoom := f.w, part.TTL == roomTTL
	switch {
	case returned && outcome == limiter.SlotRenewed && f.exact():
		w.judge.fail("a returned slot of %s was renewed", f.request.id)
	case returned && outcome == limiter.SlotLost:
		w.seen(sawNotRevived)
	case returned || !isRoom:
	case outcome == limiter.SlotRenewed:
		w.seen(sawRenewed)
		f.stay.until = max(f.stay.until, sent+roomTTL)
	case outcome == limiter.SlotLost && !f.stay.ended && answered < f.stay.until && f.exact():
		w.judge.fail("%s has lost its room %d us too early", f.request.id, f.stay.until-answered)
	case outcome == limiter.SlotLost && !f.stay.ended:
		w.seen(sawRoomExpired)
	}
}

// putSlots stores the new state of a concurrency limit.
func (s *server) putSlots(c *charge, b *algorithms.Bucket, now algorithms.Micros) {
	s.w.note("%s: slots of %s, operation %d: %+v", s.name, c.key[len(c.key)-1:], c.terms.Slot.Op, b.Decision)
	b.State.Slots.Apply()
	switch {
	case b.State.By == nil:
	case b.State.Prev == 0:
		s.put(c.key, nil)
	default:
		s.put(c.key, &value{state: b.State, bucket: true, until: expiry(b.State, now)})
	}
}
