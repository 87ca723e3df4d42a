package algorithms

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestAgreesWithReferenceImplementation(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			charges, us, denied := 0, 0, 0
			rapid.Check(t, func(t *rapid.T) {
				roll := newDice(t)
				s, l := roll.limit(k.kind)
				reference := referenceOf(s)
				var last [6]moment // logged with the first difference
				roll.walk(length(t, 20_000), []*Limit{l}, func(m moment) {
					charges++
					if m.limit.tick == 1 {
						us++
					}
					if !m.got.Allowed {
						denied++
					}
					copy(last[:], last[1:])
					last[len(last)-1] = m
					if want := reference.decide(m.now, m.charge); m.got != want {
						for _, m := range last {
							t.Logf("at %d %+v of %+v: %+v", m.now, m.charge, m.before, m.got)
						}
						t.Fatalf("%s\n got %+v\nwant %+v", show(s), m.got, want)
					}
				})
			})
			t.Logf("%d charges, %d %% of them in us, %d %% denied", charges, 100*us/charges, 100*denied/charges)
		})
	}
}

func show(s Spec) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d/%dus", s.Kind, s.Rate, int64(s.Period))
	for _, f := range []struct {
		name string
		n    *int64
	}{{"capacity", s.Capacity}, {"initial", s.Initial}, {"max_reserved", s.MaxReserved}, {"start", (*int64)(s.Start)}} {
		if f.n != nil {
			fmt.Fprintf(&b, " %s %d", f.name, *f.n)
		}
	}
	if s.Calendar != nil {
		fmt.Fprintf(&b, " each %s of %s", s.Calendar.Unit, s.Calendar.Zone)
	}
	if s.Minimum != nil {
		fmt.Fprintf(&b, " guaranteed %d/%dus", s.Minimum.Units, int64(s.Minimum.Period))
	}
	fmt.Fprintf(&b, " overdraw %t takes denied %t", s.Overdraw, s.TakesDenied)
	return b.String()
}
