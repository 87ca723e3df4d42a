package simulate

import (
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Flights take slots of a concurrency limit. The ttl is so long that no slot expires. So the work that the judge knows never
// exceeds the capacity, and at the end only the slots of clients and sidecars that died are left.

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
