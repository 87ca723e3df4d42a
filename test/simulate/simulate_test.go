package simulate

import (
	"flag"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var (
	seeds   = flag.Int("seeds", 1000, "how many seeds TestSimulation plays; from 5,000 on each kind of fault must happen")
	first   = flag.Uint64("first", 1, "the first of them")
	seed    = flag.Uint64("seed", 0, "plays this seed alone, and prints all that happens")
	without = flag.String("without", "", "with -seed: leaves out these clients and faults")
	until   = flag.Duration("until", 0, "with -seed: clients and faults end then")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Little memory is in use, and almost all of it is garbage soon, so that the collector runs at a fixed size. By a
	// percentage it would run ever later: what the pools of ended runs hold counts as in use for another cycle.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(128 << 20)
	os.Exit(m.Run())
}

// Whatever fails and whenever, what the judge checks holds. A failing seed is made smaller, and printed as a command.
func TestSimulation(t *testing.T) {
	if *seed > 0 {
		p := Plan{Seed: *seed, Until: *until}
		if *without != "" {
			p.Without = strings.Split(*without, ",")
		}
		r := Run(p, t.Logf)
		for _, problem := range r.Problems {
			t.Error(problem)
		}
		t.Logf("%d steps, hash %x", r.Steps, r.Hash)
		return
	}
	var all Result
	start := time.Now()
	for s := *first; s < *first+uint64(*seeds); s++ {
		p := Plan{Seed: s}
		r := Run(p, nil)
		all.Steps += r.Steps
		all.Requests += r.Requests
		for i := range r.Counts {
			all.Counts[i] += r.Counts[i]
		}
		for _, problem := range r.Problems {
			t.Errorf("seed %d: %s", s, problem)
		}
		if t.Failed() {
			t.Fatalf("after %d seeds and %v: %s", s-*first+1, time.Since(start), Shrink(p).Command())
		}
	}
	took := time.Since(start)
	t.Logf("%d seeds in %v (%.0f a second), %d steps, %d requests", *seeds, took, float64(*seeds)/took.Seconds(), all.Steps, all.Requests)
	for f := none + 1; f < faults; f++ {
		t.Logf("%9d %s", all.Counts[f], faultNames[f])
		if all.Counts[f] == 0 && *seeds >= 5000 {
			t.Errorf("never happened: %s", faultNames[f])
		}
	}
}

// The same seed gives the same run: nothing depends on the scheduler, the system's clock, or the order of maps.
func TestSameSeedSameRun(t *testing.T) {
	n := uint64(1000)
	if testing.Short() {
		n = 100
	}
	for s := range n {
		p := Plan{Seed: 1_000_000 + s}
		if a, b := Run(p, nil), Run(p, nil); a.Hash != b.Hash || a.Steps != b.Steps {
			t.Fatalf("seed %d: %d steps with hash %x, then %d with %x", p.Seed, a.Steps, a.Hash, b.Steps, b.Hash)
		}
	}
}
