package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

const named = `
domain: d
limits:
  send: {algorithm: token_bucket, rate: 3, period: 365d}
  pass: {algorithm: token_bucket, rate: 3, period: 365d, on_backend_failure: allow}
descriptors:
  - {key: user, limit: send}
`

func post(tb testing.TB, a net.Addr, path, body string, header ...string) (code int, answer string) {
	tb.Helper()
	got := exchange(tb, "POST", a, path, body, header...)
	text, err := io.ReadAll(got.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return got.StatusCode, string(text)
}

func TestTheAPIIsClosedToOtherMachinesWithoutAToken(t *testing.T) {
	everywhere := func(c *Config) { c.HTTP = "0.0.0.0:0" }
	x := start(t, named, everywhere)
	if code, answer := post(t, x.HTTP, "/v1/limit", `{"name":"send"}`); code != 401 || !strings.Contains(answer, "--api-token-file") {
		t.Errorf("without a token: %d %s; want code 401 and an answer that contains %q", code, answer, "--api-token-file")
	}
	if n := x.logs.FilterMessageSnippet("the HTTP API is off").Len(); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}
	x = start(t, named, everywhere, func(c *Config) { c.APIToken = "s3cret" })
	if code, answer := post(t, x.HTTP, "/v1/limit", `{"name":"send"}`, "Authorization", "Bearer s3cret"); code != 200 {
		t.Errorf("with the token: %d %s; want code 200", code, answer)
	}
	if code, _ := post(t, x.HTTP, "/v1/limit", `{"name":"send"}`); code != 401 {
		t.Errorf("without it: %d; want code 401", code)
	}
}

// On one Redis a sharded limit has one bucket, and on a Cluster ten shards. On both, remaining, and value divided by
// value_scale, are the units left in the whole limit.
func TestShardedLimitsAreShownWhole(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"one Redis": "redis://" + redistest.Start(t).Addr,
		"Cluster":   redistest.StartCluster(t, 3).URL(),
	} {
		t.Run(name, func(t *testing.T) {
			x := start(t, "domain: d\nlimits: {hot: {algorithm: token_bucket, rate: 100, period: 365d, shards: 10}}\n",
				onRedis(url), func(c *Config) { c.Redis.Timeout = 5 * time.Second })
			shows := func(path string, a net.Addr, want int64) {
				t.Helper()
				text := body(t, get(t, a, path))
				var shown struct {
					Remaining, Value int64
					Scale            int64 `json:"value_scale"`
				}
				if err := json.Unmarshal([]byte(strings.TrimSuffix(strings.TrimPrefix(text, `{"buckets":[`), "]}")), &shown); err != nil {
					t.Fatalf("%v: %s", err, text)
				}
				if shown.Remaining != want || shown.Value/shown.Scale != want {
					t.Errorf("got %s; want shown.Remaining %v and shown.Value / shown.Scale %v", text, want, want)
				}
			}
			left := int64(100)
			for _, count := range []int64{0, 1, 9, 20} {
				if code, answer := post(t, x.HTTP, "/v1/limit", fmt.Sprintf(`{"name":"hot","key":"bob","count":%d}`, count)); code != 200 {
					t.Fatalf("got %v %v; want code 200", code, answer)
				}
				left -= count
				shows("/v1/limits/hot?key=bob", x.HTTP, left)
				shows("/api/buckets?limit=hot&key=bob", x.Admin, left)
			}
		})
	}
}
