package simulate

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Some requests take slots of a concurrency limit, work for a while, and return them through any sidecar. The ttl is so
// long that no slot expires. So the work that the judge knows never exceeds the capacity, and at the end only the slots
// of clients and sidecars that died are left.

const slotCapacity = 3

// slotLimit has the numbers of the limit with which package limiter returns slots.
var slotLimit = func() *algorithms.Limit {
	capacity := int64(algorithms.MaxSlots)
	l, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.Concurrency, Capacity: &capacity, Period: algorithms.MaxSlotTTL})
	if err != nil {
		panic(err)
	}
	return &l
}()

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

// hold makes p take one slot, or one in each of two buckets.
func (w *world) hold(rng *rand.Rand, p *process, within time.Duration) {
	keys := []string{strconv.Itoa(rng.IntN(2))}
	if rng.IntN(3) == 0 {
		keys = []string{"0", "1"}
	}
	work, dies, door := time.Duration(rng.Int64N(int64(60*time.Millisecond))), rng.IntN(12) == 0, rng.IntN(2)
	w.after(0, p, func() {
		c, id := p.takeSlots(keys, within)
		w.note("%s: slots of %v taken: %v", p.name, keys, c != nil)
		for _, key := range keys {
			of := w.judge.slotsOf(key)
			switch {
			case p.crashed: // the answer is lost, and the slot may be taken
				of.lost++
			case c == nil:
				of.entries[p]++
			default:
				w.seen(sawSlot)
				if of.working++; of.working > slotCapacity && w.judge.losses == 0 {
					w.judge.fail("%d slots of key %s are in use", of.working, key)
				}
			}
		}
		if p.crashed || c == nil {
			return
		}
		w.after(work, nil, func() {
			for _, key := range keys {
				of := w.judge.slotsOf(key)
				if of.working--; dies {
					of.lost++
				}
			}
			if !dies {
				w.giveBack(id, keys, door == 0, w.processes[rng.IntN(len(w.processes))])
			}
		})
	})
}

// takeSlots returns nil if the request is not allowed.
func (p *process) takeSlots(keys []string, within time.Duration) (c *limiter.Call, id string) {
	if p.crashed {
		return nil, ""
	}
	c = &limiter.Call{}
	c.Request.Domain, c.Returns = "sim", true
	for _, key := range keys {
		d := c.AddDescriptor()
		d.Entries, d.Cost = append(d.Entries, descriptors.Entry{Key: "slots", Value: key}), 1
	}
	ctx := context.Background()
	if within > 0 {
		end, cancel := context.WithDeadline(ctx, p.Now().Add(within))
		defer cancel()
		ctx = end
	}
	if err := p.limiter.Check(ctx, c); err != nil || c.Denied {
		return nil, ""
	}
	return c, string(c.AppendID(nil))
}

// giveBack returns the slots of an id through p, by a call that nobody waits for, or by a settle-done that is repeated
// until it succeeds.
func (w *world) giveBack(id string, keys []string, detached bool, p *process) {
	w.after(0, p, func() {
		if p.crashed {
			w.giveBack(id, keys, detached, w.processes[0])
			return
		}
		for _, key := range keys {
			w.judge.slotsOf(key).entries[p]++
		}
		if detached {
			p.limiter.ReturnSlots(id, limiter.DoorLog)
			return
		}
		c := &limiter.Call{}
		c.Request.Domain = "sim"
		d := c.AddDescriptor()
		d.Entries = append(d.Entries, descriptors.Entry{Key: "settle_end", Value: id})
		_ = p.limiter.Check(context.Background(), c) // if it fails, p repeats the return itself
	})
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

// chargedSlots stores the new states of concurrency limits in a group.
func (s *server) chargedSlots(group []charge, buckets []algorithms.Bucket, now algorithms.Micros) {
	for i := range buckets {
		state := &buckets[i].State
		s.w.note("%s: slots of %s, operation %d: %+v", s.name, group[i].key[len(group[i].key)-1:], group[i].terms.Slot.Op, buckets[i].Decision)
		state.Slots.Apply()
		if state.By == nil {
			continue
		}
		if state.Prev == 0 {
			s.put(group[i].key, nil)
		} else {
			s.put(group[i].key, &value{state: *state, bucket: true, until: expiry(*state, now)})
		}
	}
}

func isSlots(group []charge) bool {
	return slices.ContainsFunc(group, func(c charge) bool { return c.limit.Kind == algorithms.Concurrency })
}
