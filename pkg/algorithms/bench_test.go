package algorithms

import (
	"testing"
)

// speeds has limits with numbers that are usual in production.
var speeds = []struct {
	name string
	spec Spec
}{
	{"token bucket", Spec{Kind: TokenBucket, Rate: 1000, Period: sec}},
	{"token bucket in ms", Spec{Kind: TokenBucket, Rate: 7, Period: 30 * Day, Capacity: new(int64(1e6))}},
	{"fixed window", Spec{Kind: FixedWindow, Rate: 1000, Period: sec, Start: new(t0)}},
	{"sliding window", Spec{Kind: SlidingWindow, Rate: 1000, Period: sec}},
	{"sliding log", Spec{Kind: SlidingLog, Rate: 1000, Period: sec}},
	{"leaky bucket", Spec{Kind: LeakyBucket, Rate: 1000, Period: sec, Capacity: new(int64(100))}},
	{"guaranteed", Spec{Kind: TokenBucket, Rate: 1000, Period: sec, Minimum: &Rate{10, sec}}},
}

// steps returns functions that charge a bucket once. allowed charges at half the rate of l, denied charges
// a bucket that was just emptied.
func (l *Limit) steps() (allowed, denied func() bool) {
	var s1, s2 State
	now := t0
	// The pause is twice as long as the rate needs. At exactly its rate, a sliding window denies some charges,
	// because it also counts a part of the previous window.
	pause := 2*Micros(l.period)*l.tick/Micros(l.Rate) + l.tick
	allowed = func() bool {
		var d Decision
		s1, d = l.Take(s1, now, Charge{Cost: 1})
		if now += pause; now > MaxTime { // a long benchmark of a slow limit
			s1, now = State{}, t0
		}
		return d.Allowed
	}
	s2, _ = l.Take(s2, t0, Charge{Cost: l.Capacity})
	denied = func() bool {
		var d Decision
		s2, d = l.Take(s2, t0, Charge{Cost: 1})
		return !d.Allowed
	}
	return allowed, denied
}

func BenchmarkTake(b *testing.B) {
	for _, s := range speeds {
		allowed, denied := mustCompile(b, s.spec).steps()
		for name, run := range map[string]func() bool{"allowed": allowed, "denied": denied} {
			b.Run(s.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if !run() {
						b.Fatal("unexpected decision")
					}
				}
			})
		}
	}
}

func BenchmarkTakeAll(b *testing.B) {
	group := make([]Bucket, 3)
	for i := range group {
		group[i] = Bucket{Limit: mustCompile(b, speeds[0].spec), Charge: Charge{Cost: 1}}
	}
	now := t0
	b.ReportAllocs()
	for b.Loop() {
		now += ms
		if !TakeAll(now, group) {
			b.Fatal("denied")
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compile(speeds[0].spec); err != nil {
			b.Fatal(err)
		}
	}
}

// A decision allocates nothing, except that the array of a sliding log grows: in at most one of ten decisions.
func TestDecisionsAllocateNothing(t *testing.T) {
	for _, s := range speeds {
		t.Run(s.name, func(t *testing.T) {
			l := mustCompile(t, s.spec)
			allowed, denied := l.steps()
			for name, run := range map[string]func() bool{"allowed": allowed, "denied": denied} {
				charges := 0
				perRun := testing.AllocsPerRun(10, func() {
					for range 1000 {
						if charges++; !run() {
							t.Fatalf("%s: unexpected decision on charge %d", name, charges)
						}
					}
				})
				if most := map[bool]float64{true: 100, false: 0}[l.Kind == SlidingLog]; perRun > most {
					t.Errorf("%s: %v allocations in 1000 decisions, want at most %v", name, perRun, most)
				}
			}
		})
	}
}

func TestGroupsAllocateNothing(t *testing.T) {
	group := []Bucket{
		{Limit: mustCompile(t, speeds[0].spec), Charge: Charge{Cost: 1}},
		{Limit: mustCompile(t, speeds[2].spec), Charge: Charge{Cost: 1}},
		{Limit: mustCompile(t, speeds[3].spec), Charge: Charge{Cost: 1}},
	}
	if perRun := testing.AllocsPerRun(5000, func() { TakeAll(t0, group) }); perRun > 0 { // allowed at first, then denied
		t.Errorf("%v allocations in a group; want 0", perRun)
	}
}
