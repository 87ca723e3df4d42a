package grpcapi

import (
	"math"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	second = algorithms.Second
	minute = 60 * second
	hour   = 60 * minute
	day    = algorithms.Day
)

// The number of units that a settle-start reserves depends on a declared cost: only hits_addend declares one. A settle-done
// settles a reservation with an explicit cost. A refund of 0 must not count as the explicit cost 0.
func TestCost(t *testing.T) {
	for _, c := range []struct {
		name               string
		fields             descriptorFields
		request            uint32
		want               int64
		declared, explicit bool
	}{
		{"no cost", descriptorFields{}, 0, 1, false, false},
		{"the request's", descriptorFields{}, 5, 5, true, false},
		{"the descriptor's wins", descriptorFields{hasHits: true, hits: 3}, 5, 3, true, true},
		{"0 of the descriptor is a dry run", descriptorFields{hasHits: true}, 5, 0, true, true},
		{"negative", descriptorFields{hasHits: true, hits: 3, negative: true}, 0, -3, true, false},
		{"a refund of 0", descriptorFields{hasHits: true, negative: true}, 5, 0, true, false},
		{"negative of the request's", descriptorFields{negative: true}, 4, -4, true, false},
		{"negative without a cost", descriptorFields{negative: true}, 0, -1, false, false},
		{"the most", descriptorFields{hasHits: true, hits: math.MaxUint64}, 0, math.MaxInt64, true, true},
		{"the least", descriptorFields{hasHits: true, hits: math.MaxUint64, negative: true}, 0, -math.MaxInt64, true, false},
		{"the request's most", descriptorFields{}, math.MaxUint32, math.MaxUint32, true, false},
	} {
		var d limiter.Descriptor
		if c.fields.convert(&d, c.request); d.Cost != c.want || d.Declared != c.declared || d.Explicit != c.explicit {
			t.Errorf("%s: %d, declared %t, explicit %t; want %d, %t, %t", c.name, d.Cost, d.Declared, d.Explicit, c.want, c.declared, c.explicit)
		}
	}
}

func TestObjectsOfJSONAreCounted(t *testing.T) {
	for text, want := range map[string]int{
		`{}`: 1, `{"a":{},"b":[{},{}]}`: 4, `{"a":"{{"}`: 1, `{"a":"\"{{"}`: 1, `{"a":"\\","b":{}}`: 2, `{"a":"\\\"{","{":{}}`: 2, `"{`: 0, `"\`: 0, `\{`: 1,
	} {
		if got := jsonObjects([]byte(text)); got != want {
			t.Errorf("%s: %d objects, want %d", text, got, want)
		}
	}
}

func TestOverridePeriod(t *testing.T) {
	for _, c := range []struct {
		unit       int32
		multiplier uint32
		want       algorithms.Micros
	}{
		{1, 0, second}, {2, 1, minute}, {3, 2, 2 * hour}, {4, 0, day}, {7, 0, 7 * day}, {5, 0, 30 * day}, {6, 0, 365 * day},
		{0, 1, 0}, {8, 0, 0}, {-1, 0, 0}, // unknown units
		{1, math.MaxUint32, math.MaxUint32 * second},
		{3, 2562047788, 2562047788 * hour}, {3, 2562047789, 0}, {3, math.MaxUint32, 0},
		{6, math.MaxUint32, 0}, // exceeds the range of Micros
		{4, math.MaxUint32, 0}, // exceeds it too, but the low 64 bits of the product do not
	} {
		if got := (&descriptorFields{unit: c.unit, multiplier: c.multiplier}).period(); got != c.want {
			t.Errorf("%d times unit %d: %d, want %d", c.multiplier, c.unit, got, c.want)
		}
	}
}

var compile = limittest.Compile

func TestWindowOf(t *testing.T) {
	n := func(i int64) *int64 { return &i }
	for _, c := range []struct {
		name string
		spec algorithms.Spec
		want window
	}{
		{"a unit", algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute}, window{5, 2, 1}},
		{"a week", algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: 7 * day}, window{5, 7, 1}},
		{"a year", algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: 365 * day}, window{5, 6, 1}},
		{"half a minute", algorithms.Spec{Kind: algorithms.SlidingWindow, Rate: 3, Period: 30 * second}, window{3, 1, 30}},
		{"ten days", algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 3, Period: 10 * day}, window{3, 4, 10}},
		{"no whole seconds", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 3, Period: 1500e3}, window{3, 0, 0}},
		{"room for more than flows in", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Capacity: n(20)}, window{20, 2, 2}},
		{"room for less", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 60, Period: hour, Capacity: n(10)}, window{10, 2, 10}},
		{"room for less than flows in a second", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 100, Period: second, Capacity: n(10)}, window{10, 0, 0}},
		{"no room", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: minute, Capacity: n(0)}, window{0, 0, 0}},
		{"windows that roll over", algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: minute, Capacity: n(30)}, window{30, 2, 3}},
		{"windows that do not fill up", algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: minute, Capacity: n(5)}, window{5, 2, 1}},
		{"a queue", algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Period: second, Capacity: n(49)}, window{50, 1, 10}},
		{"never", algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 0, Period: hour}, window{0, 3, 1}},
		{"two rates", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: second, Capacity: n(100), Minimum: &algorithms.Rate{Units: 10, Period: second}}, window{110, 0, 0}},
		{"as many seconds as a multiplier can be", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: second, Capacity: n(1<<32 - 1)}, window{math.MaxUint32, 1, math.MaxUint32}},
		{"more seconds than a multiplier can be", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: second, Capacity: n(1<<32 + 15)}, window{math.MaxUint32, 0, 0}},
		{"more than can be said", algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1 << 40, Period: second}, window{math.MaxUint32, 1, 1}},
	} {
		l := compile(t, c.spec)
		if got := windowOf(l); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
