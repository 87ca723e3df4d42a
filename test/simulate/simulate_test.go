package simulate

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds   = flag.Int("seeds", 1000, "how many seeds TestSimulation runs; with 5,000 or more, each kind of event must happen")
	commit  = flag.String("commit", "commit not given", "the commit that the summary names")
	first   = flag.Uint64("first", 1, "the first seed")
	seed    = flag.Uint64("seed", 0, "run only this seed, and print each event")
	without = flag.String("without", "", "with -seed: leave out these clients and faults, for example c0,f1")
	until   = flag.Duration("until", 0, "with -seed: clients and faults stop after this time")
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The garbage collector runs when the heap reaches a fixed size. With GOGC it would run less and less
	// often, because the pools of ended runs count as memory in use for one more cycle.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(512 << 20)
	os.Exit(m.Run())
}

// TestSimulation runs seeds. The judge must find no problem in any of them. A failed seed is reported at once,
// and the others continue. At the end, the failed seeds with the smallest numbers are shrunk and printed as
// commands.
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
	all, played, failed := runAll(t, start)
	took, found := time.Since(start), "no problem"
	slices.Sort(failed)
	for i, s := range failed {
		if i < mostShrunk {
			t.Log(Shrink(Plan{Seed: s}).Command())
		}
	}
	if len(failed) > 0 {
		found = fmt.Sprint("problems in seeds ", failed)
	}
	for f, name := range faultNames[1:] {
		n := all.Counts[1+f]
		t.Logf("%9d %s", n, name)
		if n == 0 && *seeds >= 5000 {
			t.Errorf("%d seeds had no event %q, want at least one", *seeds, name)
		}
	}
	t.Logf("%d seeds from %d, %d requests, %d steps; %s; %s; %s; %v on %d processors (%.0f seeds a second)", played, *first,
		all.Requests, all.Steps, start.Format(time.DateOnly), *commit, found, took.Round(time.Second), runtime.GOMAXPROCS(0), float64(played)/took.Seconds())
}

const (
	mostFailed = 20 // the test stops after this number of failed seeds
	mostShrunk = 3  // the number of failed seeds that the test shrinks
)

// runAll runs the seeds, as many in parallel as there are processors. It returns the sum of their results, the
// number of seeds that ran, and the failed seeds. It stops after mostFailed failed seeds.
func runAll(t *testing.T, start time.Time) (all Result, played int, failed []uint64) {
	t.Helper()
	all.Counts = make(Counts, len(faultNames))
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
				played++
				all.Steps += r.Steps
				all.Requests += r.Requests
				for i := range r.Counts {
					all.Counts[i] += r.Counts[i]
				}
				for _, problem := range r.Problems {
					t.Errorf("seed %d: %s", s, problem)
				}
				if len(r.Problems) > 0 {
					if failed = append(failed, s); len(failed) == mostFailed {
						next.Store(end)
					}
				}
				if now := time.Now(); now.Sub(reported) > time.Minute {
					reported = now
					t.Logf("%v: %d of %d seeds, %d failed", now.Sub(start).Round(time.Second), played, *seeds, len(failed))
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return all, played, failed
}

// TestSameSeedSameRun runs each seed twice, and requires equal runs. Nothing may depend on the scheduler, the
// system's clock, or the order of maps.
func TestSameSeedSameRun(t *testing.T) {
	n := uint64(1000)
	if testing.Short() {
		n = 100
	}
	for s := range n {
		p := Plan{Seed: 1_000_000 + s}
		if a, b := Run(p, nil), Run(p, nil); a.Hash != b.Hash || a.Steps != b.Steps {
			t.Fatalf("seed %d: %d steps with hash %x, then %d with %x; want equal runs", p.Seed, a.Steps, a.Hash, b.Steps, b.Hash)
		}
	}
}
