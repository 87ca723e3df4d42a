package limitsfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit/limitsfile"
)

const file = `
domain: edge
limits:
  sharded: {algorithm: token_bucket, rate: 8, period: 1h, shards: 2}
  messages: {algorithm: token_bucket, rate: 3, period: 1h, on_backend_failure: allow}
  monthly: {algorithm: fixed_window, rate: 5, period: month, time_zone: Europe/Berlin}
descriptors:
  - {key: user, limit: messages}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 1}}
`

func TestLoadedLimitsUseTheBucketsOfTheSidecar(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	store := memory.New(memory.Config{Clock: func() time.Time { return now }})
	path := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := limitsfile.Load("", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Store = store
	l, err := ratelimit.New(c)
	if err != nil {
		t.Fatal(err)
	}
	snapshot, problems := config.Load([]string{path}, config.Options{})
	if problems.Bad() {
		t.Fatalf("got %v; want no mistakes", problems)
	}
	sidecar := limiter.New(store, limiter.Config{})
	sidecar.Swap(snapshot)
	proxy := &limiter.Call{Request: limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{
		{Entries: []descriptors.Entry{{Key: "user", Value: "bob"}}, Cost: 2},
	}}}
	if err := sidecar.Check(t.Context(), proxy); err != nil || proxy.Denied {
		t.Fatalf("got %v %v; want no error and allowed", err, proxy.Denied)
	}
	if result, err := l.Allow(t.Context(), "messages", "bob"); err != nil || result.Remaining != 0 || result.Limit != 3 {
		t.Errorf("a proxy consumed 2 of 3 units: %+v, %v; want no error, 0 remaining and limit 3", result, err)
	}
	if _, err := l.Allow(t.Context(), "messages", "bob"); !errors.Is(err, ratelimit.ErrDenied) {
		t.Errorf("all 3 units are consumed: %v; want the error ratelimit.ErrDenied", err)
	}

	api := &limiter.Call{Request: limiter.Request{Domain: "edge", Limits: []limiter.NamedCharge{{Name: "sharded", Key: []string{"k"}, Count: 5}}}}
	if err := sidecar.Check(t.Context(), api); err != nil || api.Denied {
		t.Fatalf("got %v %v; want no error and allowed", err, api.Denied)
	}
	if result, err := l.Allow(t.Context(), "sharded", "k"); err != nil || result.Remaining != 2 || result.Limit != 8 {
		t.Errorf("the HTTP API consumed 5 of 8 units: %+v, %v; want no error, 2 remaining and limit 8", result, err)
	}
	if result, err := l.Allow(t.Context(), "monthly"); err != nil || result.ResetAfter != 11*time.Hour {
		t.Errorf("February begins in Berlin in 11 hours: %+v, %v; want no error and reset after %v", result, err, 11*time.Hour)
	}
	if l.Has("path") {
		t.Error("the limit at descriptor path was loaded; want only limits with a name")
	}
}

// A sidecar settles what a Go program with the same limits, Store and secret has reserved, and the program settles what a
// proxy has reserved. Each reservation is settled once.
func TestAGoProgramSettlesWithTheSidecars(t *testing.T) {
	const text = "domain: ai\nlimits: {tokens: {algorithm: fixed_window, rate: 1000, period: 300d, settle: {estimate: 100}}}\ndescriptors: [{key: user, limit: tokens}]\n"
	store := memory.New(memory.Config{})
	c, err := limitsfile.Parse("", "limits.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	c.Store, c.Secret = store, "secret"
	program, err := ratelimit.New(c)
	if err != nil {
		t.Fatal(err)
	}
	snapshot := configtest.Compile(t, text)
	sidecar := limiter.New(store, limiter.Config{
		IDs: reservation.NewKeys(func() []string { return []string{"secret"} }),
		Now: func() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) },
	})
	sidecar.Swap(snapshot)
	send := func(all ...limiter.Descriptor) (id string) {
		t.Helper()
		c := &limiter.Call{Request: limiter.Request{Domain: "ai", Descriptors: all}}
		if err := sidecar.Check(t.Context(), c); err != nil || c.Denied {
			t.Errorf("%v: %v, denied %t; want allowed", all, err, c.Denied)
		}
		return string(c.AppendID(nil))
	}
	done := func(id string, cost int64) {
		t.Helper()
		send(limiter.Descriptor{Entries: []descriptors.Entry{{Key: "settle", Value: id}}, Cost: cost, Explicit: true, Declared: true},
			limiter.Descriptor{Entries: []descriptors.Entry{{Key: "settle_end", Value: id}}, Explicit: true})
	}
	left := func(key string, want int64) {
		t.Helper()
		if r, err := program.Peek(t.Context(), 0, "tokens", key); err != nil || r.Remaining != want {
			t.Errorf("%s has %d left, %v; want %d", key, r.Remaining, err, want)
		}
	}
	id := send(limiter.Descriptor{Entries: []descriptors.Entry{{Key: "user", Value: "bob"}}, Cost: 1})
	var r ratelimit.Reservation
	if err := r.UnmarshalText([]byte(id)); err != nil {
		t.Fatal(err)
	}
	if _, err := program.Settle(t.Context(), r, 30); err != nil {
		t.Error(err)
	}
	done(id, 90) // has no effect
	left("bob", 970)

	r, err = program.ReserveN(t.Context(), 500, "tokens", "eve")
	if err != nil {
		t.Fatal(err)
	}
	own, err := r.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	done(string(own), 7)
	left("eve", 993)
}

func TestFilesThatCannotBeLoaded(t *testing.T) {
	const limits = "\nlimits: {a: {algorithm: token_bucket, rate: 1, period: 1s}}\n"
	for _, c := range []struct{ domain, text, want string }{
		{"", "domain: d\nlimits: {a: {algorithm: token_bucket, rate: -1, period: 1s}, b: {algorithm: gcra, rate: 1, period: 1s}}", "limits.yaml:2:"},
		{"", "domain: d" + limits + "---\ndomain: e" + limits, "the domains d, e; pass one"},
		{"f", "domain: d" + limits, `no domain "f", but d`},
		{"d", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]", "no limit with a name"},
		{"", "domain: d\nlimits: {a: {algorithm: token_bucket, rate: 1, period: 1s, shadow_mode: true}}", `limits.yaml:2: limit "a" has shadow_mode`},
	} {
		got, err := limitsfile.Parse(c.domain, "limits.yaml", []byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\nerror %v, want one with %s", c.text, err, c.want)
		}
		if got.Limits != nil {
			t.Errorf("%s: has limits beside an error; want limits nil", c.text)
		}
	}
	both := "domain: d\nlimits: {a: {algorithm: token_bucket, rate: 2000000000000, period: 1s}, b: {algorithm: gcra, rate: 1, period: 1s}}\n" +
		"descriptors: [{key: k, limit: a}]"
	if _, err := limitsfile.Parse("", "limits.yaml", []byte(both)); err == nil || !strings.Contains(err.Error(), "gcra") || strings.Contains(err.Error(), "Envoy") {
		t.Errorf("a mistake beside a warning: got %v, want an error with the mistake alone", err)
	}
	if _, err := limitsfile.Load(""); err == nil {
		t.Error("Load without a path returned no error")
	}
	c, err := limitsfile.Parse("", "limits.yaml", []byte("domain: d"+limits))
	if err != nil {
		t.Fatal(err)
	}
	c.Store, c.Domain = memory.New(memory.Config{}), "other"
	if _, err := ratelimit.New(c); err == nil || !strings.Contains(err.Error(), `it was loaded as limit "a" of domain "d"`) {
		t.Errorf("another domain has other buckets: %v; want an error that contains %q", err, `it was loaded as limit "a" of domain "d"`)
	}
}
