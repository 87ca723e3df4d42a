package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func manyLimits(t *testing.T, text string) http.Handler {
	t.Helper()
	h, _ := onClock(t, func(a *API) {
		a.Headers = HeaderSets{IETF: true, X: true}
		a.Limiter.Swap(authSnapshot(t, "domain: d\nlimits:\n"+text))
	})
	return h
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

// An integer in a structured field has at most 15 digits (RFC 9651).
func TestNumbersInHeadersAreOfTheFormat(t *testing.T) {
	h := manyLimits(t, "  huge: {algorithm: fixed_window, rate: 4000000000000000, period: 1h}\n")
	w := call(h, "POST", "/v1/limit", `{"name":"huge","key":"a"}`)
	const most = "999999999999999"
	if sent(w, "X-RateLimit-Limit") != most || sent(w, "X-RateLimit-Remaining") != most || !strings.Contains(sent(w, "RateLimit"), "r="+most+";") {
		t.Errorf("got %d %v; want %s as the limit and as remaining", w.Code, w.Header(), most)
	}
}

// A limit with two rates has no single window, so its policy states none.
func TestHeadersOfAFullBucket(t *testing.T) {
	h, _ := onClock(t, func(a *API) { a.Headers = HeaderSets{X: true, IETF: true} })
	w := call(h, "POST", "/v1/limit", `{"name":"send","count":0}`)
	if sent(w, "X-RateLimit-Reset") != "0" || sent(w, "RateLimit") != `"send";r=10;t=0` {
		t.Errorf("got %v; want a reset in 0 s", w.Header())
	}
	spec := "  bank: {algorithm: token_bucket, rate: 10, period: 1s, guaranteed: {rate: 1, period: 1s}}\n"
	w = call(manyLimits(t, spec), "POST", "/v1/limit", `{"name":"bank","count":0}`)
	if got := sent(w, "RateLimit-Policy"); !strings.HasPrefix(got, `"bank";q=`) || strings.Contains(got, ";w=") {
		t.Errorf("a limit with two rates: got %q; want no window", got)
	}
}

func TestAHiddenResultHidesNoOther(t *testing.T) {
	first, second := &limiter.Policy{Owner: "first"}, &limiter.Policy{Owner: "second"}
	v := &limiter.Verdict{Results: []limiter.Result{{Policy: first}, {Policy: second}, {Policy: second}, {Policy: second}}}
	v.Results[1].Decision.Err = backend.ErrUnavailable
	for i, want := range map[int]bool{0: true, 1: false, 2: false, 3: true} {
		if got := shownBefore(v, i, 0); got != want {
			t.Errorf("result %d: got %v; want %v", i, got, want)
		}
	}
}
