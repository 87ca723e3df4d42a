package history

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	var times Times
	for us := range 10_000 {
		times.Add(time.Duration(us) * time.Microsecond)
		if us%3000 == 0 {
			times.Turn()
		}
	}
	got, of := times.Quantiles(.5, .99)
	for i, want := range []time.Duration{5000 * time.Microsecond, 9900 * time.Microsecond} {
		if got[i] < want || got[i] > want*5/4 {
			t.Errorf("%v, want %v", got[i], want)
		}
	}
	if of != 10_000 {
		t.Errorf("of %d; want 10_000", of)
	}
	for range minute + 1 {
		times.Turn()
	}
	if got, of := times.Quantiles(.5); of != 0 || got[0] != 0 {
		t.Errorf("after a minute: %v of %d decisions; want 0 of 0", got, of)
	}
	times.Add(time.Second)
	for range minute {
		times.Turn()
	}
	if _, of := times.Quantiles(.5); of != 1 {
		t.Errorf("within a minute: %d decisions; want 1", of)
	}
	for range 1000 {
		d := time.Duration(rand.Int64N(int64(4 * time.Minute)))
		if edge := upperEdge(bucketOf(d)); edge <= d || bucketOf(d) > 8 && edge > d+d/4+time.Microsecond {
			t.Errorf("%v is in the bucket up to %v; want an edge above it, by at most a quarter", d, edge)
		}
	}
	times.Add(-time.Second)
	times.Add(24 * time.Hour)
}

func TestAddingATimeAllocatesNothing(t *testing.T) {
	var times Times
	if n := testing.AllocsPerRun(100, func() { times.Add(time.Millisecond) }); n != 0 {
		t.Errorf("%v allocations; want 0", n)
	}
}
