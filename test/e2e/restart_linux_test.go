package e2e

import (
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// bounded is the number of units that all sidecars together may allow for the key "bounded". No other
// limit is ever reached.
const bounded = 2000

const restartLimits = `
domain: edge
descriptors:
  - {key: service, rate_limit: {unit: year, requests_per_unit: 1000000000}}
  - {key: remote_address, rate_limit: {unit: year, requests_per_unit: 1000000000}}
  - {key: api_key, rate_limit: {unit: year, requests_per_unit: 1000000000}}
  - {key: api_key, value: bounded, rate_limit: {unit: year, requests_per_unit: 2000}}
`

var secondSidecar = change{
	"        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8081 } } }\n",
	"        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8081 } } }\n" +
		"        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8082 } } }\n",
}

type restarts struct {
	*stack
	admitted atomic.Int64 // units admitted for the key "bounded"
	answered atomic.Int64
	stop     func() // stops the clients of load and waits for them
}

// load sends up to 1,000 requests a second until s.stop is called. Every answer must be 200, or for the key
// "bounded" 429.
func (s *restarts) load(t *testing.T) {
	t.Helper()
	const clients, pause = 50, 50 * time.Millisecond
	client := &http.Client{Timeout: maxWait, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	var done atomic.Bool
	var group sync.WaitGroup
	once := func(key string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.addr+":10000/", http.NoBody)
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set("X-Api-Key", key)
		answer, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		_ = answer.Body.Close()
		switch code := answer.StatusCode; {
		case code == http.StatusOK && key == "bounded":
			s.admitted.Add(1)
		case code != http.StatusOK && (code != http.StatusTooManyRequests || key != "bounded"):
			t.Errorf("%s: got %d; want status 200, or 429 for the key \"bounded\"", key, code)
		}
		s.answered.Add(1)
	}
	for i := range clients {
		group.Go(func() {
			time.Sleep(pause * time.Duration(i) / clients)
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for n := i; !done.Load(); n++ {
				once([]string{"bounded", "free"}[n%2])
				<-tick.C
			}
		})
	}
	s.stop = sync.OnceFunc(func() {
		done.Store(true)
		group.Wait()
		client.CloseIdleConnections()
	})
	t.Cleanup(s.stop)
}

func (s *restarts) during(t *testing.T, n int64) {
	t.Helper()
	before := s.answered.Load()
	eventually(t, "load", func() bool { return s.answered.Load() > before+n })
}

func TestRollingRestart(t *testing.T) {
	t.Parallel()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	s := &restarts{stack: newStack(t, "10000", "")}
	s.serveApplication(t)
	limits, redis := s.writeText(t, "limits.yaml", restartLimits), "redis://"+redistest.Start(t).Addr
	ports := []string{"8081", "8082"}
	launch := func(i int) *process { // the drain delay is two intervals of Envoy's health check
		return serve(t, s.addr, "--config", limits, "--redis-url", redis, "--backend-timeout", "5s",
			"--grpc-listen", s.addr+":"+ports[i], "--http-listen", "", "--admin-listen", "", "--drain-delay", "2s")
	}
	sidecars := []*process{launch(0), launch(1)}
	s.runEnvoy(t, s.write(t, "envoy/envoy.yaml", longTimeout, secondSidecar))
	s.awaitSidecars(t, 2)
	from := time.Now()
	s.load(t)
	s.during(t, 500)
	for i, old := range sidecars {
		old.signal(t, syscall.SIGTERM)
		s.awaitSidecars(t, 1)
		if !old.running() {
			t.Error("the sidecar ended before Envoy had noticed that it was draining")
		}
		eventually(t, "it stops", func() bool { return !old.running() })
		s.during(t, 200) // requests while only one of the sidecars runs
		sidecars[i] = launch(i)
		s.awaitSidecars(t, 2)
		s.during(t, 200)
	}
	eventually(t, "the bound is reached", func() bool { return s.admitted.Load() >= bounded })
	s.during(t, 500)
	s.stop()
	took := time.Since(from).Seconds()
	t.Logf("%d requests in %.1f s, %.0f a second; %d of %d units admitted", s.answered.Load(), took, float64(s.answered.Load())/took, s.admitted.Load(), bounded)
	if got := s.admitted.Load(); got != bounded {
		t.Errorf("%d requests of the bounded key were admitted, want %d", got, bounded)
	}
	if n := s.stat("cluster.app.ratelimit.error"); n > 0 { // -1 means that the counter does not exist, because there was no error
		t.Errorf("%d rate limit requests of Envoy failed, want 0", n)
	}
}
