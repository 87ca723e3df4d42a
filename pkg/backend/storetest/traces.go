package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	_ "time/tzdata" // so that the suite needs no time zone files of the machine

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
)

// calendars has days and weeks of zones whose clocks change twice a year; nil means no calendar.
var calendars = func() []*algorithms.Calendar {
	zone := func(name string) *time.Location {
		zone, err := time.LoadLocation(name)
		if err != nil {
			panic(err)
		}
		return zone
	}
	return []*algorithms.Calendar{
		calendar.Day.In(zone("Europe/Berlin")),
		calendar.Day.In(zone("America/New_York")),
		calendar.Week.In(zone("Europe/Berlin")),
		nil,
	}
}()

// Specs returns a limit of each kind, and some variants.
func Specs() []algorithms.Spec {
	n := func(v int64) *int64 { return &v }
	epoch, late := algorithms.Micros(0), algorithms.Micros(123_456)
	s := algorithms.Second
	return []algorithms.Spec{
		{Kind: algorithms.TokenBucket, Rate: 7, Period: s},
		{Kind: algorithms.TokenBucket, Rate: 10, Period: 60 * s, Capacity: n(5), MaxReserved: n(8)},
		{Kind: algorithms.TokenBucket, Rate: 3, Period: s, Capacity: n(9), Initial: n(2)},
		{Kind: algorithms.TokenBucket, Rate: 20, Period: s, Overdraw: true, MaxReserved: n(30)},
		{Kind: algorithms.TokenBucket, Rate: 999_983, Period: algorithms.Day, Capacity: n(90_000_000)},
		{Kind: algorithms.TokenBucket, Rate: 2, Period: s, Capacity: n(6), Minimum: &algorithms.Rate{Units: 3, Period: s}},
		{Kind: algorithms.FixedWindow, Rate: 5, Period: s, Start: &epoch},
		{Kind: algorithms.FixedWindow, Rate: 4, Period: 2 * s, Capacity: n(11), Initial: n(1), Start: &late},
		{Kind: algorithms.FixedWindow, Rate: 6, Period: s, MaxReserved: n(12)},
		{Kind: algorithms.FixedWindow, Rate: 3, Period: s, Capacity: n(7), Start: &late},
		{Kind: algorithms.FixedWindow, Rate: 5, Period: s, Start: &epoch, PerRequest: true},
		{Kind: algorithms.FixedWindow, Rate: 5, Period: s, Start: &epoch, TakesDenied: true},
		{Kind: algorithms.FixedWindow, Rate: 8, Period: s, Start: &epoch, Overdraw: true},
		{Kind: algorithms.SlidingWindow, Rate: 9, Period: s},
		{Kind: algorithms.SlidingLog, Rate: 6, Period: s},
		{Kind: algorithms.LeakyBucket, Rate: 5, Period: s, Capacity: n(4)},
		{Kind: algorithms.FixedWindow, Rate: 0, Period: s, Start: &epoch},
		{Kind: algorithms.TokenBucket, Rate: 4, Period: s, Penalty: &algorithms.Penalty{After: 2, For: s, Max: 4 * s}},
		{Kind: algorithms.FixedWindow, Rate: 3, Period: s, Capacity: n(5), Initial: n(1), Penalty: &algorithms.Penalty{After: 3, For: s / 2, Max: 3 * s}},
		{Kind: algorithms.SlidingLog, Rate: 3, Period: s, Penalty: &algorithms.Penalty{After: 2, For: s, Max: 60 * s}},
		{Kind: algorithms.FixedWindow, Rate: 4, Calendar: calendars[0], Penalty: &algorithms.Penalty{After: 2, For: s, Max: algorithms.Day}},
		{Kind: algorithms.FixedWindow, Rate: 5, Period: s, Start: &epoch, TakesDenied: true, Penalty: &algorithms.Penalty{After: 1, For: s, Max: s}},
		{Kind: algorithms.TokenBucket, Rate: 999_983, Period: algorithms.Day, Capacity: n(90_000_000), Penalty: &algorithms.Penalty{After: 1, For: s, Max: 8 * s}},
		{Kind: algorithms.LeakyBucket, Rate: 5, Period: s, Capacity: n(4), Penalty: &algorithms.Penalty{After: 3, For: s, Max: 2 * s}},
		{Kind: algorithms.SlidingWindow, Rate: 9, Period: s, Penalty: &algorithms.Penalty{After: 2, For: s, Max: 2 * s}},
		{Kind: algorithms.TokenBucket, Rate: 2, Period: s, Capacity: n(6), Minimum: &algorithms.Rate{Units: 3, Period: s}, Penalty: &algorithms.Penalty{After: 2, For: s, Max: 2 * s}},
		{Kind: algorithms.FixedWindow, Rate: 5, Calendar: calendars[0]},
		{Kind: algorithms.FixedWindow, Rate: 4, Capacity: n(11), Initial: n(1), MaxReserved: n(30), Calendar: calendars[0]},
		{Kind: algorithms.TokenBucket, Rate: 7, Period: s, Capacity: n(30), Settles: true},
		{Kind: algorithms.TokenBucket, Rate: 5, Period: 2 * s, Capacity: n(20), Initial: n(6), MaxReserved: n(4), Settles: true, MaxDebt: n(9)},
		{Kind: algorithms.TokenBucket, Rate: 999_983, Period: algorithms.Day, Capacity: n(90_000_000), Settles: true, MaxDebt: n(3)},
		{Kind: algorithms.FixedWindow, Rate: 20, Period: 2 * s, Settles: true, MaxDebt: n(15)},
		{Kind: algorithms.FixedWindow, Rate: 20, Capacity: n(15), Initial: n(10), Calendar: calendars[0], Settles: true},
		{Kind: algorithms.TokenBucket, Rate: 5, Period: s, Capacity: n(30), Settles: true, MaxDebt: n(9), OpenFor: 2 * s},
		{Kind: algorithms.TokenBucket, Rate: 5, Period: s, Capacity: n(30), Initial: n(20), Settles: true, OpenFor: 90 * s},
		{Kind: algorithms.FixedWindow, Rate: 20, Period: 4 * s, Settles: true, OpenFor: 3 * s},
		{Kind: algorithms.Concurrency, Capacity: n(9), Period: 2 * s},
		{Kind: algorithms.Concurrency, Capacity: n(4), Period: 90 * s},
		{Kind: algorithms.Concurrency, Capacity: n(5), Period: 5 * s, Overdraw: true},
	}
}

// traces compares the decisions on one random trace of batches, groups and single charges with those of the
// reference implementation. Time passes in steps, sometimes backwards, and limits change now and then.
// blocked is the number of decisions by blocked buckets.
func traces(t *testing.T, seed uint64, clock *Clock, store backend.Store) (blocked int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	specs := Specs()
	rng.Shuffle(len(specs), func(i, j int) { specs[i], specs[j] = specs[j], specs[i] })
	specs = specs[:8] // so that each bucket gets many charges
	originals := slices.Clone(specs)
	limits := make([]*algorithms.Limit, len(specs))
	former := make([]*algorithms.Limit, len(specs)) // limits before their numbers changed, which some charges still use
	compile := func(i int) {
		limit, err := algorithms.Compile(specs[i])
		if err != nil {
			t.Fatal(err)
		}
		former[i], limits[i] = limits[i], &limit
	}
	for range 2 {
		for i := range specs {
			compile(i)
		}
	}
	reference := reference{states: map[string]algorithms.State{}, records: map[[16]byte][]backend.Decision{}}
	now, retry := Start, algorithms.Micros(0) // retry is the retry time of a denial
	for step := range 300 {
		if now += jump(rng); rng.IntN(8) == 0 {
			now += max(0, retry-algorithms.Micros(rng.IntN(2)))
		}
		clock.Set(now)
		if i := rng.IntN(len(specs)); rng.IntN(5) == 0 && (specs[i].Rate > 0 || specs[i].Kind == algorithms.Concurrency) {
			specs[i] = changed(rng, specs[i], originals[i])
			compile(i)
		}
		var charges []backend.Charge
		for group := range 1 + rng.IntN(3) {
			if rng.IntN(20) == 0 {
				i := rng.IntN(len(specs))
				charges = append(charges, backend.Charge{
					Key: fmt.Appendf(nil, "%d/%d/%d", seed, i, rng.IntN(2)), Limit: limits[i], Owner: fmt.Sprint(i), Group: group, Slot: 1 + seed, Reset: true,
				})
				continue
			}
			var once *backend.IdempotencyKey
			if rng.IntN(10) == 0 {
				once = &backend.IdempotencyKey{ID: [16]byte{byte(seed), byte(seed >> 8), byte(rng.IntN(6))}, Lifetime: 1000 * algorithms.Day}
			}
			from := len(charges)
			for _, i := range rng.Perm(len(specs))[:1+rng.IntN(3)] {
				key := fmt.Sprintf("%d/%d/%d", seed, i, rng.IntN(2))
				cost := rng.Int64N(8) - 1
				if rng.IntN(50) == 0 {
					cost = rng.Int64() - rng.Int64()
				}
				limit := limits[i]
				if rng.IntN(3) == 0 {
					limit = former[i]
				}
				if limit.Calendar != nil {
					once = nil // takesOnce tests calendars under an id
				}
				settle := rng.IntN(4) == 0
				switch {
				case limit.Overdraw && limit.MaxReserved > 1e6: // doubles cannot express exactly the end of a debt that lasts centuries
					cost = min(cost, 1e6)
				case !limit.Settles:
				case limit.Numbers().Tick > 1 && cost > 8:
					cost = 8
				case cost <= 8 && rng.IntN(2) == 0:
					settle, cost = true, rng.Int64N(41)-15
				}
				charges = append(charges, backend.Charge{
					Key: []byte(key), Limit: limit, Owner: fmt.Sprint(i), Group: group, Slot: 1 + seed,
					Terms: algorithms.Charge{
						Cost: cost, Hash: uint64(i) * 0x9E3779B97F4A7C15, DryRun: rng.IntN(10) == 0,
						Scaled:    limit.Kind == algorithms.TokenBucket && rng.IntN(10) == 0,
						Reserve:   limit.CanReserve() && rng.IntN(4) == 0,
						ChargedAt: max(0, now-algorithms.Micros(rng.Int64N(int64(3*algorithms.Second)))) * algorithms.Micros(rng.IntN(2)),
						Settle:    settle,
						MaxWait:   algorithms.Micros(rng.IntN(2)) * algorithms.Micros(1+rng.IntN(9)) * 300_000,
					},
				})
				if terms := &charges[len(charges)-1].Terms; limit.OpenFor > 0 && !terms.Scaled {
					terms.Open = rng.IntN(3) > 0
				}
				if limit.Kind == algorithms.Concurrency {
					terms := &charges[len(charges)-1].Terms
					*terms = algorithms.Charge{Cost: min(cost, 20-19*rng.Int64N(2)), DryRun: terms.DryRun, MaxWait: terms.MaxWait, Slot: slot(rng)}
				}
			}
			for i := range charges[from:] {
				charges[from+i].Then = from+i < len(charges)-1 && rng.IntN(4) == 0 && !haveSlots(charges[from:])
				if once == nil && i > 0 && charges[from+i-1].Then && charges[from+i].Limit.Penalty.After == 0 && rng.IntN(2) == 0 {
					c := &charges[from+i] // the request also names the alternative
					c.Then, c.Own = false, &algorithms.Own{Cost: rng.Int64N(6) - 2, Reserve: c.Terms.Reserve && rng.IntN(2) == 0}
					c.Terms.Cost = c.Own.Cost + 1 + rng.Int64N(4)
				}
				if once != nil {
					charges[from+i].IdempotencyKey = once
					once.Digest[len(charges)-from]++ // a group of the same size with the same id counts as a repetition
					charges[from+i].Terms.DryRun = false
				}
			}
		}
		want := reference.answer(now, charges)
		for i, got := range take(store, charges...) {
			if c := &charges[i]; c.Limit.Calendar != nil && c.Terms.MaxWait > 0 { // a store may count windows after the next two as the longest possible one
				want[i].RetryAfter = max(want[i].RetryAfter, got.RetryAfter)
			}
			if got != want[i] {
				t.Fatalf("seed %d, step %d, charge %d (%s, %+v, %+v) at %d:\n got %+v\nwant %+v",
					seed, step, i, charges[i].Key, *charges[i].Limit, charges[i].Terms, now, got, want[i])
			}
			if got.Blocked > 0 {
				blocked++
			}
			if retry = 0; got.RetryAfter < algorithms.Day {
				retry = got.RetryAfter
			}
		}
	}
	return blocked
}

// slot returns one of a few slots, with an operation.
func slot(rng *rand.Rand) *algorithms.Slot {
	return &algorithms.Slot{
		ID: [16]byte{byte(rng.IntN(4))}, Part: uint8(rng.IntN(2)), Op: algorithms.SlotOp(max(0, rng.IntN(4)-1)), TTL: algorithms.Micros(1+rng.IntN(9)) * algorithms.Second,
	}
}

// haveSlots reports whether one of the limits is a concurrency limit. Such a limit has no alternative.
func haveSlots(group []backend.Charge) bool {
	return slices.ContainsFunc(group, func(c backend.Charge) bool { return c.Limit.Kind == algorithms.Concurrency })
}

// changed returns s with other numbers. original is the Spec that s was made from: the result has its Penalty or none,
// and settles only if original does. Now and then the new numbers count in milliseconds or use other windows.
func changed(rng *rand.Rand, s, original algorithms.Spec) algorithms.Spec {
	const second = algorithms.Second
	n := func(most int64) *int64 { v := rng.Int64N(most); return &v }
	if s.Kind == algorithms.Concurrency {
		s.Capacity, s.Period = new(1+rng.Int64N(10)), second*algorithms.Micros(1+rng.IntN(100))
		return s
	}
	if original.Penalty != nil && !s.TakesDenied && (s.Kind == algorithms.TokenBucket && s.Minimum == nil || s.Kind == algorithms.FixedWindow) && rng.IntN(2) == 0 {
		// With the same numbers: denials and peaks are stored in the same place.
		if s.Settles = !s.Settles; !s.Settles {
			s.Penalty, s.MaxDebt = original.Penalty, nil
			return s
		}
		if s.Penalty = nil; s.Kind == algorithms.FixedWindow && s.Capacity != nil {
			s.Rate = max(s.Rate, *s.Capacity)
		}
		return s
	}
	s.Rate, s.Capacity, s.Initial, s.MaxReserved = 1+rng.Int64N(30), nil, nil, nil
	if s.Penalty = original.Penalty; rng.IntN(3) == 0 {
		s.Penalty = nil
	}
	s.Settles, s.MaxDebt, s.OpenFor = original.Settles && rng.IntN(4) > 0, nil, 0
	if s.Settles && original.OpenFor > 0 && rng.IntN(4) > 0 {
		s.OpenFor = second * algorithms.Micros(1+rng.IntN(9))
	}
	tokens := s.Kind == algorithms.TokenBucket || s.Kind == algorithms.FixedWindow
	if tokens && rng.IntN(2) == 0 || s.Kind == algorithms.LeakyBucket {
		s.Capacity = n(40)
	}
	if tokens && !s.TakesDenied && !s.PerRequest && rng.IntN(3) == 0 {
		s.Initial = n(10) // reduced to the capacity below
	}
	if tokens && s.Minimum == nil && rng.IntN(2) == 0 {
		s.MaxReserved = n(20)
	}
	if s.Settles && rng.IntN(2) == 0 {
		s.MaxDebt = n(20)
	}
	if s.Minimum != nil {
		s.Minimum = &algorithms.Rate{Units: 1 + rng.Int64N(5), Period: second}
	}
	switch {
	case s.Kind == algorithms.FixedWindow && s.TakesDenied:
		s.MaxReserved = nil
	case s.Kind == algorithms.FixedWindow:
		s.Period, s.Calendar = algorithms.Day, calendars[rng.IntN(len(calendars))]
		if rng.IntN(2) == 0 {
			s.Period, s.Calendar = second*algorithms.Micros(1+rng.IntN(5)), nil
		}
		if s.Calendar != nil {
			s.Start, s.OpenFor = nil, 0
		}
		if s.Settles && s.Capacity != nil {
			*s.Capacity = min(*s.Capacity, s.Rate)
		}
	case s.Kind != algorithms.SlidingLog:
		s.Period = second * [...]algorithms.Micros{1, 1, 2, 7}[rng.IntN(4)]
		if (tokens && !s.Overdraw || s.Kind == algorithms.LeakyBucket) && rng.IntN(4) == 0 { // numbers so large that the bucket counts in milliseconds
			s.Rate, s.Period, s.Capacity, s.MaxReserved = 999_983, algorithms.Day, new(90_000_000+rng.Int64N(10)), nil
			if tokens && s.Minimum == nil {
				s.MaxReserved = n(20) // doubles cannot express times of more than 285 years exactly
			}
		}
	}
	if s.Initial != nil {
		capacity := s.Rate
		if s.Capacity != nil {
			capacity = *s.Capacity
		}
		*s.Initial = min(*s.Initial, capacity)
	}
	return s
}

type reference struct {
	states  map[string]algorithms.State
	records map[[16]byte][]backend.Decision
}

func (w *reference) answer(now algorithms.Micros, charges []backend.Charge) (all []backend.Decision) {
	for len(charges) > 0 {
		n := backend.GroupLen(charges)
		answers := w.storedDecisions(charges[:n])
		if answers == nil {
			answers = w.take(now, charges[:n])
			if once := charges[0].IdempotencyKey; once != nil && backend.ConsumedAny(charges[:n], answers) {
				w.records[once.ID] = answers
			}
		}
		all = append(all, answers...)
		charges = charges[n:]
	}
	return all
}

func (w *reference) storedDecisions(group []backend.Charge) []backend.Decision {
	once := group[0].IdempotencyKey
	if once == nil || w.records[once.ID] == nil {
		return nil
	}
	was := w.records[once.ID]
	answers := make([]backend.Decision, len(group))
	for i := range answers {
		if len(was) != len(group) {
			answers[i].Err = backend.ErrReused
			continue
		}
		answers[i] = was[i]
		answers[i].Replayed = true
	}
	return answers
}

func (w *reference) take(now algorithms.Micros, charges []backend.Charge) (all []backend.Decision) {
	if charges[0].Reset {
		delete(w.states, string(charges[0].Key))
		return []backend.Decision{{Decision: algorithms.Decision{Allowed: true}}}
	}
	buckets := make([]algorithms.Bucket, len(charges))
	for i, c := range charges {
		buckets[i] = algorithms.Bucket{Limit: c.Limit, Charge: c.Terms, Then: c.Then, State: w.states[string(c.Key)], Own: c.Own}
	}
	algorithms.TakeAll(now, buckets)
	for i, c := range charges {
		buckets[i].State.Slots.Apply()
		w.states[string(c.Key)] = buckets[i].State
		all = append(all, backend.Decision{Decision: buckets[i].Decision, At: now})
	}
	return all
}

func jump(rng *rand.Rand) algorithms.Micros {
	switch rng.IntN(30) {
	case 0:
		return -algorithms.Micros(rng.Int64N(int64(50 * algorithms.Second)))
	case 1:
		return -algorithms.Micros(rng.Int64N(int64(algorithms.Day)))
	case 2:
		return algorithms.Micros(rng.Int64N(int64(3 * algorithms.Day)))
	case 3, 4, 5:
		return 0
	case 6, 7, 8, 9:
		return algorithms.Micros(rng.Int64N(1500)) // limits with large numbers count in milliseconds
	default:
		return algorithms.Micros(rng.Int64N(int64(algorithms.Second)))
	}
}
