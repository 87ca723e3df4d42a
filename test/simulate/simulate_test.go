package simulate

import (
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds   = flag.Int("seeds", 1000, "how many seeds TestSimulation plays; from 5,000 on each kind of fault must happen")
	commit  = flag.String("commit", "commit not given", "what the summary names")
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
	debug.SetMemoryLimit(512 << 20)
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
	start := time.Now()
	all, failed := playAll(t, start)
	if failed.Seed > 0 {
		for _, problem := range Run(failed, nil).Problems {
			t.Errorf("seed %d: %s", failed.Seed, problem)
		}
		t.Fatalf("after %v: %s", time.Since(start), Shrink(failed).Command())
	}
	took := time.Since(start)
	t.Logf("%d seeds from %d, %d requests, %d steps; %s; %s; no problem; %v on %d processors (%.0f seeds a second)", *seeds, *first,
		all.Requests, all.Steps, start.Format(time.DateOnly), *commit, took.Round(time.Second), runtime.GOMAXPROCS(0), float64(*seeds)/took.Seconds())
	for f := none + 1; f < faults; f++ {
		t.Logf("%9d %s", all.Counts[f], faultNames[f])
		if all.Counts[f] == 0 && *seeds >= 5000 {
			t.Errorf("never happened: %s", faultNames[f])
		}
	}
}

// playAll plays the seeds, as many at a time as there are processors. It returns what all of them did, and the plan of
// one that failed.
func playAll(t *testing.T, start time.Time) (all Result, failed Plan) {
	t.Helper()
	var next atomic.Uint64
	next.Store(*first)
	end := *first + uint64(*seeds)
	var mu sync.Mutex
	var workers sync.WaitGroup
	reported := start
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for s := next.Add(1) - 1; s < end; s = next.Add(1) - 1 {
				r := Run(Plan{Seed: s}, nil)
				mu.Lock()
				all.Steps += r.Steps
				all.Requests += r.Requests
				for i := range r.Counts {
					all.Counts[i] += r.Counts[i]
				}
				if len(r.Problems) > 0 && (failed.Seed == 0 || s < failed.Seed) {
					failed.Seed = s
					next.Store(end)
				}
				if now := time.Now(); now.Sub(reported) > time.Minute {
					reported = now
					t.Logf("%v: %d of %d seeds", now.Sub(start).Round(time.Second), s-*first+1, *seeds)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return all, failed
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
