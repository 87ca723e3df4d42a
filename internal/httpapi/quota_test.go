package httpapi

import (
	"testing"
	"testing/synctest"
	"time"
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
