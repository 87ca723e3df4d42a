package unmatched

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

var start = time.Date(2026, 3, 1, 3, 1, 0, 0, time.UTC)

// call returns a request that matched no limit. Each text is a descriptor. The domain "unknown" is not
// configured.
func call(tb testing.TB, domain string, texts ...string) *limiter.Call {
	tb.Helper()
	c := &limiter.Call{Request: limiter.Request{Domain: domain}}
	for _, text := range texts {
		entries, err := descriptors.Parse(text)
		if err != nil {
			tb.Fatal(err)
		}
		c.Descriptors = append(c.Descriptors, limiter.Descriptor{Entries: entries})
	}
	c.Snapshot = &limiter.Snapshot{}
	if domain != "unknown" {
		c.Verdict.Domain = &limiter.Domain{Name: domain}
	}
	return c
}

func shown(r *Recorder) string {
	_, top := r.Top(100)
	var b strings.Builder
	for _, s := range top {
		fmt.Fprintf(&b, "%d %s %t %s\n", s.Requests, s.Domain, s.Configured, s.Text())
	}
	return b.String()
}

func TestShapesAreCountedWithoutValues(t *testing.T) {
	now := start
	core, logs := observer.New(zap.InfoLevel)
	r := New(func() time.Time { return now }, zap.New(core))
	for i := range 3 {
		r.Observe(call(t, "edge", fmt.Sprintf("path=/%d,remote_addres=192.0.2.%d", i, i), "user=bob"))
	}
	r.Observe(call(t, "unknown", "a=1"))
	const want = "3 edge true path,remote_addres | user\n1 unknown false a\n"
	if got := shown(r); got != want {
		t.Errorf("%s; want %s", got, want)
	}
	now = start.Add(6 * time.Minute) // the previous window counts too
	r.Observe(call(t, "edge", "path=x,remote_addres=y", "user=z"))
	if got := shown(r); !strings.HasPrefix(got, "4 edge") {
		t.Errorf("in the next window: %s; want a text that starts with %q", got, "4 edge")
	}
	now = start.Add(20 * time.Minute)
	if got := shown(r); got != "" {
		t.Errorf("later: %s; want none", got)
	}
	// There is at most one warning a minute, and one an hour for each shape.
	if got := logs.Len(); got != 1 {
		t.Errorf("%d warnings, want 1", got)
	}
	r.Observe(call(t, "unknown", "a=1"))
	r.Observe(call(t, "edge", "path=x,remote_addres=y", "user=z"))
	texts := ""
	for _, entry := range logs.All() {
		texts += fmt.Sprintln(entry.Message, entry.ContextMap()["domain"], entry.ContextMap()["descriptors"])
	}
	if logs.Len() != 2 || !strings.Contains(texts, "edge path,remote_addres | user") || !strings.Contains(texts, "not configured") || strings.Contains(texts, "192.0.2") {
		t.Errorf("the log has\n%s\nwant 2 lines, with %q and %q, and without %q", texts, "edge path,remote_addres | user", "not configured", "192.0.2")
	}
}

func TestMemoryForShapesIsBounded(t *testing.T) {
	r := New(func() time.Time { return start }, zap.NewNop())
	for i := range 10_000 {
		r.Observe(call(t, "unknown", fmt.Sprintf("key%d=1", i)))
	}
	long := call(t, strings.Repeat("d", 1<<16), strings.Repeat("k", 1<<16)+"=1")
	for range 2000 {
		r.Observe(long)
	}
	_, top := r.Top(1 << 20)
	if len(top) > maxKept {
		t.Errorf("%d shapes; want at most %v", len(top), maxKept)
	}
	size := 0
	for _, s := range top {
		size += len(s.Domain) + len(s.Text())
	}
	if size > 4*maxKept*maxText || len(r.key) > 4*maxText || len(r.warned) > maxWarned {
		t.Errorf("%d bytes, a key of %d bytes, %d warnings; want at most %d, %d and %d", size, len(r.key), len(r.warned), 4*maxKept*maxText, 4*maxText, maxWarned)
	}
	if !strings.HasPrefix(top[0].Domain, "ddd") || !top[0].Cut {
		t.Errorf("the first shape is %+v; want a domain that starts with %q, and Cut", top[0], "ddd")
	}
}

func TestObservingAKnownShapeAllocatesNothing(t *testing.T) {
	r := New(func() time.Time { return start }, zap.NewNop())
	c := call(t, "edge", "a=1,b=2")
	r.Observe(c)
	if n := testing.AllocsPerRun(100, func() { r.Observe(c) }); n != 0 {
		t.Errorf("%v allocations; want 0", n)
	}
}
