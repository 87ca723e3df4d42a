package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func manyLimits(t *testing.T, text string) http.Handler {
	t.Helper()
	snapshot, problems := config.Compile([]config.File{{Name: "limits.yaml", Data: []byte("domain: d\nlimits:\n" + text)}}, config.Options{})
	if problems.Bad() {
		t.Fatal(problems)
	}
	clock := &storetest.Clock{}
	clock.Set(storetest.Start)
	l := limiter.New(memory.New(memory.Config{Clock: clock.Time}), limiter.Config{})
	l.Swap(snapshot)
	return New(Config{API: &API{Limiter: l, Headers: HeaderSets{IETF: true, X: true}}})
}

// Ten limits are charged, one of them for three keys. Eight must be shown, each once.
func TestTheHeaderOfPoliciesIsBounded(t *testing.T) {
	var limits, charges []string
	for i := range 10 {
		limits = append(limits, fmt.Sprintf("  l%d: {algorithm: token_bucket, rate: %d, period: 1h}\n", i, 100-i))
		charges = append(charges, fmt.Sprintf(`{"name":"l%d","key":"a"}`, i))
	}
	charges = append(charges, `{"name":"l0","key":"b"}`, `{"name":"l0","key":"c"}`)
	h := manyLimits(t, strings.Join(limits, ""))
	w := call(h, "POST", "/v1/limit", `{"limits":[`+strings.Join(charges, ",")+`]}`)
	const want = `"l9";q=91;w=3600, "l0";q=100;w=3600, "l1";q=99;w=3600, "l2";q=98;w=3600, "l3";q=97;w=3600, "l4";q=96;w=3600, "l5";q=95;w=3600, "l6";q=94;w=3600`
	if got := sent(w, "RateLimit-Policy"); w.Code != 200 || got != want {
		t.Errorf("got %d %s\nwant 200 %s", w.Code, got, want)
	}
	w = call(h, "POST", "/v1/limit", `{"limits":[{"name":"l1","key":"x"},{"name":"l0","key":"b"},{"name":"l0","key":"c"}]}`)
	if got := sent(w, "RateLimit-Policy"); got != `"l1";q=99;w=3600, "l0";q=100;w=3600` {
		t.Errorf("got %d %s; want the policies of l1 and l0", w.Code, got)
	}
}

// An integer in a structured field has at most 15 digits.
func TestNumbersInHeadersAreOfTheFormat(t *testing.T) {
	h := manyLimits(t, "  huge: {algorithm: fixed_window, rate: 4000000000000000, period: 1h}\n")
	w := call(h, "POST", "/v1/limit", `{"name":"huge","key":"a"}`)
	const most = "999999999999999"
	if sent(w, "X-RateLimit-Limit") != most || sent(w, "X-RateLimit-Remaining") != most || !strings.Contains(sent(w, "RateLimit"), "r="+most+";") {
		t.Errorf("got %d %v; want %s as the limit and as remaining", w.Code, w.Header(), most)
	}
}

// A client that repeats a denied request with its id must get the same jitter. Otherwise the smallest of many
// answers would reveal the exact time.
func TestJitterOfARequestWithAnIDIsTheSame(t *testing.T) {
	h, _ := onClock(t)
	call(h, "POST", "/v1/limit", `{"name":"tokens","key":"a","count":10}`)
	retry := func(id string) int64 {
		w := call(h, "POST", "/v1/limit", `{"name":"tokens","key":"a","jitter":1000000,"request_id":"`+id+`"}`)
		var answer apiReply
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 429 {
			t.Fatalf("got %d %s, %v; want status 429", w.Code, w.Body, err)
		}
		if want := fmt.Sprint(int64(math.Ceil(float64(answer.RetryAfter) / 1000))); sent(w, "Retry-After") != want {
			t.Errorf("Retry-After %s, and retry_after_ms %d; want Retry-After %s", sent(w, "Retry-After"), answer.RetryAfter, want)
		}
		return answer.RetryAfter
	}
	first, other := retry("r1"), retry("r2")
	for range 5 {
		if again := retry("r1"); again != first {
			t.Errorf("got the retry time %d; want %d as before", again, first)
		}
	}
	if first == other {
		t.Errorf("two requests have the same jitter, %d", first)
	}
}

func TestTheLongestWaitIsReported(t *testing.T) {
	h := manyLimits(t, "  slow: {algorithm: leaky_bucket, rate: 1, period: 10s, capacity: 9}\n  fast: {algorithm: leaky_bucket, rate: 1, period: 1s, capacity: 9}\n")
	const body = `{"limits":[{"name":"slow","key":"a"},{"name":"fast","key":"a"}]}`
	call(h, "POST", "/v1/limit", body)
	w := call(h, "POST", "/v1/limit", body)
	var answer apiReply
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 202 || answer.Wait != 10_000 {
		t.Errorf("got %d %s %v; want status 202 and a wait of 10 s", w.Code, w.Body, err)
	}
}

// halfAway is a store with two servers that decide a group together. The server with the bucket of "plain"
// fails.
type halfAway struct{ *memory.Store }

func (h halfAway) Submit(b *backend.Batch) {
	for i := range b.Charges {
		if strings.HasSuffix(b.Charges[i].Owner, "plain") {
			b.Decisions[i].Err = backend.ErrUnavailable
		} else {
			backend.Take(context.Background(), h.Store, b.Charges[i:i+1], b.Decisions[i:i+1])
		}
	}
	b.Done(b)
}

// One limit denies, and the store cannot decide the other. The answer must report the denial.
func TestADenialIsNotAFailureOfAnotherLimit(t *testing.T) {
	l := limiter.New(halfAway{memory.New(memory.Config{})}, limiter.Config{})
	l.Swap(authSnapshot(t, "domain: d\nlimits:\n  plain: {algorithm: token_bucket, rate: 1, period: 1h}\n"+
		"  empty: {algorithm: token_bucket, rate: 1, period: 1h}\n"))
	h := New(Config{API: &API{Limiter: l}})
	call(h, "POST", "/v1/limit", `{"name":"empty","key":"x"}`)
	for _, body := range []string{
		`{"limits":[{"name":"plain","key":"x"},{"name":"empty","key":"x"}]}`,
		`{"limits":[{"name":"empty","key":"x"},{"name":"plain","key":"x"}]}`,
	} {
		if w := call(h, "POST", "/v1/limit", body); w.Code != 429 {
			t.Errorf("%s: got %d %s; want status 429", body, w.Code, w.Body)
		}
	}
}
