package histories

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const config = `
domain: histories
limits:
  tokens: {algorithm: token_bucket, rate: 24, period: 365d}
  window: {algorithm: fixed_window, rate: 24, period: 365d}
  large: {algorithm: token_bucket, rate: 600, period: 365d}
  budget: {algorithm: fixed_window, rate: 600, period: 365d, max_reserved: 0, settle: {estimate: 3}}
  leased: {algorithm: fixed_window, rate: 600, period: 365d, lease: {max: 10%, for: 200ms}}
descriptors:
  - {key: tokens, limit: tokens}
  - {key: window, limit: window}
  - {key: large, limit: large}
  - {key: leased, limit: leased}
`

var (
	tokens = yearly(algorithms.TokenBucket, 24)
	window = yearly(algorithms.FixedWindow, 24)
	large  = yearly(algorithms.TokenBucket, 600)
	budget = settling(600)
	leased = yearly(algorithms.FixedWindow, 600)
)

var nameOf = map[*algorithms.Limit]string{tokens: "tokens", window: "window", large: "large", budget: "budget", leased: "leased"}

func TestMain(m *testing.M) { sidecartest.Main(m, "../..") }

type sidecar struct {
	*sidecartest.Sidecar
	rls rls.RateLimitServiceClient
}

func startSidecar(t *testing.T, config string, args ...string) *sidecar {
	t.Helper()
	file := filepath.Join(t.TempDir(), "limits.yaml")
	keys := filepath.Join(t.TempDir(), "keys") // all sidecars have the same, so that a sidecar can start while Redis is unreachable
	for path, text := range map[string]string{file: config, keys: strings.Repeat("k", 64)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := sidecartest.Start(t, append([]string{"--config", file, "--settle-key-file", keys}, args...)...).Await("/readyz")
	return &sidecar{s, newGRPC(t, s.GRPC)}
}

type world struct {
	t        *testing.T
	sidecars []*sidecar
	http     http.Client
	began    time.Time
	slice    time.Duration // how long clients use the same buckets
	kinds    []string      // the kinds of buckets in use
	stop     chan struct{}
	clients  sync.WaitGroup

	mu      sync.Mutex
	all     map[string]*buckets // guarded by mu
	records []record            // guarded by mu
}

func newWorld(t *testing.T, sidecars int, args ...string) *world {
	t.Helper()
	w := &world{t: t, slice: 250 * time.Millisecond, stop: make(chan struct{}), all: map[string]*buckets{}}
	w.kinds = []string{"tokens", "window", "refunded", "group", "budget"}
	for range sidecars {
		w.sidecars = append(w.sidecars, startSidecar(t, config, append([]string{"--backend-timeout", "200ms"}, args...)...))
	}
	w.http = http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	t.Cleanup(w.http.CloseIdleConnections)
	w.began = time.Now()
	return w
}

func (w *world) run(n int, faults func()) {
	for i := range n {
		w.clients.Go(func() { w.client(rand.New(rand.NewPCG(uint64(i), uint64(w.began.UnixNano())))) })
	}
	faults()
	close(w.stop)
	w.clients.Wait()
}

func (w *world) now() int64 { return int64(time.Since(w.began)) }

func (w *world) client(random *rand.Rand) {
	for {
		select {
		case <-w.stop:
			return
		default:
		}
		b := w.pick(random)
		k := charge
		switch n := random.IntN(10); {
		case b.limits[0] == budget:
			w.settle(random, b)
			continue
		case n == 0 && !b.leased:
			k = dryRun
		case n < 3 && b.refunded():
			k = refund
		}
		if k == charge && random.IntN(3) == 0 {
			w.once(random, b)
			continue
		}
		w.log(w.sendAny(random, b, k))
	}
}

func (w *world) pick(random *rand.Rand) *buckets {
	slice := w.now() / int64(w.slice)
	what := w.kinds[random.IntN(len(w.kinds))]
	name := fmt.Sprintf("%s-%d", what, slice)
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.all[name]
	if b == nil {
		b = &buckets{name: name, cost: 1}
		switch what {
		case "tokens":
			b.limits = []*algorithms.Limit{tokens}
		case "window":
			b.limits, b.cost = []*algorithms.Limit{window}, 2
		case "refunded":
			b.limits, b.cost = []*algorithms.Limit{large}, 3
		case "group":
			b.limits = []*algorithms.Limit{tokens, window}
		case "budget":
			b.limits, b.cost = []*algorithms.Limit{budget}, 3
		case "leased":
			b.limits, b.cost, b.leased = []*algorithms.Limit{leased}, 3, true
		}
		w.all[name] = b
	}
	return b
}

func (b *buckets) refunded() bool { return b.limits[0] == large }

func (w *world) sendAny(random *rand.Rand, b *buckets, k kind) record {
	if k != dryRun && random.IntN(2) == 0 {
		return w.sendGRPC(random, b, k)
	}
	return w.send(random, b, k, "")
}

func (w *world) send(random *rand.Rand, b *buckets, k kind, id string) (r record) {
	type limit struct {
		Name    string `json:"name"`
		Key     string `json:"key"`
		Count   int64  `json:"count"`
		Reserve bool   `json:"reserve,omitempty"`
	}
	request := struct {
		Limits []limit `json:"limits"`
		ID     string  `json:"request_id,omitempty"`
	}{ID: id}
	for _, l := range b.limits {
		count := [...]int64{charge: b.cost, refund: -b.cost, dryRun: 0}[k]
		request.Limits = append(request.Limits, limit{nameOf[l], b.name, count, l == budget && k == charge})
	}
	r = record{from: w.now(), to: never}
	r.of, r.kind = b, k
	return w.post(random, request, r)
}

// post returns r unanswered if there is no answer, or if the store could not decide.
func (w *world) post(random *rand.Rand, request any, r record) record {
	body, err := json.Marshal(request)
	if err != nil {
		panic(err)
	}
	b := r.of
	s := w.sidecars[random.IntN(len(w.sidecars))]
	response, err := w.http.Post("http://"+s.HTTP+"/v1/limit", "application/json", bytes.NewReader(body))
	if err != nil {
		time.Sleep(time.Millisecond) // the sidecar may have been killed
		return r
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	var reported struct {
		OK          bool   `json:"ok"`
		Reservation string `json:"reservation"`
		Limits      []struct {
			Remaining int64 `json:"remaining"`
			Degraded  bool  `json:"degraded"`
		} `json:"limits"`
	}
	if err != nil || response.StatusCode != http.StatusOK && response.StatusCode != http.StatusTooManyRequests {
		return r
	}
	if err := json.Unmarshal(text, &reported); err != nil || len(reported.Limits) != len(b.limits) {
		w.t.Errorf("status %d: got %s, want a JSON answer with %d limits", response.StatusCode, text, len(b.limits))
		return r
	}
	for i, l := range reported.Limits {
		if l.Degraded {
			return r
		}
		r.answer.left[i] = l.Remaining
	}
	r.answer.ok, r.answered, r.to, r.reservation = reported.OK, true, w.now(), reported.Reservation
	return r
}

func (w *world) once(random *rand.Rand, b *buckets) {
	id := fmt.Sprint("id-", random.Uint64())
	first := w.send(random, b, charge, id)
	r := first
	for !r.answered {
		select {
		case <-w.stop:
			w.log(first)
			return
		default:
		}
		r = w.send(random, b, charge, id)
	}
	r.from = first.from
	if !first.answered && !r.answer.ok {
		r.answered, r.to = false, never // an earlier attempt may still be carried out
	}
	w.log(r)
}

func (w *world) log(r record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, r)
}

// check reports whether the history is linearizable, and logs one bucket if it is not. Each failover may have lost one
// capacity of each bucket.
func (w *world) check(failovers int64) (right bool) {
	w.t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	for _, b := range w.all {
		redistest.Eventually(w.t, "the sidecars answer again", func() bool {
			r := w.send(random, b, dryRun, "")
			if r.answered {
				w.log(r)
			}
			return r.answered
		})
	}
	history := operations(w.records, failovers)
	result := porcupine.CheckOperationsTimeout(model.ToModel(), history, time.Minute)
	w.t.Logf("%d requests, %d answered, %d buckets or groups: %s", len(w.records), len(history), len(w.all), result)
	if result != porcupine.Ok {
		w.t.Log(explain(history))
	}
	return result == porcupine.Ok
}
