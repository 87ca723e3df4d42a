package clients

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

const (
	root      = "../.."
	documents = root + "/internal/httpapi/"
	maxWait   = 2 * time.Minute // bounds every wait for another process on a busy machine
	token     = "s3cret"
)

func TestMain(m *testing.M) {
	os.Setenv("RLSIDECAR_API_TOKEN", token)
	sidecartest.Main(m, root)
}

func run(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", program, strings.Join(args, " "), err, out, problems.String())
	}
	return string(out)
}

func serve(t *testing.T, limits string) (api, admin string) {
	t.Helper()
	s := sidecartest.Start(t, "--config", limits).Await("/readyz")
	t.Cleanup(s.Stop)
	return "http://" + s.HTTP, "http://" + s.Admin
}

// serveText starts a sidecar with these limits.
func serveText(t *testing.T, text string) (api string) {
	t.Helper()
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(limits, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	api, _ = serve(t, limits)
	return api
}

// programs returns the commands of an example in Python and TypeScript: the client limit, or a program that imports it.
func programs(t *testing.T, name string) map[string][]string {
	t.Helper()
	dir := compile(t, root+"/examples/clients/typescript/"+name+".ts", func(dir, _ string) {
		copyTo(t, dir, root+"/examples/clients/typescript/limit.ts")
	})
	return map[string][]string{
		"python":     {tooltest.Path(t, "python3"), root + "/examples/clients/python/" + name + ".py"},
		"typescript": {"node", filepath.Join(dir, name+".js")},
	}
}

func node(t *testing.T, program string) (modules, path string) {
	t.Helper()
	modules, err := filepath.Abs(root + "/.tools/openapi-typescript/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(modules, ".bin", program)
	if _, err := os.Stat(path); err != nil {
		tooltest.Missing(t, "openapi-typescript")
	}
	return modules, path
}

func copyTo(t *testing.T, dir, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

var documentOf = map[string]string{"rlsidecar": "openapi.json", "operators": "openapi-operators.json"}

func TestTheDocumentsAreValid(t *testing.T) {
	python := tooltest.Path(t, "python-openapi")
	for _, file := range documentOf {
		if output := run(t, documents, python, "-m", "openapi_spec_validator", file); !strings.HasSuffix(output, ": OK\n") {
			t.Errorf("%s: got %s; want the text \": OK\" at the end", file, output)
		}
	}
}

// generated is the expected output of the programs in testdata, each with the client of its language.
const generated = `[200,true,[["send_message_to",true,0]],false]
[200,true,[["send_message_to",true,0]],false]
[429,false,[["send_message_to",false,0]],true]
[200,true,[["send_message",true,9],["send_message_to",true,1]],false]
[400,"urn:rlsidecar:problem:never-fits","limit \"send_message\": the cost is 1000, but the limit can never hold more than 10"]
[404,"urn:rlsidecar:problem:unknown-limit","no limit is named \"nope\""]
[200,true,[["llm_tokens",true,10000]],false]
[200,true,[["llm_tokens",true,39000]],false]
["check",true,8]
["bucket","send_message","fixed_window",31536000000000,9]
["reset",true]
["limits",["llm_tokens","send_message","send_message_to"]]
["unauthorized","urn:rlsidecar:problem:unauthorized"]
["operators",[10]]
["adjust",403,"urn:rlsidecar:problem:forbidden"]
["adjustments",[]]
`

func TestAGeneratedPythonClient(t *testing.T) {
	python := tooltest.Path(t, "python-openapi")
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	// A warning means that a part of the document has no client. Formatting the client would need one more
	// program.
	if err := os.WriteFile(config, []byte("post_hooks: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range documentOf {
		run(t, documents, python, "-m", "openapi_python_client", "generate", "--fail-on-warning", "--meta", "none",
			"--config", config, "--path", file, "--output-path", filepath.Join(dir, name))
	}
	copyTo(t, dir, "testdata/generated.py")
	api, admin := serve(t, "testdata/limits.yaml")
	if output := run(t, dir, python, "generated.py", api, admin); output != generated {
		t.Errorf("it printed\n%s, want\n%s", output, generated)
	}
}

// compile type-checks a TypeScript program and returns the folder with its JavaScript.
func compile(t *testing.T, file string, prepare func(dir, generator string)) (dir string) {
	t.Helper()
	modules, tsc := node(t, "tsc")
	_, generator := node(t, "openapi-typescript")
	dir = t.TempDir()
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	prepare(dir, generator)
	copyTo(t, dir, file)
	run(t, dir, tsc, "--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext", "--types", "node",
		filepath.Base(file))
	return dir
}

func TestAGeneratedTypeScriptClient(t *testing.T) {
	dir := compile(t, "testdata/generated.ts", func(dir, generator string) {
		for name, file := range documentOf {
			run(t, documents, generator, file, "-o", filepath.Join(dir, name+".ts"))
		}
	})
	api, admin := serve(t, "testdata/limits.yaml")
	if output := run(t, dir, "node", "generated.js", api, admin); output != generated {
		t.Errorf("it printed\n%s, want\n%s", output, generated)
	}
}

// unreliable forwards requests to a sidecar, and makes some of them fail. To lose an answer, it closes the
// connection after the sidecar has answered.
type unreliable struct {
	forward http.Handler
	// failure selects the requests that fail: with "answer lost" and "unavailable" the first, with "odd answers
	// lost" the first, the third and so on, with "" none.
	failure string

	mu       sync.Mutex
	attempts []time.Time // guarded by mu
}

func (u *unreliable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.attempts = append(u.attempts, time.Now())
	first := len(u.attempts) == 1
	odd := len(u.attempts)%2 == 1
	u.mu.Unlock()
	switch {
	case first && u.failure == "answer lost", odd && u.failure == "odd answers lost":
		u.forward.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case first && u.failure == "unavailable":
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		u.forward.ServeHTTP(w, r)
	}
}

const exampleLimits = `
domain: d
limits:
  few: {algorithm: token_bucket, rate: 2, period: 1h}
  fast: {algorithm: token_bucket, rate: 1, period: 1s}
`

// TestTheExampleClientsReserve runs the clients that reserve an estimate and settle the real cost. The first
// answer to each of the two requests is lost, so that clients repeat it. No request may be charged twice.
func TestTheExampleClientsReserve(t *testing.T) {
	api := serveText(t, `
domain: ai
limits:
  tokens: {algorithm: fixed_window, rate: 10000, period: 300d, max_reserved: 0, settle: {estimate: 1500}}
`)
	to, err := url.Parse(api)
	if err != nil {
		t.Fatal(err)
	}
	for language, command := range programs(t, "budget") {
		t.Run(language, func(t *testing.T) {
			u := &unreliable{forward: httputil.NewSingleHostReverseProxy(to), failure: "odd answers lost"}
			s := httptest.NewServer(u)
			defer s.Close()
			for _, step := range []struct{ estimate, real, want string }{
				{"1500", "900", "settled, 9100 left"}, {"1500", "2000", "settled, 7100 left"}, {"7100", "0", "settled, 7100 left"},
			} {
				output := run(t, "", command[0], append(command[1:len(command):len(command)], s.URL, "tokens", language, step.estimate, step.real)...)
				if strings.TrimSpace(output) != step.want {
					t.Errorf("%+v: got %s; want %s", step, output, step.want)
				}
			}
			if len(u.attempts) != 12 {
				t.Errorf("%d requests, want each of 6 twice", len(u.attempts))
			}
		})
	}
}

func TestTheExampleClients(t *testing.T) {
	api := serveText(t, exampleLimits)
	to, err := url.Parse(api)
	if err != nil {
		t.Fatal(err)
	}
	forward, clients := httputil.NewSingleHostReverseProxy(to), programs(t, "limit")
	clients["go"] = []string{filepath.Join(t.TempDir(), "limit")}
	run(t, "", "go", "build", "-o", clients["go"][0], root+"/examples/clients/go")
	for language, command := range clients {
		t.Run(language, func(t *testing.T) {
			call := func(failure, wait, limit string) (output string, attempts []time.Time) {
				u := &unreliable{forward: forward, failure: failure}
				s := httptest.NewServer(u)
				defer s.Close()
				output = run(t, "", command[0], append(command[1:len(command):len(command)], s.URL, wait, limit, language)...)
				return strings.TrimSpace(output), u.attempts
			}
			if output, _ := call("", "0", "few"); output != "allowed, 1 left" {
				t.Errorf("the first unit: got %s, want allowed, 1 left", output)
			}
			if output, n := call("answer lost", "60", "few"); output != "allowed, 0 left" || len(n) != 2 {
				t.Errorf("after a lost answer: got %s in %d attempts; want 2 attempts that consume one unit", output, len(n))
			}
			if output, n := call("", "60", "few"); !regexp.MustCompile(`^denied, retry after 1\d{6} ms$`).MatchString(output) || len(n) != 1 {
				t.Errorf("a Retry-After of half an hour, more than the client may wait: got %s in %d attempts; want one denial", output, len(n))
			}
			if output, n := call("unavailable", "60", "fast"); output != "allowed, 0 left" || len(n) != 2 || n[1].Sub(n[0]) < time.Second {
				t.Errorf("the client must wait 1 s, as Retry-After requires: %s, attempts at %v", output, n)
			}
			if output, n := call("", "60", "fast"); output != "allowed, 0 left" || len(n) > 1 && n[1].Sub(n[0]) < time.Second {
				t.Errorf("a denied client must wait 1 s, as Retry-After requires: %s, attempts at %v", output, n)
			}
		})
	}
}

const slotTTL = 6 * time.Second

// TestTheExampleClientsHoldSlots runs the clients that hold a slot while a command runs. The command is cat, so it runs
// until the test closes its input, and its output shows that it has started.
func TestTheExampleClientsHoldSlots(t *testing.T) {
	api := serveText(t, fmt.Sprintf("domain: d\nlimits:\n  uploads: {algorithm: concurrency, capacity: 1, ttl: %v}\n", slotTTL))
	for language, command := range programs(t, "slot") {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			hold := func(work string) *holder {
				return holdSlot(t, append(command[:len(command):len(command)], api, "uploads", language, "sh", "-c", work))
			}
			inFlight := func(want string) {
				t.Helper()
				if state := ask(t, http.MethodGet, api+"/v1/limits/uploads?key="+language, ""); !strings.Contains(state, `"in_flight":`+want) {
					t.Errorf("got %s; want %s in flight", state, want)
				}
			}
			first := hold("cat")
			first.started()
			if got := hold("cat").ended(); got != "denied" {
				t.Errorf("the second holder: got %q, want denied", got)
			}
			time.Sleep(slotTTL + time.Second)
			inFlight("1") // renewed
			if got := first.ended(); got != "" {
				t.Errorf("the first holder: got %q, want no error", got)
			}
			inFlight("0")
			failing := hold("cat; exit 3")
			failing.started()
			inFlight("1")
			if got := failing.ended(); got != "failed" {
				t.Errorf("work that fails: got %q, want failed", got)
			}
			inFlight("0")
			losing := hold("exec cat")
			losing.started()
			ask(t, http.MethodPost, api+"/v1/reset", `{"name":"uploads","key":"`+language+`"}`)
			if got := losing.result(); got != "lost" { // its command would run until its input ends
				t.Errorf("after a reset: got %q, want lost", got)
			}
		})
	}
}

// holder is a running client whose command reads input and copies it to output.
type holder struct {
	t        *testing.T
	input    io.WriteCloser
	output   *bufio.Reader
	problems bytes.Buffer
	wait     func() error
}

func holdSlot(t *testing.T, command []string) *holder {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	h := &holder{t: t, wait: cmd.Wait}
	cmd.Env, cmd.Stderr = append(os.Environ(), "RLSIDECAR_API_TOKEN="+token), &h.problems
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.input, h.output = input, bufio.NewReader(output)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return h
}

// started returns when the command runs.
func (h *holder) started() {
	h.t.Helper()
	_, _ = io.WriteString(h.input, "started\n")
	if line, err := h.output.ReadString('\n'); err != nil {
		h.t.Fatalf("got %q, %v, %s; want the input of the command as its output", line, err, h.result())
	}
}

// ended ends the command, and returns the error message of the client, or "".
func (h *holder) ended() string {
	_ = h.input.Close()
	return h.result()
}

// result returns the error message of the client, or "", when it has ended.
func (h *holder) result() string {
	if err := h.wait(); err == nil {
		return ""
	}
	return strings.TrimSpace(h.problems.String())
}

func ask(t *testing.T, method, url, body string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: got %s %s, %v", method, url, answer.Status, text, err)
	}
	return string(text)
}
