package admin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func TestASearchTriesABoundedNumberOfLimits(t *testing.T) {
	for _, more := range []int{0, 1} {
		text := "domain: d\nlimits:\n"
		for i := range maxTried + more {
			text += fmt.Sprintf("  l%d: {algorithm: token_bucket, rate: 1, period: 1s}\n", i)
		}
		text += "descriptors: [{key: free, rate_limit: {unlimited: true}}]\n" // it has no buckets, so it is not tried
		note := fmt.Sprintf("Only %d limits were tried.", maxTried)
		if body := swapped(t, text).read(t, "/key?q=x"); strings.Contains(body, note) != (more > 0) {
			t.Errorf("with %d limits that have buckets: got %s; want %q: %t", maxTried+more, body, note, more > 0)
		}
	}
}

// A store that does not answer must not look as if the key were allowed or denied.
func TestASearchWithoutTheStoreIsUnknown(t *testing.T) {
	d := swapped(t, loose)
	away := limiter.New(unavailable{}, limiter.Config{})
	away.Swap(d.limiter.Current())
	p := &pages{Config: Config{Limiter: away, Current: away.Current, Now: func() time.Time { return d.now }}}
	b := searchBody{}
	p.searchDescriptor(t.Context(), &b, []descriptors.Entry{{Key: "anyone", Value: "x"}})
	if len(b.Buckets) != 1 || b.Buckets[0].State != "unknown: the store did not answer" || b.Buckets[0].Denied {
		t.Errorf("a descriptor: %+v; want unknown", b.Buckets)
	}
	if p.searchKey(t.Context(), &b, "bob"); len(b.Notes) != 1 || !strings.HasPrefix(b.Notes[0], "Unknown: the store did not answer") {
		t.Errorf("a key: %q; want unknown", b.Notes)
	}
}

type unavailable struct{}

func (unavailable) Submit(b *backend.Batch) { b.Fail(backend.ErrUnavailable) }

// Keys that were cut are left out, because a link to them would lead to another bucket.
func TestASearchFindsRecordedKeys(t *testing.T) {
	var denied []topkeys.Item
	var used []topkeys.Item
	p := &pages{Config: Config{
		Denied: func(int) topkeys.Top { return topkeys.Top{Since: began, Keys: denied} },
		Used:   func(int) topkeys.Top { return topkeys.Top{Since: began, Keys: used} },
	}}
	search := func() string {
		var b searchBody
		p.searchRecorded(&b, "ob")
		if len(b.Recorded) == maxFound {
			return "full"
		}
		var rows []string
		for _, row := range b.Recorded {
			rows = append(rows, row.Key+" "+row.State)
		}
		return strings.Join(rows, ", ")
	}
	denied = []topkeys.Item{{Key: []string{"bob"}, Times: 2, Exact: true}, {Key: []string{"bobby"}, Times: 3}, {Key: []string{"eve"}, Times: 1}, {Key: []string{"robert"}, Cut: true}}
	used = []topkeys.Item{{Key: []string{"bob"}, Times: 7}, {Key: []string{"eve"}, Times: 1}, {Key: []string{"robert"}, Cut: true}}
	if got, want := search(), "bob denied 2 times, bobby denied at least 3 times, bob used about 7 units"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	denied = slices.Repeat(denied[:1], maxFound+1)
	if got := search(); got != "full" {
		t.Errorf("got %q; want %d rows", got, maxFound)
	}
}
