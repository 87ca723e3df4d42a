package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// model is examples/llm: Envoy in front of a server that imitates a language model.
type model struct{ *stack }

// newModel starts the example with limits, and with changes of its Envoy. delay is how long the model waits before each
// word of a streamed answer.
func newModel(t *testing.T, delay, limits string, changes ...change) *model {
	t.Helper()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	program := build(t, "examples/llm/model")
	m := &model{newStack(t, "10000", limits)}
	awaitPort(t, start(t, program, "-listen", m.addr+":9000", "-delay", delay), m.addr+":9000")
	m.startSidecar(t)
	m.runEnvoy(t, m.write(t, "llm/envoy.yaml", changes...))
	return m
}

// complete sends a prompt of one word as user, requests an answer with this number of words, and returns the
// status. options are further JSON fields of the request.
func (m *model) complete(t *testing.T, user, options string, words int) int {
	t.Helper()
	body := fmt.Sprintf(`{"model": "demo", %s "max_tokens": %d, "messages": [{"content": "hello"}]}`, options, words)
	var headers []string
	if user != "" {
		headers = []string{"x-user: " + user}
	}
	code, header, answer := call(http.MethodPost, "http://"+m.addr+":10000/v1/chat/completions", body, headers...)
	if code == 0 {
		t.Error(answer)
	}
	if retry := header.Get("retry-after"); (retry != "") != (code == http.StatusTooManyRequests) {
		t.Errorf("status %d with retry-after %q; want a time to retry with 429 only", code, retry)
	}
	return code
}

func (m *model) settles(t *testing.T, user string, want int) {
	t.Helper()
	awaitLeft(t, want, m.addr, "ai", "tokens", user)
}

const (
	streamed  = `"stream": true, "stream_options": {"include_usage": true},`
	unmetered = `"stream": true,` // the answer does not report its tokens
)

func TestLanguageModelExample(t *testing.T) {
	t.Parallel()
	m := newModel(t, "0s", root+"/examples/llm/limits.yaml", longTimeout)
	const budget, estimate = 10_000, 1500

	if code := m.complete(t, "bob", streamed, 40); code != http.StatusOK {
		t.Errorf("a streamed answer: status %d, want 200", code)
	}
	m.settles(t, "bob", budget-41)
	if code := m.complete(t, "bob", "", 20); code != http.StatusOK {
		t.Errorf("an answer in one piece: status %d, want 200", code)
	}
	m.settles(t, "bob", budget-41-21)
	if code := m.complete(t, "bob", unmetered, 20); code != http.StatusOK {
		t.Errorf("an answer without usage: status %d, want 200", code)
	}
	m.settles(t, "bob", budget-41-21-estimate)

	if code := m.complete(t, "", streamed, 20); code != http.StatusForbidden {
		t.Errorf("a request without a user: status %d, want 403", code)
	}
}

// TestParallelCallsBehindAGateway sends 100 parallel calls, each of a tenth of the budget, through an Envoy with the rate
// limits that gateways generate. It logs the table of docs/performance.md.
func TestParallelCallsBehindAGateway(t *testing.T) {
	t.Parallel()
	const calls, budget, cost, short = 100, 10_000, 1000, 41
	envoy := example(t, "llm/envoy.yaml")
	from, to := strings.Index(envoy, "              rate_limits:\n"), strings.Index(envoy, "              rate_limit_service:\n")
	end := to + strings.Index(envoy[to:], "          # The tokens of a streamed answer")
	generated := change{envoy[from:to], example(t, "llm/gateway.yaml")}
	patched := change{envoy[from:end], example(t, "llm/gateway.yaml") + example(t, "llm/gateway-patch.yaml")}
	byTenth := change{"estimate: 1500", "estimate: 1000"}
	for _, variant := range []struct {
		name, limits   string
		envoy          change
		least, most    int  // what the calls use
		settles, costs bool // short calls settle; calls without usage have a cost
	}{
		{"reference", "domain: ai\nconsume: each\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests_per_unit: 10000}}\n", generated, calls * cost, calls * cost, false, false},
		{"unpatched", example(t, "llm/limits-by-bucket.yaml", byTenth), generated, budget * 95 / 100, budget, true, false},
		{"patched", example(t, "llm/limits.yaml", byTenth), patched, budget * 95 / 100, budget, true, true},
	} {
		t.Run(variant.name, func(t *testing.T) {
			m := newModel(t, "1ms", fileOf(t, "limits.yaml", variant.limits), longTimeout, variant.envoy)
			var passed atomic.Int64
			var all sync.WaitGroup
			for range calls {
				all.Go(func() {
					if m.complete(t, "alice", streamed, cost-1) == http.StatusOK {
						passed.Add(1)
					}
				})
			}
			all.Wait()
			used := int(passed.Load()) * cost
			t.Logf("%d calls used %.2f of the budget", passed.Load(), float64(used)/budget)
			if used < variant.least || used > variant.most {
				t.Errorf("the calls used %d tokens, want %d to %d", used, variant.least, variant.most)
			}
			if !variant.settles {
				return
			}
			m.settles(t, "alice", budget-used)
			m.complete(t, "bob", streamed, short-1)
			m.settles(t, "bob", budget-short)
			m.complete(t, "bob", unmetered, short-1)
			m.settles(t, "bob", budget-short-cost) // unpatched, until it expires
			unknown := func() bool {
				return metric(m.addr, `rlsidecar_settlements_total{domain="ai",limit="tokens",result="unknown"}`) > 0
			}
			if variant.costs {
				eventually(t, "the call without usage settles", unknown)
			} else if unknown() {
				t.Error("the call without usage settled")
			}
		})
	}
}
