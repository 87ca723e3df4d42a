package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/rogpeppe/go-internal/txtar"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
)

// reference is rlsidecar as a replacement of the reference server: it has that server's name, environment,
// files and ports, on a loopback address that no other test uses.
type reference struct {
	*process
	addr   string // HTTP is at :8080, gRPC at :8081, metrics at :9090
	debug  string
	files  string // the folder of limits
	rls    rls.RateLimitServiceClient
	health healthpb.HealthClient
}

const apiToken = "s3cret"

func newReference(t *testing.T, files map[string]string, env ...string) *reference {
	t.Helper()
	r := launchReference(t, files, env...)
	eventually(t, "it is ready", func() bool {
		if !r.running() {
			t.Fatalf("it ended: %v", r.err)
		}
		code, _ := r.get("/healthcheck")
		return code == http.StatusOK
	})
	return r
}

func launchReference(t *testing.T, files map[string]string, env ...string) *reference {
	t.Helper()
	data := t.TempDir()
	r := &reference{addr: loopback(), files: filepath.Join(data, "ratelimit", "config")}
	port := redistest.FreePort(t)
	r.debug = fmt.Sprintf("127.0.0.1:%d", port) // open to local processes only
	if err := os.MkdirAll(r.files, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		r.write(t, name, text)
	}
	cmd := exec.Command(sidecartest.Program)
	cmd.Args = []string{"ratelimit"} // by this name it reads the environment of the reference server
	cmd.Env = append([]string{
		"RUNTIME_ROOT=" + data, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"HOST=" + r.addr, "GRPC_HOST=" + r.addr, fmt.Sprintf("DEBUG_PORT=%d", port),
		"USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=" + r.addr + ":9090",
		"RLSIDECAR_API_TOKEN=" + apiToken, "RLSIDECAR_DRAIN_DELAY=0s", "RLSIDECAR_BACKEND_TIMEOUT=1s", // longer than the default, because the machine may be busy
	}, env...)
	r.process = startCommand(t, cmd)
	conn := dial(t, r.addr+":8081")
	r.rls, r.health = rls.NewRateLimitServiceClient(conn), healthpb.NewHealthClient(conn)
	return r
}

// write replaces a file in one step, so that no reader sees a part of it.
func (r *reference) write(t *testing.T, name, text string) {
	t.Helper()
	aside := filepath.Join(filepath.Dir(r.files), name+".new") // the temporary file is outside of the folder that rlsidecar reads
	writeFile(t, aside, text)
	if err := os.Rename(aside, filepath.Join(r.files, name)); err != nil {
		t.Fatal(err)
	}
}

// The code is 0 if there is no answer.
func (r *reference) get(path string) (code int, body string) {
	return fetch("http://" + r.addr + ":8080" + path)
}

func (r *reference) metrics() string {
	_, page := fetch("http://" + r.addr + ":9090/metrics")
	return page
}

// metric returns "" if the series does not exist.
func (r *reference) metric(name string) string {
	if value, ok := sidecartest.Metrics(r.addr+":9090", "")[name]; ok {
		return fmt.Sprint(value)
	}
	return ""
}

// sender sends a request to one of the listeners. It returns the answer, or the text of an error.
type sender func(t *testing.T, request *rls.RateLimitRequest) (*rls.RateLimitResponse, string)

func (r *reference) overGRPC(t *testing.T, request *rls.RateLimitRequest) (*rls.RateLimitResponse, string) {
	t.Helper()
	answer, err := r.rls.ShouldRateLimit(t.Context(), request)
	if err != nil {
		return nil, grpcstatus.Code(err).String() + ": " + grpcstatus.Convert(err).Message()
	}
	return answer, ""
}

// overHTTP sends a request to /json, which answers 400 for errors of code Unknown and 503 for Unavailable.
func (r *reference) overHTTP(t *testing.T, request *rls.RateLimitRequest) (*rls.RateLimitResponse, string) {
	t.Helper()
	body, err := protojson.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	// /json accepts refunds only with the token
	code, header, text := call(http.MethodPost, "http://"+r.addr+":8080/json", string(body), "Authorization: Bearer "+apiToken)
	switch code {
	case http.StatusBadRequest:
		return nil, "Unknown: " + strings.TrimSpace(text)
	case http.StatusServiceUnavailable:
		return nil, "Unavailable: " + strings.TrimSpace(text)
	}
	answer := &rls.RateLimitResponse{}
	if err := protojson.Unmarshal([]byte(text), answer); err != nil {
		t.Fatalf("status %d: the answer is not a RateLimitResponse: %v\n%s", code, err, text)
	}
	codes := map[int]rls.RateLimitResponse_Code{http.StatusOK: rls.RateLimitResponse_OK, http.StatusTooManyRequests: rls.RateLimitResponse_OVER_LIMIT}
	if want, ok := codes[code]; !ok || want != answer.OverallCode {
		t.Errorf("%d: got %s; want the code that belongs to the status", code, text)
	}
	if got := header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q, want application/json", got)
	}
	return answer, ""
}

// testdata/reference/README.md describes the format of the scripts.
func TestReference(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("testdata/reference/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range scripts {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, place := range []string{"memory", "redis"} {
			for _, listener := range []string{"grpc", "http"} {
				t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar")+"/"+place+"/"+listener, func(t *testing.T) {
					t.Parallel()
					play(t, archive, place, listener)
				})
			}
		}
	}
}

func play(t *testing.T, archive *txtar.Archive, place, listener string) {
	t.Helper()
	files, aside, env := map[string]string{}, map[string]string{}, []string{"BACKEND_TYPE=memory"}
	if place == "redis" {
		env = []string{"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redistest.Start(t).Addr}
	}
	for _, f := range archive.Files {
		switch name, later := strings.CutPrefix(f.Name, "later/"); {
		case f.Name == "env":
			env = append(env, strings.Fields(string(f.Data))...)
		case later:
			aside[name] = string(f.Data)
		default:
			files[name] = string(f.Data)
		}
	}
	r := newReference(t, files, env...)
	s := &script{T: t, r: r, send: r.overGRPC, later: aside, lines: strings.Split(string(archive.Comment), "\n")}
	if listener == "http" {
		s.send = r.overHTTP
	}
	s.run()
}

type script struct {
	*testing.T
	r     *reference
	send  sender
	later map[string]string
	lines []string
	at    int
	last  *rls.RateLimitResponse
}

func (s *script) run() {
	s.Helper()
	for ; s.at < len(s.lines); s.at++ {
		line := strings.TrimSpace(s.lines[s.at])
		word, rest, _ := strings.Cut(line, " ")
		rest = strings.TrimSpace(rest)
		switch word {
		case "", "#":
		case ">":
			s.request(rest)
		case "+":
			s.extra(rest)
		case "metric":
			name, want, _ := cutLast(rest)
			if got := s.r.metric(name); got != want {
				s.wrong(got)
			}
		case "page":
			path, want, _ := strings.Cut(rest, " ")
			if code, body := fetch("http://" + s.r.debug + path); code != http.StatusOK || !slices.Contains(strings.Split(body, "\n"), want) {
				s.wrong(body)
			}
		case "reload":
			s.reload(rest)
		default:
			s.Fatalf("line %d: unknown word %q", s.at+1, word)
		}
	}
}

func (s *script) wrong(got string) {
	s.Helper()
	s.Errorf("line %d: %s\n got: %s", s.at+1, strings.TrimSpace(s.lines[s.at]), got)
}

func (s *script) request(text string) {
	s.Helper()
	words := strings.Fields(text)
	request := rlstest.Request(strings.Trim(words[0], `"`))
	for _, w := range words[1:] {
		if _, err := fmt.Sscanf(w, "hits:%d", &request.HitsAddend); err != nil {
			request.Descriptors = append(request.Descriptors, rlstest.Descriptor(w))
		}
	}
	answer, problem := s.send(s.T, request)
	s.last = answer
	got := "error " + problem
	if answer != nil {
		got = rlstest.Response(answer)
	}
	if s.at++; s.at == len(s.lines) || !strings.HasPrefix(strings.TrimSpace(s.lines[s.at]), "<") {
		s.Fatalf("line %d: no answer to compare with; it is\n< %s", s.at, got)
	}
	if want := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(s.lines[s.at]), "<")); got != want {
		s.wrong(got)
	}
}

func (s *script) extra(want string) {
	s.Helper()
	var have []string
	for _, h := range s.last.ResponseHeadersToAdd {
		have = append(have, h.Key+": "+h.Value)
	}
	if s.last.DynamicMetadata != nil {
		text, err := protojson.Marshal(s.last.DynamicMetadata)
		if err != nil {
			s.Fatal(err)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, text); err != nil {
			s.Fatal(err)
		}
		have = append(have, "metadata: "+compact.String())
	}
	if want == "nothing" && have == nil {
		return
	}
	matches := func(h string) bool {
		return h == want || strings.HasSuffix(want, "*") && strings.HasPrefix(h, strings.TrimSuffix(want, "*"))
	}
	if !slices.ContainsFunc(have, matches) {
		s.wrong(strings.Join(have, "\n      "))
	}
}

func (s *script) reload(name string) {
	s.Helper()
	text, ok := s.later[name]
	if !ok {
		s.Fatalf("line %d: there is no later/%s", s.at+1, name)
	}
	seen := func() string {
		return s.r.metric("ratelimit_service_config_load_success") + " " + s.r.metric("ratelimit_service_config_load_error")
	}
	before := seen()
	s.r.write(s.T, name, text)
	eventually(s.T, "the sidecar has loaded or refused "+name, func() bool { return seen() != before })
}

func cutLast(text string) (before, after string, found bool) {
	i := strings.LastIndexByte(text, ' ')
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+1:], true
}
