package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// model is examples/llm: Envoy in front of a server that imitates a language model.
type model struct{ *stack }

// newModel starts the example. delay is how long the model waits before each word of a streamed answer.
func newModel(t *testing.T, delay string) *model {
	t.Helper()
	tooltest.Path(t, "envoy") // skips the test if Envoy is missing
	program := filepath.Join(t.TempDir(), "model")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, root+"/examples/llm/model").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m := &model{newStack(t, "10000", root+"/examples/llm/limits.yaml")}
	awaitPort(t, start(t, program, "-listen", m.addr+":9000", "-delay", delay), "tcp", m.addr+":9000")
	m.startSidecar(t)
	m.runEnvoy(t, m.write(t, "llm/envoy.yaml", longTimeout))
	return m
}

// complete sends a prompt of one word as user, requests an answer with this number of words, and returns the
// status. options are further JSON fields of the request.
func (m *model) complete(t *testing.T, user, options string, words int) int {
	t.Helper()
	body := fmt.Sprintf(`{"model": "demo", %s "max_tokens": %d, "messages": [{"content": "hello"}]}`, options, words)
	request, err := http.NewRequest("POST", "http://"+m.addr+":10000/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0
	}
	if user != "" {
		request.Header.Set("x-user", user)
	}
	request.Header.Set("content-type", "application/json")
	response, err := m.client.Do(request)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Error(err)
	}
	if retry := response.Header.Get("retry-after"); (retry != "") != (response.StatusCode == http.StatusTooManyRequests) {
		t.Errorf("status %d with retry-after %q; want a time to retry with 429 only", response.StatusCode, retry)
	}
	return response.StatusCode
}

func (m *model) remaining(t *testing.T, user string) int {
	t.Helper()
	response, err := m.client.Get("http://" + m.addr + ":8080/v1/limits/tokens?domain=ai&key=" + user)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var bucket struct{ Remaining *int }
	if err := json.NewDecoder(response.Body).Decode(&bucket); err != nil || bucket.Remaining == nil {
		t.Fatalf("no number of remaining tokens: %v", err)
	}
	return *bucket.Remaining
}

func (m *model) settles(t *testing.T, user string, want int) {
	t.Helper()
	var last int
	defer func() {
		if last != want {
			t.Logf("%s has %d tokens left", user, last)
		}
	}()
	eventually(t, fmt.Sprintf("%s has %d tokens left", user, want), func() bool { last = m.remaining(t, user); return last == want })
}

const (
	streamed  = `"stream": true, "stream_options": {"include_usage": true},`
	unmetered = `"stream": true,` // the answer does not report its tokens
)

func TestLanguageModelExample(t *testing.T) {
	t.Parallel()
	m := newModel(t, "0s")
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

	// After parallel requests of alice, the tokens of the allowed ones are charged to her, and none to bob.
	var codes sync.Map
	var requests sync.WaitGroup
	for i := range 20 {
		requests.Go(func() { codes.Store(i, m.complete(t, "alice", streamed, 3000)) })
	}
	requests.Wait()
	counts := map[any]int{}
	codes.Range(func(_, code any) bool { counts[code]++; return true })
	admitted := counts[http.StatusOK]
	if admitted == 0 || admitted+counts[http.StatusTooManyRequests] != 20 {
		t.Errorf("20 requests at once: got the statuses %v; want some 200, and 429 for the others", counts)
	}
	m.settles(t, "alice", max(0, budget-admitted*3001))
	if m.remaining(t, "bob") != budget-41-21-estimate {
		t.Error("alice used tokens of bob")
	}
}
