package limiter

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestHowLongSettlementsAreStored(t *testing.T) {
	const at, ttl = 1000 * algorithms.Second, 60 * algorithms.Second
	l := &Policy{Extras: &Extras{Settle: &SettleTerms{TTL: ttl}}}
	for _, c := range []struct {
		name  string // the name of the limit that an application reserved; "" means a reservation of a proxy
		after algorithms.Micros
		late  bool
		want  algorithms.Micros
	}{
		{"", 0, false, 2*ttl + ClockSlack},
		{"", ttl, false, ttl + ClockSlack},
		{"", ttl + 1, true, ttl + ClockSlack},
		{"", 9 * ttl, true, ttl + ClockSlack},
		{"jobs", 0, false, 5 + Within + ClockSlack},
		{"jobs", Within, false, 5 + ClockSlack},
	} {
		p := &ReservedPart{At: at, ByName: ByName{Name: c.name, Wait: 5}}
		if late, stored := p.terms(l, at+c.after); late != c.late || stored != c.want {
			t.Errorf("%q after %d us: late %t, stored for %d; want %t and %d", c.name, c.after, late, stored, c.late, c.want)
		}
	}
}

// The inflow after the reservation was faster than it is now, so the units count as consumed earlier. The clock of the store
// may be ahead.
func TestTheTimeOfAnUndo(t *testing.T) {
	const at, now = 10_000 * algorithms.Second, 10_010 * algorithms.Second
	for _, test := range []struct {
		former   int64 // units in two seconds; now they are 2
		at, want algorithms.Micros
	}{{0, at, at}, {2, at, at}, {20, at, now + ClockSlack - 700*algorithms.Second - 1}, {2000, at, 1}, {1 << 40, at, 1}, {20, 0, 0}, {1, now + 2*ClockSlack, now + 2*ClockSlack}} {
		l, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Second})
		if got := undoTime(at, now, scaled.Inflow{Units: test.former}, &l); got != at {
			t.Errorf("an unknown inflow: got %d", got)
		}
		if got := undoTime(test.at, now, scaled.Inflow{Units: test.former, Span: int64(2 * algorithms.Second)}, &l); got != test.want || err != nil {
			t.Errorf("%d units in two seconds: got %d, error %v, want %d", test.former, got, err, test.want)
		}
	}
}
