package algorithms_test

import (
	"math/rand/v2"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func concurrency(t testing.TB, capacity int64, ttl algorithms.Micros, overdraw bool) *algorithms.Limit {
	t.Helper()
	l, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.Concurrency, Capacity: &capacity, Period: ttl, Overdraw: overdraw})
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

func slotOf(id byte, op algorithms.SlotOp, ttl algorithms.Micros) *algorithms.Slot {
	return &algorithms.Slot{ID: [16]byte{id}, Op: op, TTL: ttl}
}

// TestSlotsEqualTheReferenceModel tests everything that random times reach.
func TestSlots(t *testing.T) {
	const s = algorithms.Second
	const take, back, renew = algorithms.TakeSlot, algorithms.ReturnSlot, algorithms.RenewSlot
	type step struct {
		at       algorithms.Micros
		op       algorithms.SlotOp
		id       byte
		cost     int64
		allowed  bool
		inFlight int64
		lost     int64
	}
	for name, test := range map[string]struct {
		overdraw bool
		steps    []step
	}{
		"a slot expires after the ttl, to the microsecond": {steps: []step{
			{0, take, 1, 3, true, 3, 0},
			{10*s - 1, take, 2, 1, false, 3, 0},
			{10 * s, back, 1, 3, true, 0, 3}, // it has expired
			{10 * s, take, 2, 1, true, 1, 3}, // the units of the expired slot
			{10 * s, back, 1, 3, true, 1, 3},
			{15 * s, renew, 2, 1, true, 1, 0},
			{25 * s, renew, 2, 1, true, 0, 1}, // it has expired again
		}},
		"a cost of 0 and a negative cost take nothing": {steps: []step{
			{0, take, 1, 3, true, 3, 0}, {0, take, 2, 0, true, 3, 0}, {0, take, 2, -1, true, 3, 0},
		}},
		"a clock that steps back by a minute waits, and by more moves all ends": {steps: []step{
			{100 * s, take, 1, 2, true, 2, 0},
			{50 * s, take, 2, 1, true, 3, 0}, // at 100 s
			{109 * s, take, 3, 1, false, 3, 0},
			{10 * s, take, 3, 1, false, 3, 0}, // a step of 90 s: slots end at 20 s
			{20*s - 1, take, 3, 1, false, 3, 0},
			{20 * s, take, 3, 1, true, 1, 3},
		}},
		"shadow mode takes beyond capacity, up to 10,000 units": {overdraw: true, steps: []step{
			{0, take, 1, 3, true, 3, 0}, {0, take, 2, 9_000, false, 9_003, 0}, {0, take, 3, 998, false, 9_003, 0}, {0, back, 2, 9_000, true, 3, 0},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := concurrency(t, 3, 10*s, test.overdraw)
			var state algorithms.State
			for i, step := range test.steps {
				var d algorithms.Decision
				state, d = l.Take(state, step.at, algorithms.Charge{Cost: step.cost, Slot: slotOf(step.id, step.op, 10*s)})
				if inFlight := l.Capacity - d.Value; d.Allowed != step.allowed || inFlight != step.inFlight || d.Lost != step.lost || d.RetryAfter != 0 || d.ResetAfter != 0 {
					t.Errorf("step %d: got %+v, %d in flight, want %+v", i, d, inFlight, step)
				}
			}
		})
	}
}

func TestACostAboveCapacityNeverFits(t *testing.T) {
	l := concurrency(t, 3, algorithms.Second, false)
	if _, d := l.Take(algorithms.State{}, 0, algorithms.Charge{Cost: 4, Slot: slotOf(1, algorithms.TakeSlot, 0)}); d.Allowed || !d.Never || l.Most(false) != 3 {
		t.Errorf("got %+v, want a denial that never ends", d)
	}
}

func TestAChangedCapacityKeepsSlots(t *testing.T) {
	const s = algorithms.Second
	large, small := concurrency(t, 5, 10*s, false), concurrency(t, 2, 20*s, false)
	state, _ := large.Take(algorithms.State{}, 0, algorithms.Charge{Cost: 4, Slot: slotOf(1, algorithms.TakeSlot, 0)})
	state, d := small.Take(state, 0, algorithms.Charge{Cost: 1, Slot: slotOf(2, algorithms.TakeSlot, 0)})
	if d.Allowed || d.Value != -2 || d.Remaining != 0 {
		t.Errorf("the lower limit: got %+v, want a denial with 4 units in flight", d)
	}
	if _, d = small.Take(state, 0, algorithms.Charge{DryRun: true}); !d.Allowed {
		t.Errorf("a lower capacity makes no debt: got %+v", d)
	}
	if at := state.FreshAt(); at != 10*s {
		t.Errorf("the state is fresh at %d, want the end of its last slot", at)
	}
	if _, d = small.Take(state, 10*s, algorithms.Charge{Cost: 2, Slot: slotOf(2, algorithms.TakeSlot, 0)}); !d.Allowed {
		t.Errorf("the slot keeps the ttl with which it was taken: got %+v", d)
	}
}

// slotList is the reference model of a bucket: a list without a heap or sums.
type slotList struct {
	last  algorithms.Micros
	slots []struct {
		id      byte
		cost    int64
		expires algorithms.Micros
	}
}

func (m *slotList) at(now algorithms.Micros, write bool) algorithms.Micros {
	switch back := m.last - now; {
	case len(m.slots) == 0 || back <= 0:
		return now
	case back <= 60*algorithms.Second:
		return m.last
	case write:
		for i := range m.slots {
			m.slots[i].expires -= back
		}
		m.last = now
	}
	return now
}

func (m *slotList) take(l *algorithms.Limit, now algorithms.Micros, a algorithms.Charge) (allowed bool, lost int64) {
	at, sum, mine := m.at(now, true), int64(0), -1
	for i := range m.slots {
		if live := m.slots[i].expires > at; live && m.slots[i].id == a.Slot.ID[0] && m.slots[i].cost == a.Cost {
			mine = i
		} else if live {
			sum += m.slots[i].cost
		}
	}
	if a.Slot.Op != algorithms.TakeSlot && mine < 0 {
		return true, a.Cost
	}
	if a.Slot.Op == algorithms.TakeSlot && sum+a.Cost > l.Capacity {
		return false, 0
	}
	kept := m.slots[:0:0]
	for i := range m.slots {
		if m.slots[i].expires > at && i != mine {
			kept = append(kept, m.slots[i])
		} else if i != mine && a.Slot.Op == algorithms.TakeSlot {
			lost += m.slots[i].cost
		}
	}
	m.slots, m.last = kept, at
	if ttl := a.Slot.TTL; a.Slot.Op != algorithms.ReturnSlot {
		m.slots = append(m.slots, struct {
			id      byte
			cost    int64
			expires algorithms.Micros
		}{a.Slot.ID[0], a.Cost, at + ttl})
	}
	return true, lost
}

func (m *slotList) inFlight(now algorithms.Micros) (sum int64) {
	at := m.at(now, false)
	for _, s := range m.slots {
		if s.expires > at {
			sum += s.cost
		}
	}
	return sum
}

func TestSlotsEqualTheReferenceModel(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		l := concurrency(t, 1+rng.Int64N(12), 10*algorithms.Second, false)
		var state algorithms.State
		var model slotList
		now := 1000 * algorithms.Second
		for i := range 400 {
			switch rng.IntN(40) {
			case 0:
				now -= algorithms.Micros(rng.Int64N(int64(90 * algorithms.Second)))
			case 1:
				now += algorithms.Micros(rng.Int64N(int64(20 * algorithms.Second)))
			default:
				now += algorithms.Micros(rng.Int64N(int64(algorithms.Second)))
			}
			op := algorithms.SlotOp(rng.IntN(3))
			a := algorithms.Charge{Cost: 1 + rng.Int64N(3), Slot: slotOf(byte(rng.IntN(30)), op, l.Period())}
			dry := a
			dry.DryRun = true
			_, peeked := l.Take(state, now, dry)
			next, d := l.Take(state, now, a)
			state = next
			allowed, lost := model.take(l, now, a)
			if d.Allowed != allowed || d.Lost != lost || peeked.Allowed != allowed {
				t.Fatalf("seed %d, step %d: %+v at %d: got %+v, want allowed %v, lost %d", seed, i, a, now, d, allowed, lost)
			}
			_, look := l.Take(state, now, algorithms.Charge{DryRun: true})
			if got, want := l.Capacity-look.Value, model.inFlight(now); got != want {
				t.Fatalf("seed %d, step %d: %d units in flight, want %d", seed, i, got, want)
			}
			if fresh := state.FreshAt(); model.inFlight(fresh) > 0 {
				t.Fatalf("seed %d, step %d: slots at %d, when the state equals a new one", seed, i, fresh)
			}
		}
	}
}
