package histories

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

type kind int

const (
	charge kind = iota
	refund
	dryRun // a dry run of cost 0
	exact  // a settlement to the reserved units, which is always accepted, like the next kind
	beyond // a settlement to twice the reserved units
)

// buckets are one bucket, or two that are charged as a group.
type buckets struct {
	name   string // the key of both buckets
	limits []*algorithms.Limit
	cost   int64 // the cost of each charge and refund; a divisor of the capacities
	leased bool  // sidecars lease units of this bucket
}

type operation struct {
	of   *buckets
	kind kind
	// charges and refunds count the requests without an answer that were sent before this request was
	// answered. Each of them may have been executed at any time after it was sent, or never. A charge that a
	// failover may have lost counts as a refund.
	charges, refunds int64
}

type answer struct {
	ok   bool
	left [2]int64
}

// record is one request of a history. It was sent at from and answered at to, in ns since the start. Without an answer,
// to has the value of the constant never.
type record struct {
	operation

	reservation string
	answered    bool
	answer      answer
	from, to    int64
}

// state is the state of one or two buckets: their Values, and the number of requests without an answer that
// must have been executed.
type state struct {
	value            [2]int64
	charges, refunds int64
}

// frozen is the time of all decisions of the model. The limits of histories have periods of a year, so that no unit
// refills during a run.
const frozen = algorithms.Micros(1_700_000_000_000_000)

func (b *buckets) full() (s state) {
	for i, l := range b.limits {
		_, d := l.Take(algorithms.State{}, frozen, algorithms.Charge{DryRun: true})
		s.value[i] = d.Value
	}
	return s
}

func (b *buckets) take(s state, k kind) (state, answer) {
	terms := algorithms.Charge{Cost: b.cost}
	switch k {
	case refund:
		terms.Cost = -b.cost
	case dryRun:
		terms = algorithms.Charge{DryRun: true}
	case exact:
		terms = algorithms.Charge{Settle: true}
	case beyond:
		terms.Settle = true
	}
	group := make([]algorithms.Bucket, len(b.limits))
	for i, l := range b.limits {
		group[i] = algorithms.Bucket{Limit: l, Charge: terms, State: algorithms.State{By: l, Value: s.value[i], At: frozen}}
	}
	a := answer{ok: algorithms.TakeAll(frozen, group)}
	for i := range group {
		s.value[i], a.left[i] = group[i].State.Value, group[i].Decision.Remaining
	}
	return s, a
}

// steps returns the possible states after a request with this answer. It returns none if the answer is
// impossible.
func steps(s state, q operation, a answer) (next []any) {
	if q.of.leased {
		return leasedSteps(s, q, a)
	}
	for _, n := range possibleCounts(s, q, a) {
		is, possible := q.of.execute(s, n)
		is.charges += max(0, n)
		is.refunds += max(0, -n)
		if !possible || is.charges > q.charges || is.refunds > q.refunds {
			continue
		}
		if after, would := q.of.take(is, q.kind); would == a {
			next = append(next, after)
		}
	}
	return next
}

// leasedSteps is steps for a bucket of which sidecars lease units. A sidecar may deny while another one has
// leased the last units. The units left in the store do not include leased ones. Two rules remain: the sum of
// the allowed charges must not exceed the capacity, and the store must never have more units left than the
// capacity less this sum.
func leasedSteps(s state, q operation, a answer) []any {
	switch after, would := q.of.take(s, q.kind); {
	case q.kind == dryRun && a.left[0] <= would.left[0]:
		return []any{s}
	case q.kind == charge && !a.ok:
		return []any{s}
	case q.kind == charge && would.ok:
		return []any{after}
	default:
		return nil
	}
}

// execute executes n charges, or -n refunds if n is negative. possible is false if one of them
// would be denied or change nothing.
func (b *buckets) execute(s state, n int64) (_ state, possible bool) {
	k := charge
	if n < 0 {
		k, n = refund, -n
	}
	for range n {
		after, a := b.take(s, k)
		if !a.ok || after == s {
			return s, false
		}
		s = after
	}
	return s, true
}

// possibleCounts returns how many requests without an answer must have been executed since s, so that this answer is
// correct. A negative number counts refunds.
func possibleCounts(s state, q operation, a answer) []int64 {
	_, now := q.of.take(s, dryRun)
	before := a.left[0] // after the switch, the units that were left before the request
	switch {
	case q.kind == beyond && before == 0: // any of the charges may have brought the bucket below zero
		var all []int64
		for n := -q.refunds; n <= q.charges; n++ {
			all = append(all, n)
		}
		return all
	case q.kind == charge && a.ok, q.kind == beyond:
		before += q.of.cost
	case q.kind == refund:
		before -= q.of.cost
	}
	n := (now.left[0] - before) / q.of.cost
	if q.kind == refund { // any of the refunds may have found a full bucket
		return []int64{n, n - 1}
	}
	return []int64{n}
}

var model = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		var names []string
		for _, o := range history {
			name := o.Input.(operation).of.name
			if by[name] == nil {
				names = append(names, name)
			}
			by[name] = append(by[name], o)
		}
		var parts [][]porcupine.Operation
		for _, name := range names {
			parts = append(parts, by[name])
		}
		return parts
	},
	Step: func(s, input, output any) []any {
		if s == nil {
			s = input.(operation).of.full()
		}
		return steps(s.(state), input.(operation), output.(answer))
	},
	Init: func() []any { return []any{nil} },
	DescribeOperation: func(input, output any) string {
		q, a := input.(operation), output.(answer)
		return fmt.Sprintf("%s of %s -> ok %t, left %v", []string{"charge", "refund", "dry run", "settlement to the reservation", "settlement to twice the reservation"}[q.kind], q.of.name, a.ok, a.left[:len(q.of.limits)])
	},
}

// stale is the longest time for which a denial may be outdated. A sidecar caches denials for a second
// (docs/redis.md). In this time it does not notice refunds that other sidecars make.
const stale = int64(1e9)

// operations converts the answers to a history for Porcupine. Each failover may have lost one capacity of each bucket.
func operations(records []record, failovers int64) (history []porcupine.Operation) {
	missing, refunded := map[string][]record{}, map[string]bool{}
	for _, r := range records {
		if !r.answered {
			missing[r.of.name] = append(missing[r.of.name], r)
		}
		refunded[r.of.name] = refunded[r.of.name] || r.kind == refund
	}
	for _, r := range records {
		if !r.answered {
			continue
		}
		q := r.operation
		q.refunds = failovers * q.of.limits[0].Capacity / q.of.cost
		for _, m := range missing[q.of.name] {
			switch {
			case m.from > r.to:
			case m.kind == charge:
				q.charges++
			case m.kind == refund:
				q.refunds++
			}
		}
		if !r.answer.ok && refunded[r.of.name] {
			r.from -= stale
		}
		history = append(history, porcupine.Operation{Input: q, Output: r.answer, Call: r.from, Return: r.to})
	}
	return withoutImplied(history, missing)
}

// withoutImplied removes denials that are possible whenever another denial with the same answer is possible. Without this
// the check of a bucket with many denials takes hours, because it tries every subset of them at every step. A denial changes
// nothing, and needs a bucket without units. So it is possible only after the first request that left none, or whose charge
// has no answer. If another denial falls into a part of the remaining time, both are possible in the same moment.
func withoutImplied(history []porcupine.Operation, missing map[string][]record) (kept []porcupine.Operation) {
	empty := map[string]int64{} // when a bucket can be without units at the earliest
	note := func(name string, at int64) {
		if before, known := empty[name]; !known || at < before {
			empty[name] = at
		}
	}
	for name, list := range missing {
		for _, m := range list {
			note(name, m.from)
		}
	}
	denial := func(o porcupine.Operation) bool { return o.Input.(operation).kind == charge && !o.Output.(answer).ok }
	for _, o := range history {
		if q, a := o.Input.(operation), o.Output.(answer); !denial(o) && slices.Contains(a.left[:len(q.of.limits)], 0) {
			note(q.of.name, o.Call)
		}
	}
	type same struct {
		name   string
		answer answer
	}
	first := map[same][]porcupine.Operation{} // the denials that are kept
	slices.SortStableFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	for _, o := range history {
		q := o.Input.(operation)
		if at, known := empty[q.of.name]; denial(o) && known && !q.of.leased {
			o.Call = max(o.Call, min(at, o.Return))
			is := same{q.of.name, o.Output.(answer)}
			if slices.ContainsFunc(first[is], func(f porcupine.Operation) bool { return f.Call >= o.Call }) {
				continue
			}
			first[is] = append(first[is], o)
		}
		kept = append(kept, o)
	}
	return kept
}

// explain lists the requests of the first bucket whose answers are not linearizable. It returns "" if there is none.
func explain(history []porcupine.Operation) string {
	m := model.ToModel()
	for _, part := range model.Partition(history) {
		if porcupine.CheckOperationsTimeout(m, part, 10*time.Second) == porcupine.Ok {
			continue
		}
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		var b strings.Builder
		for _, o := range part {
			q := o.Input.(operation)
			fmt.Fprintf(&b, "%9.3f to %9.3f ms: %s (without answer by then: %d charges, %d refunds)\n",
				float64(o.Call)/1e6, float64(o.Return)/1e6, model.DescribeOperation(o.Input, o.Output), q.charges, q.refunds)
		}
		return b.String()
	}
	return ""
}

func yearly(kind algorithms.Kind, units int64) *algorithms.Limit {
	l, err := algorithms.Compile(algorithms.Spec{Kind: kind, Rate: units, Period: 365 * algorithms.Day})
	if err != nil {
		panic(err)
	}
	return &l
}

// settling compiles a fixed window with this number of units a year, in which calls reserve and settle units.
func settling(units int64) *algorithms.Limit {
	l, err := algorithms.Compile(algorithms.Spec{
		Kind: algorithms.FixedWindow, Rate: units, Period: 365 * algorithms.Day, Settles: true, MaxReserved: new(int64),
	})
	if err != nil {
		panic(err)
	}
	return &l
}

// never is later than any answer.
const never = int64(math.MaxInt64)
