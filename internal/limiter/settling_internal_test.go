package limiter

import (
	"testing"

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
