package admin

import (
	"fmt"
	"html"
	"math"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const sample = `domain: d
limits:
  send:  {algorithm: token_bucket, rate: 10, period: 1m, capacity: 20}
  login: {algorithm: token_bucket, rate: 2, period: 1m, penalty: {after: 3, for: 5m, max: 1h}}
  quiet: {algorithm: token_bucket, rate: 1, period: 1h, shadow_mode: true}
descriptors:
  - {key: user, limit: send}
  - {key: free, rate_limit: {name: free, unlimited: true}}
  - {key: "café", limit: quiet}
  - key: path
    value: /login
    descriptors:
      - {key: ip, limit: login}
      - key: country
        rate_limit:
          unit: hour
          requests_per_unit: 3
`

type testPages struct {
	*browser
	now     time.Time
	limiter *limiter.Limiter
	denials *topkeys.Recorder
	usage   *topkeys.Recorder
	file    string
	logs    *observer.ObservedLogs
}

func newTestPages(t *testing.T) *testPages {
	t.Helper()
	d := &testPages{now: began, file: filepath.Join(t.TempDir(), "limits.yaml")}
	if err := os.WriteFile(d.file, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(d.file, began, began); err != nil {
		t.Fatal(err)
	}
	s, problems := config.Load([]string{d.file}, config.Options{})
	if problems.Bad() {
		t.Fatalf("got %v; want no mistakes", problems)
	}
	clock := func() time.Time { return d.now }
	micros := func() algorithms.Micros { return algorithms.Micros(d.now.UnixMicro()) }
	d.limiter = limiter.New(memory.New(memory.Config{Clock: storetest.Times(micros)}), limiter.Config{})
	d.limiter.Swap(s)
	d.denials, d.usage = topkeys.New(clock), topkeys.New(clock)
	keeper := adjust.NewKeeper(adjust.Config{Clock: clock, Changed: func(set *adjust.Set) { d.limiter.Adjust(set, micros) }})
	core, logs := observer.New(zap.InfoLevel)
	d.logs = logs
	h := guarded(t, func(c *Config) {
		c.Now, c.Limiter, c.Log, c.Current = clock, d.limiter, zap.New(core), d.limiter.Current
		c.Denied, c.Used = d.denials.Top, d.usage.Top
		c.Adjust = adjust.NewService(keeper, d.limiter, nil)
		c.Reload = func() Reload { return Reload{Loaded: began, Paths: []string{d.file}} }
	})
	d.browser = newBrowser(h)
	d.logIn("secret")
	return d
}

func (d *testPages) request(t *testing.T, n int, entries ...descriptors.Entry) (allowed int) {
	t.Helper()
	for range n {
		c := &limiter.Call{Request: limiter.Request{Domain: "d", Arrived: d.now}}
		c.Descriptors = []limiter.Descriptor{{Entries: entries, Cost: 1}}
		if err := d.limiter.Check(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if c.Denied {
			d.denials.Observe(c)
		} else {
			allowed++
		}
		d.usage.ObserveUsed(c, 1)
	}
	return allowed
}

func user(name string) descriptors.Entry { return descriptors.Entry{Key: "user", Value: name} }

func (d *testPages) read(t *testing.T, path string) string {
	t.Helper()
	w := d.send("GET", path, nil)
	if w.Code != 200 {
		t.Errorf("%s: got %d; want status 200", path, w.Code)
	}
	return w.Body.String()
}

// follow sends the form of a page, with other values for some fields.
// asSent changes the value of a field as browsers do.
var asSent = strings.NewReplacer("\r\n", "\r\n", "\r", "\r\n", "\n", "\r\n", "\x00", "\ufffd")

func (d *testPages) follow(t *testing.T, page string, fields ...string) *httptest.ResponseRecorder {
	t.Helper()
	_, form, found := strings.Cut(page, ` method="post" action="/change">`)
	if !found {
		t.Fatalf("there is no form in\n%s", page)
	}
	form, _, _ = strings.Cut(form, "</form>")
	values := url.Values{}
	for _, field := range regexp.MustCompile(`name="([^"]*)" value="([^"]*)"`).FindAllStringSubmatch(form, -1) {
		values.Add(field[1], asSent.Replace(html.UnescapeString(field[2])))
	}
	for i := 0; i+1 < len(fields); i += 2 {
		values.Set(fields[i], fields[i+1])
	}
	return d.send("POST", "/change", values)
}

func (d *testPages) click(t *testing.T, page, text string) string {
	t.Helper()
	found := regexp.MustCompile(`href="([^"]*)"[^>]*>` + regexp.QuoteMeta(text) + `<`).FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("there is no link %q in\n%s", text, page)
	}
	return d.read(t, html.UnescapeString(found[1]))
}

func TestThePageExplainsWhyAKeyIsDenied(t *testing.T) {
	d := newTestPages(t)
	d.request(t, 25, user("bob"))
	page := d.click(t, d.read(t, "/"), "user=bob")
	has(t, page, "Denied now: limit send denies until 2001-09-09 01:46:46 UTC (6 seconds), because it is used up.",
		"0 of 20 left, full again in 2 minutes", "token bucket: 10 per 1m, up to 20 at once",
		"Denied 5 times since 2001-09-09 01:46:40 UTC, last just now.", ">denied</td>", ">allowed</td>", "retry after 6 seconds")
	d.now = d.now.Add(6 * time.Second)
	has(t, d.read(t, "/key?domain=d&limit=send&value=bob"), "Allowed now", "1 of 20 left", "last 6 seconds ago")

	d.request(t, 5, descriptors.Entry{Key: "path", Value: "/login"}, descriptors.Entry{Key: "ip", Value: "::1"})
	// Two requests are allowed, two exceed the limit, and the last one is blocked by the penalty.
	has(t, d.click(t, d.read(t, "/"), "path=/login,ip=::1"), "(5 minutes), because a penalty blocks the key", "Denied 3 times since")
	has(t, d.read(t, "/key?domain=d&limit=quiet&value=x"), "Allowed now", "1 of 1 left", "shadow")
	for path, want := range map[string]string{
		"/key?domain=d&descriptor=user%3Dann":              "20 of 20 left",
		"/key?domain=d&descriptor=nothing%3Dhere":          "This matches no limit: every request is allowed.",
		"/key?domain=e&descriptor=user%3Dann":              "domain &#34;e&#34; is not configured",
		"/key?domain=d&limit=nothing&value=x":              "has no limit named",
		"/key?domain=d&limit=send":                         "the key has no value; a bucket of this limit is identified by 1 value (user)",
		"/key?domain=d&limit=path_/login.country":          "the key has no value; a bucket of this limit is identified by 1 value (country)",
		"/key?domain=d&limit=path_/login.country&value=de": "3 of 3 left",
	} {
		has(t, d.read(t, path), want)
	}
	for _, path := range []string{"/key?domain=d&limit=send&value64=%21", "/key?domain=d&entry64=YQ", "/key?domain=d&descriptor=x", "/key?domain=d&limit=send" + strings.Repeat("&value=x", 100),
		"/key?domain=d&descriptor=k%3D" + strings.Repeat("x", maxValueBytes), (&subject{Domain: "d", Entries: []descriptors.Entry{user(strings.Repeat("x", maxValueBytes))}}).link()} {
		if w := d.send("GET", path, nil); w.Code != 400 {
			t.Errorf("%s: got %d; want status 400", path, w.Code)
		}
	}
}

// A plan is a limit with the key "then".
func TestThePageShowsAPlanAndItsCredits(t *testing.T) {
	d := newTestPages(t)
	if err := os.WriteFile(d.file, []byte(`domain: d
hash_tag: domain
limits:
  plan:    {algorithm: token_bucket, rate: 2, period: 1h, then: credits}
  credits: {algorithm: token_bucket, rate: 3, period: 1d}
descriptors:
  - {key: user, limit: plan}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	s, problems := config.Load([]string{d.file}, config.Options{})
	if problems.Bad() {
		t.Fatalf("got %v; want no mistakes", problems)
	}
	d.limiter.Swap(s)
	const byLimit, byDescriptor = "/key?domain=d&limit=plan&value=bob", "/key?domain=d&descriptor=user%3Dbob"
	for _, step := range []struct {
		requests int
		want     []string
	}{
		{0, []string{"Allowed now", "This limit allows.", "2 of 2 left", "for requests that limit plan denies, if this limit has units", "3 of 3 left"}},
		{3, []string{"Allowed now", "This limit does not allow it, and limit credits pays.", "0 of 2 left", "token bucket: 2 per 1h", "2 of 3 left", "token bucket: 3 per 1d"}},
		{2, []string{"Denied now: limit plan denies until", "; limit credits denies until", "0 of 2 left", "0 of 3 left"}},
	} {
		d.request(t, step.requests, user("bob"))
		for _, path := range []string{byLimit, byDescriptor} {
			has(t, d.read(t, path), step.want...)
		}
	}
	free := adjust.Adjustment{Target: adjust.Target{Domain: "d", Limit: "credits", AllKeys: true}, Change: adjust.Change{Unlimited: true}, Expires: math.MaxInt64}
	d.limiter.Adjust(adjust.NewSet(adjust.Head{}, []*adjust.Adjustment{&free}), func() algorithms.Micros { return 0 })
	has(t, d.read(t, byLimit), "Allowed now", "This limit does not allow it, and limit credits pays.", "never denies this key, because of an adjustment")
}

func TestSearchingAKey(t *testing.T) {
	d := newTestPages(t)
	d.request(t, 25, user("bob"))
	d.request(t, 1, descriptors.Entry{Key: "café", Value: "bob"})
	body := d.read(t, "/key?q=bob")
	has(t, body, `href="/key?domain=d&amp;limit=send&amp;value=bob">bob</a>`, `href="/key?domain=d&amp;limit=quiet&amp;value=bob">bob</a>`, `<td class="hot">0 of 20 left`, "denied 5 times")
	if strings.Contains(body, "limit=login") {
		t.Error("the page shows a bucket of limit login; want none, because the bucket equals a new one")
	}
	has(t, d.read(t, "/key?q=user%3Dbob"), "denied now", "1 limit")
	d.request(t, 2, user("ann"))
	has(t, d.read(t, "/key?q=ann"), "<td>18 of 20 left")
	has(t, d.read(t, "/key?q=nobody"), "None.")
	has(t, d.read(t, "/key?q="+url.QueryEscape(strings.Repeat("é\xff<b>", 1000))), "None.")
}

// Keys are arbitrary bytes. The links and forms of the page must reach exactly the bucket of each key, and show its
// bytes escaped.
func TestKeysOfAnyBytes(t *testing.T) {
	d := newTestPages(t)
	for _, key := range []string{"", "\xff\x00\x01\xfe", "<script>alert(1)</script>", `"><svg/onload=alert(1)>`, "a,b=c\\", "a\nb", "\u202egnp.exe", "&value=x", strings.Repeat("k", 200)} {
		d.request(t, 21, user(key))
		has(t, d.read(t, keyLink("d", "send", []string{key})), "Denied now", "Denied 1 time since")
		has(t, d.read(t, (&subject{Domain: "d", Entries: []descriptors.Entry{user(key)}}).link()), "Denied now")
		w := d.follow(t, d.read(t, "/change?"+strings.TrimPrefix(keyLink("d", "send", []string{key}), "/key?")+"&do=reset"), "author", "ann", "reason", "test")
		if w.Code != 303 {
			t.Errorf("%q: got %d %s; want status 303", key, w.Code, w.Body)
		}
		has(t, d.read(t, w.Header().Get("Location")), "The bucket was reset", "20 of 20 left", "Allowed now")
		has(t, d.read(t, keyLink("d", "send", []string{key})), "Allowed now")
	}
	body := d.read(t, "/")
	for _, no := range []string{"<script>alert", "<svg/", "\u202e", "\xff"} {
		if strings.Contains(body, no) {
			t.Errorf("the page has %q; want it escaped", no)
		}
	}
	if n := d.logs.FilterMessage("a bucket was reset").Len(); n != 9 {
		t.Errorf("%d resets are logged; want 9", n)
	}
}

func TestRaisingAndBlockingAKey(t *testing.T) {
	d := newTestPages(t)
	d.request(t, 25, user("bob"))
	page := d.read(t, "/key?domain=d&limit=send&value=bob")

	preview := d.click(t, page, "Raise or lower")
	has(t, preview, "limit send of domain d, key bob: token bucket: 20 per 1m, up to 40 at once, until 2001-09-09 02:46:40 UTC (configured:")
	has(t, d.read(t, "/change?do=raise&domain=d&limit=send&value=bob&factor=10&for=8h"), "100 per 1m, up to 200 at once, until 2001-09-09 09:46:40 UTC")
	has(t, d.read(t, "/change?do=raise&domain=d&limit=send&value=bob&rate=7&for=90m"), "7 per 1m, up to 20 at once, until 2001-09-09 03:16:40 UTC")
	has(t, d.read(t, "/change?do=raise&domain=d&limit=send&value=bob&rate=7&factor=2"), "give a factor or a number, not both")
	if w := d.follow(t, preview, "author", "ann", "reason", ""); w.Code != 409 || !strings.Contains(w.Body.String(), "the reason are missing") {
		t.Errorf("without a reason: %d; want status 409 and a text that contains %q", w.Code, "the reason are missing")
	}
	w := d.follow(t, preview, "author", "ann", "reason", "launch <b>")
	if w.Code != 303 {
		t.Fatalf("got %d %s; want status 303", w.Code, w.Body)
	}
	page = d.read(t, w.Header().Get("Location"))
	has(t, page, "The limit was changed.", ">Undo</button>", "By ann: “launch &lt;b&gt;”", "20 of 40 left", "Allowed now")
	if n := d.request(t, 30, user("bob")); n != 20 {
		t.Errorf("%d requests are allowed, want 20", n)
	}
	if n := d.request(t, 30, user("eve")); n != 20 {
		t.Errorf("%d requests of another key are allowed; want 20", n)
	}

	// offered checks how many times the overview, the page of bob and that of the limit offer a block.
	offered := func(overview, key, limit int) {
		t.Helper()
		for path, want := range map[string]int{"/": overview, "/key?domain=d&limit=send&value=bob": key, "/limit?domain=d&name=send": limit} {
			if n := strings.Count(d.read(t, path), `class="button danger"`); n != want {
				t.Errorf("%s offers %d blocks; want %d", path, n, want)
			}
		}
	}
	offered(2, 1, 3) // bob and eve were denied; the page of the limit also offers a block of all keys
	preview = d.click(t, page, "Block")
	has(t, preview, "every request is denied until", `value="ann"`, `value="flood: 15 denials since `)
	w = d.follow(t, preview, "reason", "attack")
	page = d.read(t, w.Header().Get("Location"))
	has(t, page, "Blocked.", "because an operator blocks the key", "(1 hour)")
	if n := d.request(t, 1, user("bob")); n != 0 {
		t.Error("a blocked key is allowed")
	}

	// Undoing the block puts the raise in force again. An undo of an earlier change does nothing.
	blocked := page
	has(t, d.read(t, d.follow(t, blocked).Header().Get("Location")), "The adjustment before it is in force again.", "undone", "replaced by limit send of domain d, key bob: factor 2, until 2001-09-09 02:46:40 UTC")
	if w := d.follow(t, blocked); w.Code != 409 || !strings.Contains(w.Body.String(), "This was not undone: another operator has changed") {
		t.Errorf("the second undo: %d %s; want status 409", w.Code, w.Body)
	}
	d.follow(t, preview, "reason", "attack")

	offered(1, 0, 2)
	has(t, d.read(t, "/limits"), `title="1 single key">adjusted</span>`)
	has(t, d.read(t, "/key?q=bo"), "key bob", "block until ")
	list := d.read(t, "/adjustments")
	has(t, list, "every request is denied", "attack", "launch &lt;b&gt;", "set limit send of domain d, key bob: factor 2", "replaced by limit send of domain d, key bob: block")
	has(t, d.read(t, "/limit?domain=d&name=send"), "every request is denied")
	w = d.follow(t, d.click(t, list, "End it"), "author", "ann", "reason", "over")
	if w.Code != 303 {
		t.Fatalf("got %d %s; want status 303", w.Code, w.Body)
	}
	has(t, d.read(t, w.Header().Get("Location")), "The adjustment was ended.", "Nothing is adjusted.", "ended limit send of domain d, key bob: block")
	has(t, d.read(t, "/change?do=end&id=x"), "there is no such adjustment")

	offered(2, 1, 3)

	// All keys with one value, and its undoing.
	w = d.follow(t, d.read(t, "/change?do=block&domain=d&limit=send&value=eve&match=user"), "author", "ann")
	page = d.read(t, w.Header().Get("Location"))
	has(t, page, "Blocked.", "all keys with user=eve: every request is denied", "flood: 10 denials of 1 key since ")
	if n := d.request(t, 1, user("eve")); n != 0 {
		t.Error("a key with a blocked value is allowed")
	}
	offered(1, 1, 2)
	if w := d.send("GET", "/change?do=block&domain=d&limit=send&value=a&value=b&match=user", nil); w.Code != 400 {
		t.Errorf("two values: %d; want status 400", w.Code)
	}
	has(t, d.read(t, "/change?do=undo&match=user"), "This cannot be done") // no page has this link

	w = d.follow(t, d.click(t, d.read(t, "/limit?domain=d&name=send"), "Block all keys"), "author", "ann", "reason", "attack")
	has(t, d.read(t, w.Header().Get("Location")), "Blocked.", "all keys: every request is denied")
	has(t, d.read(t, "/limits"), `title="all keys: block, until 2001-09-09 02:46:40 UTC; 1 value">adjusted</span>`)
	if n := d.request(t, 1, user("carl")); n != 0 {
		t.Error("a key of a limit that is blocked for all keys is allowed")
	}
	offered(0, 0, 0)
}

func TestOnlyTheAdminTokenAllowsChanges(t *testing.T) {
	d := newTestPages(t)
	form := url.Values{"do": {"block"}, "domain": {"d"}, "limit": {"send"}, "value": {"bob"}, "author": {"eve"}, "reason": {"x"}, "csrf": {d.csrf()}, "for": {"1h"}}
	reader := newBrowser(d.h)
	reader.logIn("reader")
	for name, b := range map[string]*browser{"nobody": newBrowser(d.h), "a reader": reader} {
		form.Set("csrf", b.csrf())
		if w := b.send("POST", "/change", form); w.Code != 403 {
			t.Errorf("%s: got %d; want status 403", name, w.Code)
		}
		if w := b.send("POST", "/change", form, "Authorization", "Bearer reader"); w.Code != 403 {
			t.Errorf("%s with the token in a header: %d; want status 403", name, w.Code)
		}
		if body := b.send("GET", "/key?domain=d&limit=send&value=bob", nil).Body.String(); strings.Contains(body, "/change?") {
			t.Errorf("%s sees buttons; want no %q", name, "/change?")
		}
		if w := b.send("GET", "/change?"+form.Encode(), nil); strings.Contains(w.Body.String(), `action="/change"><input type="hidden" name="csrf"`) {
			t.Errorf("%s sees the form; want no %q", name, `action="/change"><input type="hidden" name="csrf"`)
		}
	}
	if n := d.request(t, 1, user("bob")); n != 1 {
		t.Error("bob is blocked")
	}
	form.Set("csrf", d.csrf())
	for _, form := range []url.Values{
		{"do": {"explode"}}, {"do": {"block"}}, {"do": {"block"}, "limit": {"send"}, "value64": {"!"}},
	} {
		form.Set("csrf", d.csrf())
		if w := d.send("POST", "/change", form); w.Code != 400 {
			t.Errorf("%v: got %d; want status 400", form, w.Code)
		}
	}
	for field, value := range map[string]string{"for": "1000h", "limit": "nothing", "factor": "x", "do": "raise"} {
		wrong := url.Values{}
		for name, values := range form {
			wrong[name] = values
		}
		wrong.Set("do", "raise")
		wrong.Set("factor", "2")
		wrong.Set(field, value)
		if w := d.send("POST", "/change", wrong); (w.Code != 409) != (field == "do") {
			t.Errorf("the form with %s %s: got status %d; want 409, except for the field do", field, value, w.Code)
		}
	}
}

func TestALimitsPage(t *testing.T) {
	d := newTestPages(t)
	d.request(t, 25, user("bob"))
	page := d.read(t, "/limit?domain=d&name=send")
	has(t, page, "<h1>send <small>d</small>", "token bucket: 10 per 1m, up to 20 at once.", "Configured at "+d.file+":3.",
		"on_backend_failure", "user=bob", "about 20", `<label for="value0-0">user</label>`, "The chart in numbers")
	has(t, d.read(t, "/limit?domain=d&name=free"), "unlimited")
	if err := os.Chtimes(d.file, began, began.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	has(t, d.read(t, "/limit?domain=d&name=send"), "The file has changed since it was loaded")
	for _, path := range []string{"/limit", "/limit?domain=d&name=x", "/limit?domain=d&name=%ff%00"} {
		if w := d.send("GET", path, nil); w.Code != 404 {
			t.Errorf("%s: got %d; want status 404", path, w.Code)
		}
	}
}

// The page of a limit has a form for each list of values that identify its buckets.
func TestAKeyIsReachedFromThePageOfItsLimit(t *testing.T) {
	d := swapped(t, `
domain: d
limits:
  used: {algorithm: token_bucket, rate: 9, period: 1h}
  free: {algorithm: token_bucket, rate: 9, period: 1h}
descriptors:
  - {key: user, limit: used, descriptors: [{key: ip, limit: used}]}
  - {key: client, value: x, limit: used, descriptors: [{key: user, limit: used}]}
  - {key: "any*", rate_limit: {unit: hour, requests_per_unit: 3}}
`)
	for limit, want := range map[string][]string{
		"used": {"user", "user, ip", "without a key"}, "any*": {"Descriptor as key=value,key=value"}, "free": {"Key, each value on its own line"},
	} {
		var got []string
		for _, form := range strings.Split(d.read(t, limitLink("d", limit)), `action="/key">`)[1:] {
			var names []string
			for _, label := range regexp.MustCompile(`<label for="[^"]*">(.*?)</label>|bucket (.*?)\.</p>`).FindAllStringSubmatch(form, -1) {
				names = append(names, label[1]+label[2])
			}
			got = append(got, strings.Join(names, ", "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %s: the forms %q, want %q", limit, got, want)
		}
	}
	for path, want := range map[string]string{
		"used&value=a&value=b": "a,b</dd>", "any*&descriptor=any1%3Dc": "any1,c</dd>", "free&values=a%0D%0Ab": "a,b</dd>", "free&values=": "(none)</dd>",
	} {
		has(t, d.read(t, "/key?domain=d&limit="+path), "Allowed now", want)
	}
}

func TestTheConfigurationPage(t *testing.T) {
	dir := t.TempDir()
	load := func(name, text string) (*limiter.Snapshot, config.Problems) {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return config.Load([]string{file}, config.Options{})
	}
	before, _ := load("before.yaml", sample)
	after, _ := load("after.yaml", strings.NewReplacer("rate: 10", "rate: 11", "  login:", "  lockin:", "limit: login", "limit: lockin").Replace(sample))
	_, problems := load("bad.yaml", strings.Replace(sample, "capacity: 20", "capacity: <b>", 1))
	c := fixture(t)
	c.Current = func() *limiter.Snapshot { return after }
	c.Reload = func() Reload {
		return Reload{Paths: []string{"after.yaml"}, Loaded: began, Failed: began.Add(time.Hour), Refused: Refusals(problems), Loads: []Load{{began, Compare(before, after)}}, Before: "abc"}
	}
	page := get(New(c), "/configuration", "").Body.String()
	has(t, page, "after.yaml", "2001-09-09 01:46:40 UTC", fmt.Sprintf("%.12s", after.Hash), "5 limits in 1 domain",
		"2001-09-09 02:46:40 UTC", "The configuration before it stays in use.", "bad.yaml:3:",
		"<mark>3    send:  {algorithm: token_bucket, rate: 10, period: 1m, capacity: &lt;b&gt;}</mark>", "4    login:",
		"1 added, 1 removed, 1 changed", "token bucket: 10 per 1m", "token bucket: 11 per 1m", "added", "removed", "Consumption is kept")
	has(t, get(New(fixture(t)), "/configuration", "").Body.String(), "a.yaml, b", "a.yaml:1:2: &lt;wrong&gt;", "There was no configuration before this one.")

	token := httpauth.FixedToken("secret")
	c.Token = token
	if w := get(New(c), "/configuration", ""); w.Code != 401 || strings.Contains(w.Body.String(), "after.yaml") {
		t.Errorf("without the token: %d; want status 401 and no %q", w.Code, "after.yaml")
	}
}

func TestAPageShowsOnlyItsLimit(t *testing.T) {
	d := newTestPages(t)
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

func swapped(t *testing.T, text string) *testPages {
	t.Helper()
	d := newTestPages(t)
	d.limiter.Swap(configtest.Compile(t, text))
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

// The decisions of a key page are those of the denied keys and of the used keys together, the newest first.
func TestRecentDecisionsAreSorted(t *testing.T) {
	event := func(second int, outcome limiter.Outcome) topkeys.Event {
		return topkeys.Event{At: began.Add(time.Duration(second) * time.Second), Outcome: outcome}
	}
	l := &limiter.Policy{Domain: "d", Name: "l"}
	known := events{now: began.Add(time.Minute)}
	known.denied = []topkeys.Item{{Domain: "d", Limit: "l", Times: 2, Exact: true, Recent: []topkeys.Event{event(4, limiter.Denied), event(2, limiter.Denied)}}}
	known.used = []topkeys.Item{{Domain: "d", Limit: "l", Recent: []topkeys.Event{event(5, limiter.Allowed), event(3, limiter.Allowed)}}}
	c := &limiter.Call{Request: limiter.Request{Descriptors: []limiter.Descriptor{{}}}}
	var row keyLimit
	(&pages{}).addRecorded(&row, c, &limiter.Result{Policy: l}, known)
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
