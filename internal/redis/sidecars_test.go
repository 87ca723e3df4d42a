package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func sidecar(tb testing.TB, url string) backend.Store {
	tb.Helper()
	return stores.Denied(stores.Deadline(open(tb, Config{URL: url, Timeout: 5 * time.Second}), 10*time.Second, ms, nil), stores.DeniedConfig{})
}

// consumeConcurrently sends c the given number of times through each store, and returns the sum of the admitted costs.
func consumeConcurrently(tb testing.TB, stores []backend.Store, times int, c backend.Charge) int64 {
	tb.Helper()
	const workers = 4
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for _, s := range stores {
		for range workers {
			wg.Go(func() {
				var d [1]backend.Decision
				for range times / workers {
					backend.Take(context.Background(), s, []backend.Charge{c}, d[:])
					switch {
					case d[0].Err != nil:
						tb.Errorf("not answered: %v", d[0].Err)
					case d[0].Allowed:
						admitted.Add(c.Terms.Cost)
					}
				}
			})
		}
	}
	wg.Wait()
	return admitted.Load()
}

func TestSidecarsShareALimit(t *testing.T) {
	faulty(t)
	server := redistest.Start(t)
	cluster := redistest.StartCluster(t, 3).Steady()
	for name, url := range map[string]string{"standalone": "redis://" + server.Addr, "cluster": cluster.URL()} {
		for _, n := range []int{2, 4, 8} {
			t.Run(fmt.Sprintf("%d on %s", n, name), func(t *testing.T) {
				var stores []backend.Store
				for range n {
					stores = append(stores, sidecar(t, url))
				}
				const limit = 2000
				c := backend.Charge{Key: fmt.Appendf(nil, "%d", n), Limit: limitOf(limit), Terms: algorithms.Charge{Cost: 1}, Owner: "test"}
				if got := consumeConcurrently(t, stores, 2*limit/n, c); got != limit {
					t.Errorf("admitted %d, want exactly %d", got, limit)
				}
			})
		}
	}
}

// A Store may be closed during calls. They fail in time, and no goroutine remains (TestMain checks that).
func TestCloseUnderLoad(t *testing.T) {
	faulty(t)
	server := redistest.Start(t)
	sentinels := redistest.StartSentinels(t).Steady()
	cluster := redistest.StartCluster(t, 3).Steady()
	for name, url := range map[string]string{"standalone": "redis://" + server.Addr, "sentinel": sentinels.URL(), "cluster": cluster.URL()} {
		t.Run(name, func(t *testing.T) {
			s, err := Open(Config{URL: url, Timeout: deadline})
			if err != nil {
				t.Fatal(err)
			}
			l := startLoad(t, 4, s)
			l.normal(l.began, generous)
			redistest.Eventually(t, "each request is admitted", l.admitted)
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			closed := time.Now()
			time.Sleep(500 * ms)
			if share := l.share(closed.Add(100*ms), time.Now(), nil); share > 0 {
				t.Errorf("%.1f %% of the charges were answered by a closed Store; want 0 %%", 100*share)
			}
			if err := s.Close(); err != nil && !strings.Contains(err.Error(), "closed") {
				t.Errorf("close again: %v; want an error that contains %q", err, "closed")
			}
			l.check(open(t, Config{URL: url, Timeout: 5 * time.Second}), 0)
		})
	}
}

const childURL = "RL_TEST_CHILD_URL"

// TestSidecarProcess is not a test. It is the sidecar that TestFaultSidecarKilled kills. It prints "?" before it
// sends a charge, and "+" when the charge was admitted.
func TestSidecarProcess(t *testing.T) {
	url := os.Getenv(childURL)
	if url == "" {
		t.Skip("runs as a process of its own")
	}
	s := stores.Deadline(open(t, Config{URL: url, Timeout: time.Second}), time.Second, ms, nil)
	c := childCharge()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var d [1]backend.Decision
			for {
				_, _ = os.Stdout.WriteString("?\n")
				backend.Take(context.Background(), s, []backend.Charge{c}, d[:])
				if d[0].Allowed {
					_, _ = os.Stdout.WriteString("+\n")
				}
				time.Sleep(ms / 2)
			}
		})
	}
	wg.Wait()
}

const childLimit = 3000

func childCharge() backend.Charge {
	start := algorithms.Micros(0)
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: childLimit, Period: 30 * 365 * algorithms.Day, Start: &start})
	if err != nil {
		panic(err)
	}
	return backend.Charge{Key: []byte("shared"), Limit: &limit, Terms: algorithms.Charge{Cost: 1}, Owner: "test"}
}

func TestFaultSidecarKilled(t *testing.T) {
	faulty(t)
	server := redistest.Start(t)
	url := "redis://" + server.Addr
	var attempted, acked atomic.Int64
	var readers sync.WaitGroup
	var children []*exec.Cmd
	for range 3 {
		child := exec.Command(os.Args[0], "-test.run=^TestSidecarProcess$", "-test.timeout=60s")
		child.Env = append(os.Environ(), childURL+"="+url)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
		children = append(children, child)
		readers.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				switch lines.Text() {
				case "?":
					attempted.Add(1)
				case "+":
					acked.Add(1)
				}
			}
		})
	}
	for i, child := range children {
		before := acked.Load()
		redistest.Eventually(t, "they are admitted", func() bool { return acked.Load() > before+300 })
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d left, %d admitted", len(children)-1-i, acked.Load())
	}
	readers.Wait()
	s := open(t, Config{URL: url, Timeout: 5 * time.Second})
	c := childCharge()
	c.Terms.Cost = 0
	var d [1]backend.Decision
	backend.Take(t.Context(), s, []backend.Charge{c}, d[:])
	if d[0].Err != nil {
		t.Fatalf("got %v; want no error", d[0].Err)
	}
	charged := childLimit - d[0].Remaining
	t.Logf("%d attempted, %d charged, %d admitted", attempted.Load(), charged, acked.Load())
	if charged < acked.Load() || charged > attempted.Load() || charged > childLimit {
		t.Errorf("%d attempted, %d charged, %d admitted; want charged units between the admitted and the attempted ones, and at most %d", attempted.Load(), charged, acked.Load(), childLimit)
	}
	// Exactly the units that the killed sidecars did not consume are available to others.
	c.Terms.Cost = 1
	if got := consumeConcurrently(t, []backend.Store{sidecar(t, url)}, 2*childLimit, c); got != childLimit-charged {
		t.Errorf("%d units were left, %d admitted; want equal numbers", childLimit-charged, got)
	}
}

func TestAFailureIsAnErrorAndNoDenial(t *testing.T) {
	t.Parallel()
	s, err := Open(Config{URL: fmt.Sprintf("redis://127.0.0.1:%d", redistest.FreePort(t))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 20 {
		var d [1]backend.Decision
		backend.Take(t.Context(), s, []backend.Charge{{Key: []byte("k"), Limit: limitOf(1), Terms: algorithms.Charge{Cost: 1}}}, d[:])
		if !errors.Is(d[0].Err, backend.ErrUnavailable) || d[0].Decision != (algorithms.Decision{}) {
			t.Fatalf("got %+v; want the error backend.ErrUnavailable and decision %v", d[0], algorithms.Decision{})
		}
	}
}
