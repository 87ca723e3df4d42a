package httpapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/denials"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

const quotas = `
domain: d
limits:
  plain: {algorithm: token_bucket, rate: 1, period: 10s}
  slow:  {algorithm: token_bucket, rate: 1, period: 100s, quota_mode: true}
  other: {algorithm: token_bucket, rate: 3, period: 300s, quota_mode: true}
  half:  {algorithm: token_bucket, rate: 2, period: 3s, capacity: 1}
descriptors:
  - {key: plain, limit: plain}
  - {key: slow, limit: slow}
  - {key: other, limit: other}
  - {key: half, limit: half}
auth:
  trusted_proxies: [127.0.0.1]
  routes:
    - {match: {path: /half}, descriptors: [[{key: half, value: x}]]}
    - descriptors: [[{key: slow, value: x}], [{key: plain, value: x}], [{key: other, value: x}]]
`

// The limit "plain" denies for 10 s. One of two quota limits is empty for 100 s, but does not deny the request. When
// both quota limits are empty, the answer must report both.
func TestAQuotaThatDoesNotDenyIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := authHandler(t, quotas)
		recorder := denials.New(time.Now)
		l := limiter.New(memory.New(memory.Config{}), limiter.Config{Observer: observers{recorder}})
		l.Swap(authSnapshot(t, quotas))
		d.Limiter = l
		h := d.handler()
		for i, want := range []string{
			"200 ",
			// plain denies for 10 s. slow is empty for 100 s. other has 2 units, and consumes one.
			`429 retry 10, "plain";r=0;t=10, reset 10, violated "plain"`,
			// plain and both quota limits are empty. slow and other are empty for 100 s.
			`429 retry 100, "slow";r=0;t=100, reset 100, violated "slow","plain","other"`,
		} {
			if i == 2 { // other consumes the last of its three units
				c := &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: "other", Key: []string{"x"}, Count: 1}}}}
				if err := l.Check(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			w := put(h, foreign, "GET /v1/auth")
			got := fmt.Sprint(w.Code, " ")
			if w.Code != 200 {
				_, violated, _ := strings.Cut(w.Body.String(), `"violated-policies":[`)
				violated, _, _ = strings.Cut(violated, "]")
				got += fmt.Sprintf("retry %s, %s, reset %s, violated %s", sent(w, "Retry-After"), sent(w, "RateLimit"), sent(w, "X-RateLimit-Reset"), violated)
			}
			if got != want {
				t.Errorf("%d: got %s\nwant %s", i, got, want)
			}
		}
		var outcomeOf []string
		for _, d := range recorder.Top(9).Keys {
			outcomeOf = append(outcomeOf, fmt.Sprint(d.Limit, " ", d.Times))
		}
		if got := strings.Join(outcomeOf, ", "); got != "plain 2, other 1, slow 1" {
			t.Errorf("the keys denied most: got %s; want plain 2, other 1, slow 1", got)
		}
	})
}

// observers gets the denials, as the Observer of the server does.
type observers struct{ *denials.Recorder }

func (o observers) Swapped(*limiter.Snapshot) {}
func (o observers) Observe(c *limiter.Call) {
	if c.Denied {
		o.Recorder.Observe(c)
	}
}

// If the store cannot decide the limit "plain", its failure is the reason for the denial, whatever a quota limit
// decides.
func TestAQuotaThatDoesNotDenyHidesNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := authHandler(t, quotas)
		l := limiter.New(partly{memory.New(memory.Config{})}, limiter.Config{})
		l.Swap(authSnapshot(t, quotas))
		d.Limiter = l
		for range 2 {
			if w := put(d.handler(), foreign, "GET /v1/auth"); w.Code != 429 || reason(w) != "backend-failure" {
				t.Errorf("got %d %s; want status 429 with the reason backend-failure", w.Code, outcomeOf(w))
			}
		}
		h := New(Config{API: &API{Limiter: l}})
		if w := call(h, "POST", "/v1/limit", `{"limits":[{"name":"slow","key":"x"},{"name":"plain","key":"x"},{"name":"other","key":"x"}]}`); w.Code != 503 {
			t.Errorf("got %d %s; want status 503", w.Code, w.Body)
		}
	})
}

type partly struct{ *memory.Store }

func (p partly) Submit(b *backend.Batch) {
	defer b.Done(b)
	charges, decisions := b.Charges, b.Decisions
	for len(charges) > 0 {
		n := backend.GroupLen(charges)
		if strings.HasSuffix(charges[0].Owner, "plain") {
			for i := range n {
				decisions[i].Err = backend.ErrUnavailable
			}
		} else {
			backend.Take(context.Background(), p.Store, charges[:n], decisions[:n])
		}
		charges, decisions = charges[n:], decisions[n:]
	}
}

// A wait of 1.5 s becomes 2 in Retry-After for every proxy, because a retry after 1 s would be too early.
func TestRetryAfterIsRoundedUp(t *testing.T) {
	for _, c := range []struct {
		path, want string
		code       int
	}{{"/half", "2", 429}, {"/nginx/half", "2", 403}} {
		synctest.Test(t, func(t *testing.T) {
			d, _ := authHandler(t, quotas)
			send := func() (int, string, string) {
				w := put(d.handler(), proxy, "GET /v1/auth"+c.path, "X-Original-URI: /half")
				return w.Code, sent(w, "Retry-After"), sent(w, "RateLimit")
			}
			if code, _, _ := send(); code != 200 {
				t.Fatalf("got %v; want status 200", code)
			}
			if code, retry, limit := send(); code != c.code || retry != c.want || limit != `"half";r=0;t=`+c.want {
				t.Errorf("%s: got %d %s %s; want %d %s", c.path, code, retry, limit, c.code, c.want)
			}
			time.Sleep(1500*time.Millisecond - time.Microsecond)
			if code, retry, _ := send(); code != c.code || retry != "1" {
				t.Errorf("%s, a microsecond early: got %d, Retry-After %s; want %d and 1", c.path, code, retry, c.code)
			}
			time.Sleep(time.Microsecond)
			if code, _, _ := send(); code != 200 {
				t.Errorf("%s, in time: got %d; want status 200", c.path, code)
			}
		})
	}
}
