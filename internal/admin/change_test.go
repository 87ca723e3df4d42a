package admin

import (
	"net/url"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// The author and the reason are stored. Without a service for adjustments only a reset is possible.
func TestAChangeNeedsAnAuthorAndAReason(t *testing.T) {
	d := newTestPages(t)
	d.request(t, 20, user("bob"))
	form := func(do, author, reason string) url.Values {
		return url.Values{"do": {do}, "domain": {"d"}, "limit": {"send"}, "value": {"bob"}, "author": {author}, "reason": {reason}, "csrf": {d.csrf()}}
	}
	for _, c := range []struct{ author, reason string }{{"", "why"}, {" \t", "why"}, {"eve", ""}, {"eve", " "}, {"", ""}} {
		for _, do := range []string{"reset", "raise", "block"} {
			w := d.send("POST", "/change", form(do, c.author, c.reason))
			if w.Code != 409 || !strings.Contains(w.Body.String(), "the name and the reason are missing") {
				t.Errorf("%s by %q, because %q: got %d; want status 409, and the reason", do, c.author, c.reason, w.Code)
			}
		}
	}
	if n := d.request(t, 1, user("bob")); n != 0 {
		t.Errorf("%d requests are allowed after changes without an author or a reason; want 0, because none was made", n)
	}
	if w := d.send("POST", "/change", form("reset", "eve", "why")); w.Code != 303 || d.request(t, 1, user("bob")) != 1 {
		t.Errorf("with both: got %d; want status 303, and a new bucket", w.Code)
	}
	b := newBrowser(guarded(t, func(c *Config) { c.Adjust = nil }))
	b.logIn("secret")
	for _, do := range []string{"raise", "block"} {
		values := form(do, "eve", "why")
		values.Set("csrf", b.csrf())
		if w := b.send("POST", "/change", values); w.Code != 409 || !strings.Contains(w.Body.String(), "adjustments are off") {
			t.Errorf("%s without a service for adjustments: got %d; want status 409, and the reason", do, w.Code)
		}
	}
}

// A limit of a descriptor has no name that requests can use. Its buckets can be shown and reset all the same.
func TestABucketOfADescriptorIsShownAndReset(t *testing.T) {
	d := newTestPages(t)
	request := func() int {
		return d.request(t, 1, descriptors.Entry{Key: "path", Value: "/login"}, descriptors.Entry{Key: "country", Value: "de"})
	}
	for range 3 {
		request()
	}
	if request() != 0 {
		t.Fatal("the limit allows more than 3 requests; want 3")
	}
	link := "domain=d&limit=" + url.QueryEscape("path_/login.country") + "&value=de"
	has(t, d.read(t, "/key?"+link), "0 of 3 left")
	if w := d.follow(t, d.read(t, "/change?do=reset&"+link), "author", "eve", "reason", "why"); w.Code != 303 || request() != 1 {
		t.Errorf("got %d; want status 303, and a new bucket", w.Code)
	}
	for query, want := range map[string]string{
		"limit=nothing&value=x":                     "has no limit named",
		"limit=free&value=x":                        "is unlimited: it has no buckets",
		"limit=path_/login.country&value=x&value=y": "the key has 2 values; a bucket of this limit is identified by 1 value",
	} {
		if body := d.send("GET", "/key?domain=d&"+query, nil).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%s: got %s; want %q", query, body, want)
		}
	}
}

func TestTheNumberOfAConcurrencyLimitIsItsCapacity(t *testing.T) {
	d := swapped(t, `
domain: d
limits:
  uploads: {algorithm: concurrency, capacity: 3, ttl: 1m}
descriptors:
  - {key: tenant, limit: uploads}
`)
	const raise = "/change?do=raise&domain=d&limit=uploads&value=x&rate=5"
	has(t, d.read(t, raise), "concurrency: at most 5 in flight")
	d.follow(t, d.read(t, raise), "author", "eve", "reason", "why")
	has(t, d.read(t, "/key?domain=d&limit=uploads&value=x"), "0 of 5 in flight")
}
