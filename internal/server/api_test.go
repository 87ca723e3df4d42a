package server

import (
	"io"
	"net"
	"strings"
	"testing"
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
