package admin

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/denials"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/usage"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// An answer with status 401 names the scheme of the token, so that clients can send it.
func TestAnswersWithoutATokenNameTheScheme(t *testing.T) {
	h := guarded(t)
	for path, want := range map[string]int{"/": 401, "/api/top": 401, "/metrics": 401, "/login": 200} {
		w := get(h, path, "")
		if got := w.Header().Get("WWW-Authenticate"); w.Code != want || (got == `Bearer realm="rlsidecar"`) != (want == 401) {
			t.Errorf("%s: got %d with %q; want status %d, and the scheme only with 401", path, w.Code, got, want)
		}
	}
}

// Browsers send a cookie to all ports of a host, so its name contains the port, if there is one.
func TestTheNameOfTheCookieContainsThePort(t *testing.T) {
	for host, want := range map[string]string{
		"sidecar.test:6070": "rlsidecar_session_6070", "sidecar.test": "rlsidecar_session", "[::1]:80": "rlsidecar_session_80",
		"::1": "rlsidecar_session", "sidecar.test:x;y": "rlsidecar_session", "": "rlsidecar_session",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		if got := cookieName(r); got != want {
			t.Errorf("%q: got %q, want %q", host, got, want)
		}
	}
}

// A change needs the name of its author and a reason, because both are stored. Without a service for adjustments only a
// reset is possible.
func TestAChangeNeedsAnAuthorAndAReason(t *testing.T) {
	d := newDesk(t)
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
	d := newDesk(t)
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
		"limit=free&value=x":                        "this limit is unlimited",
		"limit=path_/login.country&value=x&value=y": "the key has 2 values; a bucket of this limit is identified by 1 value",
	} {
		if body := d.send("GET", "/key?domain=d&"+query, nil).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%s: got %s; want %q", query, body, want)
		}
	}
}

// The decisions and the adjustments that a page shows are those of its limit, not of another limit with the same key.
func TestAPageShowsOnlyItsLimit(t *testing.T) {
	d := newDesk(t)
	d.request(t, 21, user("bob"))
	has(t, d.read(t, "/key?domain=d&limit=send&value=bob"), "Denied 1 time since")
	if body := d.read(t, "/key?domain=d&limit=login&value=bob"); strings.Contains(body, "Denied 1 time") || strings.Contains(body, "of 20 left") {
		t.Errorf("got the denials of limit send on the page of limit login; want none:\n%s", body)
	}
	d.follow(t, d.read(t, "/change?do=block&domain=d&limit=send&value=bob"), "author", "eve", "reason", "why")
	has(t, d.read(t, limitLink("d", "send")), "every request is denied")
	if body := d.read(t, limitLink("d", "login")); strings.Contains(body, "every request is denied") {
		t.Errorf("the page of limit login shows the adjustment of limit send; want none:\n%s", body)
	}
}

// A link may contain at most maxValues values with maxValueBytes bytes in total.
func TestTheSizeOfALinkIsBounded(t *testing.T) {
	entries := func(n int) []descriptors.Entry { return make([]descriptors.Entry, n) }
	half := strings.Repeat("x", maxValueBytes/2)
	for name, test := range map[string]struct {
		subject subject
		bad     bool
	}{
		"the most values":            {subject{Key: make([]string, maxValues)}, false},
		"one value more":             {subject{Key: make([]string, maxValues+1)}, true},
		"the most entries":           {subject{Entries: entries(maxValues)}, false},
		"one entry more":             {subject{Entries: entries(maxValues + 1)}, true},
		"values and entries":         {subject{Key: make([]string, maxValues), Entries: entries(1)}, true},
		"the most bytes":             {subject{Key: []string{half, half}}, false},
		"one byte more":              {subject{Key: []string{half, half, "x"}}, true},
		"the most bytes of an entry": {subject{Entries: []descriptors.Entry{{Key: half, Value: half}}}, false},
		"one byte more of an entry":  {subject{Entries: []descriptors.Entry{{Key: half + "x", Value: half}}}, true},
	} {
		if err := test.subject.checkSize(); (err != nil) != test.bad {
			t.Errorf("%s: got %v; want an error: %t", name, err, test.bad)
		}
	}
}

// The page about the fleet lists sidecars with an old configuration first. The configuration that was loaded last counts
// as the current one.
func TestTheFleetPage(t *testing.T) {
	now := began
	member := func(id, config string, loaded, age time.Duration) Member {
		return Member{ID: id, Age: age, Report: Report{Config: config, Loaded: now.Add(loaded), Started: now.Add(-2 * time.Hour)}}
	}
	p := &pages{Config: Config{Now: func() time.Time { return now }}}
	list := func(f Fleet) (b fleetBody, rows string) {
		p.members(&b, &f)
		var words []string
		for _, row := range b.Rows {
			text := row.ID + " " + row.Config
			for name, is := range map[string]bool{" self": row.Self, " old": row.Old, " late": row.Late} {
				if is {
					text += name
				}
			}
			words = append(words, text)
		}
		return b, strings.Join(words, ", ")
	}
	b, rows := list(Fleet{Self: "b", Members: []Member{
		member("c", "new", -time.Minute, time.Second), member("a", "new", -time.Hour, lateAfter+1),
		member("d", "old", -2*time.Minute, lateAfter), member("b", "new", -time.Hour, time.Second),
	}})
	if want := "d old old, a new late, b new self, c new"; rows != want || !b.Old || b.More != "" || b.Problem != "" {
		t.Errorf("got %q, %+v; want %q", rows, b, want)
	}
	if want := "4 sidecars. 1 sidecar with a configuration other than the one that was loaded last."; b.Summary != want || b.Rows[0].Up != "2 hours" || b.Rows[0].Seen != "35 seconds ago" {
		t.Errorf("got %q, up %q, seen %q; want %q, 2 hours, 35 seconds ago", b.Summary, b.Rows[0].Up, b.Rows[0].Seen, want)
	}
	var crowd []Member
	for i := range maxMembers + 2 {
		crowd = append(crowd, member(fmt.Sprint(i), "new", 0, 0))
	}
	b, _ = list(Fleet{Members: crowd, Problem: errors.New("a\nb")})
	if len(b.Rows) != maxMembers || b.More != "2 more sidecars" || b.Old || b.Summary != "502 sidecars." || strings.Contains(b.Problem, "\n") || b.Problem == "" {
		t.Errorf("got %d rows, %q, %q, %q; want %d, 2 more, and a printable problem", len(b.Rows), b.More, b.Summary, b.Problem, maxMembers)
	}
	b, _ = list(Fleet{Members: crowd[:maxMembers]})
	if len(b.Rows) != maxMembers || b.More != "" {
		t.Errorf("got %d rows, %q; want %d, and no more", len(b.Rows), b.More, maxMembers)
	}
}

// A search tries a bounded number of limits, and says so if there are more.
func TestASearchTriesABoundedNumberOfLimits(t *testing.T) {
	for _, more := range []int{0, 1} {
		text := "domain: d\nlimits:\n"
		for i := range maxTried + more {
			text += fmt.Sprintf("  l%d: {algorithm: token_bucket, rate: 1, period: 1s}\n", i)
		}
		text += "descriptors: [{key: free, rate_limit: {unlimited: true}}]\n" // it has no buckets, so it is not tried
		s, problems := config.Compile([]config.File{{Name: "limits.yaml", Data: []byte(text)}}, config.Options{})
		if problems.Bad() {
			t.Fatal(problems)
		}
		c := fixture(t)
		c.Limiter = limiter.New(memory.New(memory.Config{}), limiter.Config{})
		c.Limiter.Swap(s)
		c.Current = c.Limiter.Current
		note := fmt.Sprintf("Only %d limits were tried.", maxTried)
		if body := get(New(c), "/key?q=x", "").Body.String(); strings.Contains(body, note) != (more > 0) {
			t.Errorf("with %d limits that have buckets: got %s; want %q: %t", maxTried+more, body, note, more > 0)
		}
	}
}

// The words about a bucket state what the next request gets, what is left, and when.
func TestWordsAboutABucket(t *testing.T) {
	limit := compile(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 10 * algorithms.Second})
	plain := &descriptors.Policy{Limit: limit, OnFailure: descriptors.Allow}
	blocked := &descriptors.Policy{Limit: limit, Adjusted: &descriptors.Adjusted{Block: true}}
	free := &descriptors.Policy{Limit: limit, Adjusted: &descriptors.Adjusted{Unlimited: true}}
	full := fmt.Errorf("charge: %w", backend.ErrFull)
	decision := func(d algorithms.Decision) backend.Decision { return backend.Decision{Decision: d} }
	for _, test := range []struct {
		policy      *descriptors.Policy
		decision    backend.Decision
		state, left string
	}{
		{plain, decision(algorithms.Decision{Allowed: true, Remaining: 10}), "allows", "10 of 10 left"},
		{plain, decision(algorithms.Decision{Allowed: true, Remaining: 10, ResetAfter: 5}), "allows", "10 of 10 left"},
		{plain, decision(algorithms.Decision{Allowed: true, Remaining: 4, ResetAfter: 6 * algorithms.Second}), "allows", "4 of 10 left, full again in 6 seconds"},
		{plain, decision(algorithms.Decision{Allowed: true, Remaining: 4}), "allows", "4 of 10 left"},
		{plain, decision(algorithms.Decision{RetryAfter: algorithms.Second}), "because it is used up", "0 of 10 left"},
		{plain, decision(algorithms.Decision{Never: true}), "for good", "0 of 10 left"},
		{plain, decision(algorithms.Decision{Blocked: 1, RetryAfter: 1}), "because a penalty blocks the key", "0 of 10 left"},
		{blocked, decision(algorithms.Decision{Blocked: 1, RetryAfter: 1}), "because an operator blocks the key", "0 of 10 left"},
		{free, decision(algorithms.Decision{}), "never denies this key", "0 of 10 left"},
		{plain, decision(algorithms.Decision{Remaining: -3, Value: -3*limit.Unit() + 1, RetryAfter: 1}), "used up", "0 of 10 left, in debt by 3"},
		{plain, backend.Decision{Err: full}, "has no room for another bucket in memory: on_backend_failure answers allow", ""},
		{plain, backend.Decision{Err: backend.ErrUnavailable}, "could not be decided by the store", ""},
	} {
		r := &limiter.Result{Policy: test.policy, Decision: test.decision}
		if state, left := stateWords(r, began), remainingWords(r); !strings.Contains(state, test.state) || left != test.left {
			t.Errorf("%+v: got %q, %q; want %q, %q", test.decision, state, left, test.state, test.left)
		}
	}
}

func TestWordsAboutARecordedDecision(t *testing.T) {
	for want, e := range map[string]denials.Event{
		"retry after 5 seconds": {Outcome: limiter.Denied, Remaining: 1, RetryAfter: 5 * algorithms.Second},
		"1 left":                {Outcome: limiter.Denied, Remaining: 1},
		"0 left":                {Outcome: limiter.Allowed, Remaining: -5, RetryAfter: 5},
		"7 left":                {Outcome: limiter.Shadowed, Remaining: 7, RetryAfter: 5},
	} {
		if got := recent(e); got.Left != want || got.Denied != (e.Outcome == limiter.Denied) {
			t.Errorf("%+v: got %+v; want %q, denied: %t", e, got, want, e.Outcome == limiter.Denied)
		}
	}
}

func TestWordsAboutDurationsAndChanges(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 seconds", 1400 * time.Microsecond: "1ms", 999 * time.Millisecond: "999ms", time.Second: "1 second", 61 * time.Second: "1 minute 1 second",
		2 * time.Minute: "2 minutes", 3601 * time.Second: "1 hour", 25 * time.Hour: "1 day 1 hour", 48*time.Hour + time.Minute: "2 days",
	} {
		if got := span(d); got != want {
			t.Errorf("%d: got %q, want %q", d, got, want)
		}
	}
	factor, err := adjust.ParseFactor("2.5")
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]adjust.Change{
		"block": {Block: true}, "unlimited": {Unlimited: true}, "2.5 times as much": {Factor: factor},
		"rate 7": {Rate: new(int64(7))}, "rate 7, period 1m, capacity 9": {Rate: new(int64(7)), Period: 60 * algorithms.Second, Capacity: new(int64(9))},
		"capacity 0": {Capacity: new(int64)},
	} {
		if got := changeWords(&c); got != want {
			t.Errorf("%+v: got %q, want %q", c, got, want)
		}
	}
}

// The links of the overview keep the search, the order and the filter.
func TestLinksOfTheOverview(t *testing.T) {
	h := New(many(t, 450))
	body := get(h, "/?q=limit&sort=name&show=all&page=2", "").Body.String()
	has(t, body, `<a href="/?q=limit&amp;sort=name#limits" rel="prev">`, `<a href="/?page=3&amp;q=limit&amp;sort=name#limits" rel="next">`)
	b := &overviewBody{Query: "a b"}
	for want, got := range map[string]string{
		"/?q=a+b#limits": b.link("denied", "all", 1), "/?page=2&q=a+b&show=denied#limits": b.link("denied", "denied", 2), "/#limits": (&overviewBody{}).link("denied", "all", 1),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// swapped returns a desk whose limiter has another configuration.
func swapped(t *testing.T, text string) *desk {
	t.Helper()
	s, problems := config.Compile([]config.File{{Name: "limits.yaml", Data: []byte(text)}}, config.Options{})
	if problems.Bad() {
		t.Fatal(problems)
	}
	d := newDesk(t)
	d.limiter.Swap(s)
	return d
}

const loose = `
domain: d
limits:
  one: {algorithm: token_bucket, rate: 1, period: 1h}
  many: {algorithm: token_bucket, rate: 9, period: 1h}
descriptors:
  - {key: user, limit: [one, many]}
  - {key: "any*", rate_limit: {unit: hour, requests_per_unit: 3}}
`

// If a key has a "*", the keys and values of the whole descriptor identify the bucket.
func TestABucketOfAWholeDescriptorIsShownAndReset(t *testing.T) {
	d := swapped(t, loose)
	entry := descriptors.Entry{Key: "anyone", Value: "x"}
	if n := d.request(t, 4, entry); n != 3 {
		t.Fatalf("%d requests are allowed, want 3", n)
	}
	for _, key := range [][]string{{"anyone"}, {"anyone", "x", "more"}, nil} {
		if body := d.read(t, keyLink("d", "any*", key)); !strings.Contains(body, "This cannot be answered") && !strings.Contains(body, "Why is this denied?") {
			t.Errorf("%q: got %s; want no answer", key, body)
		}
	}
	link := keyLink("d", "any*", []string{"anyone", "x"})
	has(t, d.read(t, link), "0 of 3 left")
	if w := d.follow(t, d.read(t, "/change?do=reset&"+strings.TrimPrefix(link, "/key?")), "author", "eve", "reason", "why"); w.Code != 303 || d.request(t, 1, entry) != 1 {
		t.Errorf("got %d; want status 303, and a new bucket", w.Code)
	}
}

// A search by a value lists the buckets in use of that key, and marks those that deny.
func TestASearchMarksTheBucketsThatDeny(t *testing.T) {
	d := swapped(t, loose)
	d.request(t, 2, user("bob"))
	p := &pages{Config: Config{Limiter: d.limiter, Current: d.limiter.Current, Now: func() time.Time { return d.now }}}
	search := func(value string) string {
		var b searchBody
		p.searchKey(t.Context(), &b, value)
		var rows []string
		for _, row := range b.Buckets {
			rows = append(rows, fmt.Sprint(row.Limit, " ", row.Key, " ", row.Denied))
		}
		return strings.Join(append(rows, b.Notes...), ", ")
	}
	if got, want := search("bob"), "many bob false, one bob true"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := search("eve"); got != "" {
		t.Errorf("got %q; want nothing about a key without requests", got)
	}
}

// Recorded keys are found by a part of their text. Keys that were cut are left out, because a link to them would lead to
// another bucket.
func TestASearchFindsRecordedKeys(t *testing.T) {
	var denied []denials.Denied
	var used []usage.Used
	p := &pages{Config: Config{
		Denied: func(int) (time.Time, []denials.Denied) { return began, denied },
		Used:   func() (time.Time, []usage.Used) { return began, used },
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
	denied = []denials.Denied{{Key: []string{"bob"}, Times: 2, Exact: true}, {Key: []string{"bobby"}, Times: 3}, {Key: []string{"eve"}, Times: 1}, {Key: []string{"robert"}, Cut: true}}
	used = []usage.Used{{Key: []string{"bob"}, Units: 7}, {Key: []string{"eve"}, Units: 1}, {Key: []string{"robert"}, Cut: true}}
	if got, want := search(), "bob denied 2 times, bobby denied at least 3 times, bob used about 7 units"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	denied = slices.Repeat(denied[:1], maxFound+1)
	if got := search(); got != "full" {
		t.Errorf("got %q; want %d rows", got, maxFound)
	}
}

// Without a configuration there is no limit to explain.
func TestNoConfigurationHasNoBuckets(t *testing.T) {
	p := &pages{Config: Config{Current: func() *limiter.Snapshot { return nil }}}
	if c, err := p.call(&subject{Domain: "d", Limit: "send", Key: []string{"x"}}, 0); c != nil || !errors.Is(err, limiter.ErrNoConfig) {
		t.Errorf("got %+v, %v; want ErrNoConfig", c, err)
	}
}

// The decisions of a key page are those of the denied keys and of the used keys together, the newest first.
func TestRecentDecisionsAreSorted(t *testing.T) {
	event := func(second int, outcome limiter.Outcome) denials.Event {
		return denials.Event{At: began.Add(time.Duration(second) * time.Second), Outcome: outcome}
	}
	l := &descriptors.Policy{Domain: "d", Name: "l"}
	known := events{now: began.Add(time.Minute)}
	known.denied = []denials.Denied{{Domain: "d", Limit: "l", Times: 2, Exact: true, Recent: []denials.Event{event(4, limiter.Denied), event(2, limiter.Denied)}}}
	known.used = []usage.Used{{Domain: "d", Limit: "l", Recent: []denials.Event{event(5, limiter.Allowed), event(3, limiter.Allowed)}}}
	c := &limiter.Call{Request: limiter.Request{Descriptors: []limiter.Descriptor{{}}}}
	var row keyLimit
	(&pages{}).addDenials(&row, c, &limiter.Result{Policy: l}, known)
	var got []string
	for _, r := range row.Recent {
		got = append(got, r.At[6:8]+" "+r.What)
	}
	first := began.Second()
	want := fmt.Sprintf("%02d allowed, %02d denied, %02d allowed, %02d denied", (first+5)%60, (first+4)%60, (first+3)%60, (first+2)%60)
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("got %s, want %s", text, want)
	}
}
