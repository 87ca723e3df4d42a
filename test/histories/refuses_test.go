package histories

import (
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// The test checks the model itself.
func TestWrongHistoriesAreRefused(t *testing.T) {
	const s = int64(1e9)
	one := &buckets{name: "one", limits: []*algorithms.Limit{yearly(algorithms.TokenBucket, 3)}, cost: 1}
	leased := &buckets{name: "leased", limits: []*algorithms.Limit{yearly(algorithms.FixedWindow, 3)}, cost: 1, leased: true}
	plan := &buckets{name: "plan", limits: []*algorithms.Limit{settling(3)}, cost: 1}
	two := &buckets{name: "two", cost: 1, limits: []*algorithms.Limit{yearly(algorithms.TokenBucket, 3), yearly(algorithms.FixedWindow, 2)}}
	recordOf := func(b *buckets, from, to int64, k kind, ok bool, left ...int64) record {
		r := record{operation: operation{of: b, kind: k}, answered: true, answer: answer{ok: ok}, from: from * s, to: to * s}
		copy(r.answer.left[:], left)
		return r
	}
	unanswered := func(b *buckets, from int64, k kind) record {
		return record{operation: operation{of: b, kind: k}, from: from * s, to: never}
	}
	for name, c := range map[string]struct {
		records []record
		right   bool
	}{
		"one after the other":                {[]record{recordOf(one, 0, 1, charge, true, 2), recordOf(one, 2, 3, charge, true, 1)}, true},
		"a charge applied twice":             {[]record{recordOf(one, 0, 1, charge, true, 1)}, false},
		"a charge that was lost":             {[]record{recordOf(one, 0, 1, charge, true, 2), recordOf(one, 2, 3, charge, true, 2)}, false},
		"at the same time, in another order": {[]record{recordOf(one, 0, 5, charge, true, 1), recordOf(one, 0, 5, charge, true, 2)}, true},
		"in another order":                   {[]record{recordOf(one, 0, 1, charge, true, 1), recordOf(one, 2, 3, charge, true, 2)}, false},
		"denied though a unit was left":      {[]record{recordOf(one, 0, 1, charge, true, 2), recordOf(one, 9, 9, charge, false, 2)}, false},
		"allowed though no unit was left": {[]record{recordOf(one, 0, 1, charge, true, 2), recordOf(one, 2, 3, charge, true, 1), recordOf(one, 4, 5, charge, true, 0),
			recordOf(one, 6, 7, charge, true, 0)}, false},
		"a request without an answer was charged":                    {[]record{unanswered(one, 0, charge), recordOf(one, 2, 3, charge, true, 1)}, true},
		"a request without an answer was not charged":                {[]record{unanswered(one, 0, charge), recordOf(one, 2, 3, charge, true, 2)}, true},
		"a request without an answer was charged twice":              {[]record{unanswered(one, 0, charge), recordOf(one, 2, 3, charge, true, 0)}, false},
		"a request without an answer was charged before it was sent": {[]record{recordOf(one, 0, 1, dryRun, true, 2), unanswered(one, 2, charge)}, false},
		"the charge of a request without an answer disappears":       {[]record{unanswered(one, 0, charge), recordOf(one, 2, 3, dryRun, true, 2), recordOf(one, 4, 5, dryRun, true, 3)}, false},
		"refunded":                         {[]record{recordOf(one, 0, 1, charge, true, 2), recordOf(one, 2, 3, refund, true, 3), recordOf(one, 4, 5, dryRun, true, 3)}, true},
		"refunded twice":                   {[]record{recordOf(one, 0, 1, charge, true, 2), recordOf(one, 2, 3, charge, true, 1), recordOf(one, 4, 5, refund, true, 3)}, false},
		"a denial remembered for a second": {[]record{recordOf(two, 0, 1, charge, true, 2, 1), recordOf(two, 1, 2, charge, true, 1, 0), recordOf(two, 3, 4, refund, true, 2, 1), recordOf(two, 4, 5, charge, false, 1, 0)}, true},
		"a denial remembered for three":    {[]record{recordOf(two, 0, 1, charge, true, 2, 1), recordOf(two, 1, 2, charge, true, 1, 0), recordOf(two, 3, 4, refund, true, 2, 1), recordOf(two, 7, 7, charge, false, 1, 0)}, false},
		"a denial while another sidecar has leased the units": {[]record{recordOf(leased, 0, 1, charge, true, 0), recordOf(leased, 2, 3, charge, false, 0), recordOf(leased, 4, 5, charge, true, 0)}, true},
		"more than the limit by leases": {[]record{recordOf(leased, 0, 1, charge, true, 0), recordOf(leased, 2, 3, charge, true, 0), recordOf(leased, 4, 5, charge, true, 0),
			recordOf(leased, 6, 7, charge, true, 0)}, false},
		"leased units that were lost":           {[]record{recordOf(leased, 0, 1, charge, true, 0), recordOf(leased, 2, 3, dryRun, true, 1)}, true},
		"leased units that were returned twice": {[]record{recordOf(leased, 0, 1, charge, true, 0), recordOf(leased, 2, 3, dryRun, true, 3)}, false},
		"settled to twice the reservation":      {[]record{recordOf(plan, 0, 1, charge, true, 2), recordOf(plan, 2, 3, beyond, true, 1), recordOf(plan, 4, 5, dryRun, true, 1)}, true},
		"settled beyond the limit": {[]record{recordOf(plan, 0, 1, charge, true, 2), recordOf(plan, 0, 1, charge, true, 1), recordOf(plan, 0, 1, charge, true, 0),
			recordOf(plan, 2, 3, beyond, true, 0), recordOf(plan, 4, 5, refund, true, 0), recordOf(plan, 6, 7, refund, true, 1)}, true},
		"the debt of a settlement beyond the limit is forgotten": {[]record{recordOf(plan, 0, 1, charge, true, 2), recordOf(plan, 0, 1, charge, true, 1), recordOf(plan, 0, 1, charge, true, 0),
			recordOf(plan, 2, 3, beyond, true, 0), recordOf(plan, 4, 5, refund, true, 1)}, false},
		"settled to the reservation below zero": {[]record{recordOf(plan, 0, 1, charge, true, 2), recordOf(plan, 0, 1, charge, true, 1), recordOf(plan, 0, 1, charge, true, 0),
			recordOf(plan, 2, 3, beyond, true, 0), recordOf(plan, 4, 5, exact, true, 0), recordOf(plan, 6, 7, dryRun, false, 0)}, true},
		"a settlement to the reservation is denied":         {[]record{recordOf(plan, 0, 1, charge, true, 2), recordOf(plan, 2, 3, exact, false, 2)}, false},
		"a settlement that took effect twice":               {[]record{recordOf(plan, 0, 1, charge, true, 2), recordOf(plan, 2, 3, beyond, true, 0)}, false},
		"a denied group was not charged":                    {[]record{recordOf(two, 0, 1, charge, true, 2, 1), recordOf(two, 2, 3, charge, true, 1, 0), recordOf(two, 4, 5, charge, false, 1, 0)}, true},
		"one half of a denied group was charged":            {[]record{recordOf(two, 0, 1, charge, true, 2, 1), recordOf(two, 2, 3, charge, true, 1, 0), recordOf(two, 4, 5, charge, false, 0, 0)}, false},
		"one half of a group without an answer was charged": {[]record{unanswered(two, 0, charge), recordOf(two, 2, 3, dryRun, true, 2, 2)}, false},
		"a group without an answer was charged":             {[]record{unanswered(two, 0, charge), recordOf(two, 2, 3, dryRun, true, 2, 1)}, true},
	} {
		if got := porcupine.CheckOperations(model.ToModel(), operations(c.records, 0)); got != c.right {
			t.Errorf("%s: linearizable is %t, want %t", name, got, c.right)
		}
	}
}
