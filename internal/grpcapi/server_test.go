package grpcapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// snapshot returns a configuration with one domain "d". The key of each policy is its name, with any value.
func snapshot(policies ...*limiter.Policy) *limiter.Snapshot {
	d := &limiter.Domain{Name: "d", Tree: &limiter.Tree{}, Policies: policies}
	s := &limiter.Snapshot{Domains: map[string]*limiter.Domain{"d": d}, Policies: policies}
	for i, p := range policies {
		if p.Limit == nil {
			p.Limit = &algorithms.Limit{}
		}
		p.Index, p.Domain, p.Owner, p.Open = i, "d", "d/"+p.Name, []int{0}
		p.Prefix = descriptors.Prefix("d", "path", p.Name, p.Limit.Kind)
		node, _ := d.Tree.Add(nil, descriptors.ValuePattern(p.Name, ""))
		node.Found.Policies = append(node.Found.Policies, p)
	}
	return s
}

type refusals struct{ sync.Map }

func (r *refusals) Refused(reason string) {
	n, _ := r.LoadOrStore(reason, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

func (r *refusals) TooLarge(bound string) { r.Refused("more " + bound) }

func (r *refusals) count(reason string) int64 {
	if n, ok := r.Load(reason); ok {
		return n.(*atomic.Int64).Load()
	}
	return 0
}

func newServer(tb testing.TB, l *limiter.Limiter, o Options) (*Server, *refusals) {
	tb.Helper()
	r := &refusals{}
	s, err := New(l, r, o, zap.NewNop())
	if err != nil {
		tb.Fatal(err)
	}
	return s, r
}

// send decides a request alone in a batch.
func send(s *Server, ctx context.Context, wire []byte) (*rls.RateLimitResponse, error) {
	b := s.NewBatch()
	deadline, ok := ctx.Deadline()
	left := time.Duration(0)
	if ok {
		left = time.Until(deadline)
	}
	var canceled atomic.Bool
	canceled.Store(ctx.Err() != nil && !ok)
	b.Add(wire, time.Now(), left, &canceled, nil)
	done := make(chan struct{})
	b.Submit(deadline, nil, func() { close(done) })
	<-done
	out, err := b.Answer(nil, 0)
	if d := b.Delay(0); d > 0 {
		due := make(chan struct{})
		stop := s.Later(d, func() { close(due) })
		defer stop()
		select {
		case <-due:
		case <-ctx.Done():
			return nil, grpcstatus.FromContextError(ctx.Err()).Err()
		}
	}
	if err != nil {
		return nil, err
	}
	return response(out)
}

func response(wire []byte) (*rls.RateLimitResponse, error) {
	var r rls.RateLimitResponse
	return &r, proto.Unmarshal(wire, &r)
}

func mustAllow(t *testing.T, s *Server, key string) {
	t.Helper()
	if got, err := send(s, t.Context(), request(key)); err != nil || got.OverallCode != ok {
		t.Errorf("got %v, %v; want OK", got, err)
	}
}

// request returns a request for domain "d" with one descriptor for each key. All values are "v".
func request(keys ...string) []byte {
	var list []*ratelimit.RateLimitDescriptor
	for _, key := range keys {
		list = append(list, entry(key, "v", nil))
	}
	return encoded(0, list...)
}

func newLimiter(policies ...*limiter.Policy) *limiter.Limiter {
	l := limiter.New(memory.New(memory.Config{}), limiter.Config{})
	l.Swap(snapshot(policies...))
	return l
}

// storeFunc is a Store made from a function. It decides the only limit, "k".
type storeFunc func(decisions []backend.Decision)

func (f storeFunc) Submit(b *backend.Batch) {
	f(b.Decisions)
	b.Done(b)
}

func (f storeFunc) limiter(tb testing.TB, onFailure limiter.OnFailure) *limiter.Limiter {
	tb.Helper()
	l := limiter.New(f, limiter.Config{})
	l.Swap(snapshot(&limiter.Policy{
		Name: "k", OnFailure: onFailure, Limit: compile(tb, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: second}),
	}))
	return l
}

func TestWrongRequestsAreErrorsAsOfTheReferenceServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, counted := newServer(t, limiter.New(memory.New(memory.Config{}), limiter.Config{}), Options{})
		noDomain, _ := proto.Marshal(&rls.RateLimitRequest{Descriptors: []*ratelimit.RateLimitDescriptor{{}}})
		for _, c := range []struct {
			wire []byte
			text string
			why  string
		}{
			{noDomain, "rate limit domain must not be empty", NoDomain},
			{nil, "rate limit domain must not be empty", NoDomain},
			{request(), "rate limit descriptor list must not be empty", NoDescriptors},
			{request("k"), "no rate limit configuration loaded", NoConfig},
		} {
			before := counted.count(c.why)
			_, err := send(s, t.Context(), c.wire)
			if got := grpcstatus.Convert(err); got.Code() != codes.Unknown || got.Message() != c.text {
				t.Errorf("got %v; want the code Unknown and the message %q", err, c.text)
			}
			if counted.count(c.why) != before+1 {
				t.Errorf("%q is not counted", c.text)
			}
		}
		if _, err := send(s, t.Context(), []byte{0x0a}); err == nil || counted.count(Malformed) != 1 {
			t.Errorf("malformed: got %v, counted %d times; want an error that is counted once", err, counted.count(Malformed))
		}
	})
}

func TestTooMuchIsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, counted := newServer(t, newLimiter(), Options{})
		keys := make([]string, DefaultDescriptors+1)
		got, err := send(s, t.Context(), request(keys...))
		if err != nil || got.OverallCode != over || counted.count(TooMuch) != 1 || counted.count("more descriptors") != 1 {
			t.Errorf("got %v, %v; want OVER_LIMIT, counted as too much", got, err)
		}
		if got, err := send(s, t.Context(), request(keys[1:]...)); err != nil || got.OverallCode != ok {
			t.Errorf("as many descriptors as are allowed: got %v, %v; want OK", got.GetOverallCode(), err)
		}
		// Without a domain, a request is normally an error. This request has too many descriptors, too. So it must be
		// denied, because after an error the proxy would allow it.
		got, err = send(s, t.Context(), request(keys...)[len("\x0a\x01d"):])
		if err != nil || got.OverallCode != over || counted.count(TooMuch) != 2 {
			t.Errorf("without a domain: got %v, %v; want OVER_LIMIT, counted as too much", got, err)
		}
	})
}

func TestPanicIsADenialLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zapcore.InfoLevel)
		var counted refusals
		s, err := New(storeFunc(func([]backend.Decision) { panic("bug") }).limiter(t, limiter.Deny), &counted, Options{}, zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		const body = `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`
		for range 10 {
			if code, got := s.AnswerJSON(t.Context(), []byte(body), false); code != 429 || string(got) != `{"overallCode":"OVER_LIMIT"}` {
				t.Fatalf("got %d %s; want a denial", code, got)
			}
		}
		if counted.count(Panicked) != 10 || logged.Len() != 1 {
			t.Errorf("got %d counted, %d logged; want 10 panics counted and 1 logged", counted.count(Panicked), logged.Len())
		}
		time.Sleep(time.Second)
		if s.AnswerJSON(t.Context(), []byte(body), false); logged.Len() != 2 {
			t.Errorf("%d panics logged a second later; want 2", logged.Len())
		}
	})
}

func TestErrorPolicyIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newServer(t, storeFunc(func(d []backend.Decision) { d[0].Err = backend.ErrUnavailable }).limiter(t, limiter.Error), Options{})
		if _, err := send(s, t.Context(), request("k")); grpcstatus.Code(err) != codes.Unavailable {
			t.Error(err)
		}
	})
}

func leaky(t *testing.T) *limiter.Policy {
	t.Helper()
	queue := int64(1000)
	return &limiter.Policy{Name: "jobs", Extras: &limiter.Extras{MaxDelay: 90 * second}, Limit: compile(t, algorithms.Spec{
		Kind: algorithms.LeakyBucket, Rate: 1, Period: second, Capacity: &queue,
	})}
}

func TestAnswersAreDelayedUntilTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newServer(t, newLimiter(leaky(t)), Options{})
		start := time.Now()
		for i := range 3 {
			got, err := send(s, t.Context(), request("jobs"))
			if err != nil || got.OverallCode != ok {
				t.Fatalf("got %v, %v; want OK", got, err)
			}
			if waited := time.Since(start).Round(time.Millisecond); waited != time.Duration(i)*time.Second {
				t.Errorf("answer %d after %v; want %d s", i, waited, i)
			}
		}
		// The turns of the leaky bucket are a second apart. The turn after the next one is less than 2 ms
		// before this caller's deadline, so no time is left for sending the answer.
		go mustAllow(t, s, "jobs")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second+time.Millisecond)
		defer cancel()
		if got, err := send(s, ctx, request("jobs")); err != nil || got.OverallCode != over {
			t.Errorf("too late: got %v, %v; want OVER_LIMIT", got, err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second+3*time.Millisecond)
		defer cancel()
		if got, err := send(s, ctx, request("jobs")); err != nil || got.OverallCode != ok {
			t.Errorf("in time: got %v, %v; want OK", got, err)
		}
		s.delays.Most = -1 // no answer may be delayed
		if got, err := send(s, t.Context(), request("jobs")); err != nil || got.OverallCode != over {
			t.Errorf("no room: got %v, %v; want OVER_LIMIT", got, err)
		}
		time.Sleep(time.Second)
		mustAllow(t, s, "jobs") // without a delay
	})
}

func TestTheLargestRequestInJSONIsDecided(t *testing.T) {
	s, _ := newServer(t, newLimiter(), Options{Bounds: Bounds{Descriptors: 2, Entries: 2}})
	const one = `{"entries":[{"key":"a","value":"v"},{"key":"b","value":"v"}],"limit":{"requestsPerUnit":9,"unit":"SECOND"}}`
	for list, want := range map[string]int{one + "," + one: 200, one + "," + one + "," + one: 429} {
		if code, got := s.AnswerJSON(t.Context(), []byte(`{"domain":"d","descriptors":[`+list+`]}`), false); code != want {
			t.Errorf("%s: got %d %s, want %d", list, code, got, want)
		}
	}
}

func TestJSON(t *testing.T) {
	p := &limiter.Policy{Name: "k", Limit: compile(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 1, Period: hour})}
	s, counted := newServer(t, newLimiter(p), Options{})
	const body = `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`
	for _, c := range []struct {
		body string
		code int
		want string
	}{
		{body, 200, `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":1,"unit":"HOUR"},"durationUntilReset":"3600s"}]}`},
		{body, 429, `{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"requestsPerUnit":1,"unit":"HOUR"},"durationUntilReset":"3600s"}]}`},
		{`{"domain":"d"}`, 400, "rate limit descriptor list must not be empty\n"},
		{`{"domain":"d","nonsense":1}`, 400, ""},
		{``, 400, ""},
		{`{"domain":"\ud800"}`, 400, ""},
	} {
		code, got := s.AnswerJSON(t.Context(), []byte(c.body), false)
		if code != c.code {
			t.Errorf("%s: got %d %s; want status %d", c.body, code, got, c.code)
		}
		if c.want != "" && compact(got) != c.want {
			t.Errorf("%s: got %s; want %s", c.body, got, c.want)
		}
	}
	for name, body := range map[string]string{
		"many descriptors": `{"domain":"d","descriptors":[{}` + strings.Repeat(",{}", DefaultDescriptors) + `]}`,
		"many objects":     `{"descriptors":[{}` + strings.Repeat(",{}", 20_000) + `]}`,
		"many entries":     `{"domain":"d","descriptors":[{"entries":[{}` + strings.Repeat(",{}", DefaultEntries) + `]}]}`,
	} {
		was := counted.count(TooMuch)
		code, got := s.AnswerJSON(t.Context(), []byte(body), false)
		if code != 429 || compact(got) != `{"overallCode":"OVER_LIMIT"}` || counted.count(TooMuch) != was+1 {
			t.Errorf("%s: got %d %s; want status 429 with OVER_LIMIT, counted as too much", name, code, got)
		}
	}
	const refund = `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}],"hitsAddend":"1","isNegativeHits":true}]}`
	for _, body := range []string{refund, strings.Replace(refund, "[{", `[{"entries":[{"key":"k","value":"v"}]},{`, 1)} {
		was := counted.count(Untrusted)
		if code, got := s.AnswerJSON(t.Context(), []byte(body), false); code != 403 || counted.count(Untrusted) != was+1 {
			t.Errorf("%s without the token: got %d %s; want status 403, counted as untrusted", body, code, got)
		}
	}
	if code, got := s.AnswerJSON(t.Context(), []byte(body), false); code != 429 {
		t.Errorf("after the refused refund: got %d %s; want status 429", code, got)
	}
	for _, c := range []struct {
		body string
		code int
	}{{refund, 200}, {body, 200}, {body, 429}} {
		if code, got := s.AnswerJSON(t.Context(), []byte(c.body), true); code != c.code {
			t.Errorf("%s with the token: %d %s, want %d", c.body, code, got, c.code)
		}
	}
	braces := strings.Replace(body, `"v"`, `"`+strings.Repeat(`{\"{\\`, 1000)+`"`, 1)
	if code, got := s.AnswerJSON(t.Context(), []byte(braces), false); code != 200 {
		t.Errorf("braces in a text: got %d %s; want status 200", code, got)
	}
	if counted.count(Malformed) != 3 {
		t.Errorf("%d requests were counted as malformed; want 3", counted.count(Malformed))
	}
	s.limiter = storeFunc(func(d []backend.Decision) { d[0].Err = errors.New("unreachable") }).limiter(t, limiter.Error)
	if code, got := s.AnswerJSON(t.Context(), []byte(body), false); code != 503 || string(got) != "unreachable\n" {
		t.Errorf("got %d %s; want status 503 and \"unreachable\"", code, got)
	}
}

// compact removes the spaces of JSON, which protojson adds at random. Other texts stay as they are.
func compact(text []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, text) != nil {
		return string(text)
	}
	return b.String()
}

// usual has the header names of the reference server.
var usual = Headers{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}

func TestBytesOfClientsAreLimitedAndNeverEchoed(t *testing.T) {
	p := &limiter.Policy{Name: "k", RateName: "name", Limit: compile(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 1, Period: hour})}
	l := newLimiter(p)
	l.Current().Domains["d"].DenyBody = limiter.TextBody
	s, _ := newServer(t, l, Options{Headers: &usual})
	for name, value := range map[string]string{
		"not UTF-8": "bob\xff", "NUL": "x\x00x", "line ends": "a\r\ninjected: yes", "long": strings.Repeat("x", 60<<10),
		"empty": "", "half a rune": "\xe2\x82",
	} {
		wire := appendText(nil, requestDomain, "d")
		wire, at := openMessage(wire, requestDescriptors)
		wire, entry := openMessage(wire, descriptorEntries)
		wire = appendText(appendText(wire, entryKey, "k"), entryValue, value)
		wire = closeMessage(closeMessage(wire, entry), at)
		for i, want := range []rls.RateLimitResponse_Code{ok, over} {
			batch := s.NewBatch()
			batch.Add(wire, time.Now(), 0, nil, nil)
			submit(batch)
			raw, err := batch.Answer(nil, 0)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got := reread(t, raw)
			if got.OverallCode != want || len(got.ResponseHeadersToAdd) != 3+i || (len(got.RawBody) > 0) != (i == 1) {
				t.Errorf("%s: request %d: %v; want %v with the headers of the limit, and a body and its type if it is denied", name, i, got, want)
			}
			if len(value) > 1 && strings.Contains(string(raw), value) {
				t.Errorf("%s: the answer contains the value of the client", name)
			}
		}
	}
}

func BenchmarkBatch(b *testing.B) {
	const many = 16
	p := &limiter.Policy{Name: "k", Limit: compile(b, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1e9, Period: second})}
	s, _ := newServer(b, newLimiter(p), Options{})
	send := batchOf(s, many)
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*many), "ns/request")
}

// submit submits b to a store that decides at once.
func submit(b *Batch) {
	b.Submit(time.Time{}, nil, func() {})
}

func batchOf(s *Server, n int) (send func()) {
	batch, message, now, room := s.NewBatch(), request("k"), time.Now(), make([]byte, 0, 4096)
	return func() {
		batch.Reset()
		for range n {
			batch.Add(message, now, 0, nil, nil)
		}
		submit(batch)
		out := room
		for i := range n {
			out, _ = batch.Answer(out, i)
		}
	}
}

func TestTheBoundsThatAnOperatorMayConfigure(t *testing.T) {
	for b, valid := range map[Bounds]bool{
		{}: true, {Descriptors: 1, Entries: 1}: true, {Descriptors: MaxDescriptors, Entries: MaxEntries}: true,
		{Descriptors: MaxDescriptors + 1}: false, {Entries: MaxEntries + 1}: false, {Descriptors: -1}: false, {Entries: -1}: false,
	} {
		if err := (Options{Bounds: b}).Check(); (err == nil) != valid {
			t.Errorf("%+v: got %v; want an error: %t", b, err, !valid)
		}
	}
	bad := Options{Headers: &Headers{"a b", "c", "d"}}
	if s, err := New(newLimiter(), &refusals{}, bad, zap.NewNop()); err == nil || s != nil || bad.Check() == nil {
		t.Errorf("got %v, %v; want an error from New and from Check", s, err)
	}
}
