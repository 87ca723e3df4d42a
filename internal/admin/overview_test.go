package admin

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
)

func has(t *testing.T, body string, texts ...string) {
	t.Helper()
	_, content, _ := strings.Cut(body, "<body>")
	for _, text := range texts {
		if !strings.Contains(body, text) {
			t.Errorf("no %q in\n%s", text, content)
		}
	}
}

var limitNames = regexp.MustCompile(`<td class="name"><a href="[^"]*">([^<]*)</a>`)

func listed(body string) (names []string) {
	for _, found := range limitNames.FindAllStringSubmatch(body, -1) {
		names = append(names, found[1])
	}
	return names
}

func TestOverviewListsLimits(t *testing.T) {
	h := New(fixture(t))
	has(t, get(h, "/", "").Body.String(), "v1", "<span class=\"green\">Healthy", "1 hour", "10/s", "1.0/s",
		"≥ 12,345", "sh0p", "user,&lt;b&gt; | \\xff", "the domain is not configured", "no limit matched")
	has(t, get(h, "/limits", "").Body.String(), "shadow", "quota", "Last 15 minutes: 120 allowed, 30 would have been denied.", "20 %", "2.5/s")
	for query, want := range map[string][]string{
		"":                             {"send", "&lt;b&gt;free&lt;/b&gt;", "path_/login"},
		"?sort=name":                   {"&lt;b&gt;free&lt;/b&gt;", "path_/login", "send"},
		"?sort=rate":                   {"send", "&lt;b&gt;free&lt;/b&gt;", "path_/login"},
		"?show=shadow":                 {"send"},
		"?show=denying":                {"send"},
		"?show=unused":                 {"&lt;b&gt;free&lt;/b&gt;"},
		"?q=LOGIN":                     {"path_/login"},
		"?q=d/":                        {"send", "&lt;b&gt;free&lt;/b&gt;", "path_/login"},
		"?q=%3Cb%3E":                   {"&lt;b&gt;free&lt;/b&gt;"},
		"?q=elsewhere":                 nil,
		"?sort=x&show=y&page=-1":       {"send", "&lt;b&gt;free&lt;/b&gt;", "path_/login"},
		"?page=99999999999999999999":   {"send", "&lt;b&gt;free&lt;/b&gt;", "path_/login"},
		"?q=%ff%00" + fmt.Sprint(1e99): nil,
	} {
		if got := listed(get(h, "/limits"+query, "").Body.String()); !slices.Equal(got, want) {
			t.Errorf("%q lists %q, want %q", query, got, want)
		}
	}
	c := fixture(t)
	c.Current = func() *limiter.Snapshot { return nil }
	has(t, get(New(c), "/", "").Body.String(), "There is no configuration yet")
	has(t, get(New(c), "/limits", "").Body.String(), "No limit is found")
}

func TestTheLineOfStateOpensTheCause(t *testing.T) {
	c := fixture(t)
	c.Conditions = func() []conditions.Condition {
		return []conditions.Condition{
			{Name: "redis-away", Severity: conditions.Critical, Since: began, Headline: "Redis <is> away", Summary: "Redis at a is away.", Remedy: "Start it.", Error: "dial: <no>"},
			{Name: "memory-full", Severity: conditions.Warning, Since: began, Summary: "Memory is full.", Remedy: "Raise it."},
		}
	}
	c.Line = func() status.Line { return status.LineOf(c.Conditions(), "", &status.Traffic{}) }
	for _, path := range []string{"/", "/state", "/limits"} {
		has(t, get(New(c), path, "").Body.String(), `<span class="red">Redis &lt;is&gt; away (1 more)</span>`, "Redis at a is away.", "Start it.", "dial: &lt;no&gt;",
			"2001-09-09 01:46:40 UTC", "Memory is full. Raise it.")
	}
}

// Keys are bytes that clients choose. The page escapes markup, and bytes that are not text.
func TestDeniedKeysAreShownAsText(t *testing.T) {
	w := get(New(fixture(t)), "/", "")
	body := w.Body.String()
	has(t, body, "94 since 12:00:00 UTC",
		`<td class="n">77</td>`, `>user=&lt;script&gt;alert(1)&lt;/script&gt;,ip=::1</a>`,
		`<td class="n">≥ 8</td>`, `a\r\n,\xff\&#34;&#39;&amp;…`, "the cost is more than the limit can ever hold",
		`<td class="n">9</td>`, "the store could not decide", "(all keys)")
	for _, no := range []string{"<script>alert", "\xff", "alert(1)<"} {
		if strings.Contains(body, no) {
			t.Errorf("the page has %q; want it escaped", no)
		}
	}
	c := fixture(t)
	c.Denied = func(int) topkeys.Top { return topkeys.Top{} }
	has(t, get(New(c), "/", "").Body.String(), "No key was denied")
}

func TestPagesForbidUnusedFeatures(t *testing.T) {
	c := fixture(t)
	for _, path := range []string{"/", "/login"} {
		w := get(New(c), path, "")
		policy := w.Header().Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'", "connect-src 'self'"} {
			if path == "/" && !strings.Contains(policy, want) {
				t.Errorf("%s: no %s in %s", path, want, policy)
			}
		}
		if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
			t.Errorf("%s: got %s; want no %q and no %q", path, policy, "unsafe", "*")
		}
	}
	w := get(New(c), "/", "")
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: got %q; want %v", name, got, want)
		}
	}
	body := w.Body.String()
	for tag, text := range map[string]string{"style": style, "script": script} {
		_, rest, _ := strings.Cut(body, "<"+tag+">")
		if in, _, _ := strings.Cut(rest, "</"+tag+">"); in != text || !strings.Contains(w.Header().Get("Content-Security-Policy"), digest(in)) {
			t.Errorf("the policy does not allow the %s of the page", tag)
		}
	}
	if regexp.MustCompile(`(src|href)="?(https?:)?//`).MatchString(body) {
		t.Error("the page loads something from elsewhere")
	}
}

func many(tb testing.TB, n int) Config {
	tb.Helper()
	s := &limiter.Snapshot{}
	for i := range n {
		s.Policies = append(s.Policies, &limiter.Policy{Index: i, Domain: "d", Name: fmt.Sprintf("limit%07d", n-i), Unlimited: true})
	}
	var t testing.T
	c := fixture(&t)
	c.Current = func() *limiter.Snapshot { return s }
	c.Totals = func(p *limiter.Policy) history.Totals { return history.Totals{Allowed: uint64(p.Index)} }
	return c
}

func TestPagesOfFiftyLimits(t *testing.T) {
	h := New(many(t, 130))
	for page, want := range map[string]struct {
		first, last, text string
		n                 int
	}{
		"":         {"limit0000001", "limit0000050", "1 to 50 of 130.", 50},
		"&page=2":  {"limit0000051", "limit0000100", "51 to 100 of 130.", 50},
		"&page=3":  {"limit0000101", "limit0000130", "101 to 130 of 130.", 30},
		"&page=4":  {"limit0000101", "limit0000130", "101 to 130 of 130.", 30},
		"&q=00000": {"limit0000001", "limit0000050", "1 to 50 of 99 found, of 130.", 50},
	} {
		body := get(h, "/limits?sort=name"+page, "").Body.String()
		names := listed(body)
		if len(names) != want.n || names[0] != want.first || names[len(names)-1] != want.last || !strings.Contains(body, want.text) {
			t.Errorf("%q: %d limits, from %s to %s; want %v elements, names[0] %v, names[len(names)-1] %v and a text that contains %q", page, len(names), names[0], names[len(names)-1], want.n, want.first, want.last, want.text)
		}
		if strings.Contains(body, `rel="next"`) != (page == "" || page == "&page=2" || page == "&q=00000") || strings.Contains(body, `rel="prev"`) != (page != "" && page != "&q=00000") {
			t.Errorf("%q: got %s; want a link to the previous and the next page only if there is one", page, body)
		}
	}
}

func TestLinksOfTheLimits(t *testing.T) {
	h := New(many(t, 150))
	body := get(h, "/limits?q=limit&sort=name&show=all&page=2", "").Body.String()
	has(t, body, `<a href="/limits?q=limit&amp;sort=name" rel="prev">`, `<a href="/limits?page=3&amp;q=limit&amp;sort=name" rel="next">`, `aria-sort="ascending"`)
	b := &limitsBody{Query: "a b"}
	for want, got := range map[string]string{
		"/limits?q=a+b": b.link("denied", "all", 1), "/limits?page=2&q=a+b&show=denying&sort=rate": b.link("rate", "denying", 2), "/limits?": (&limitsBody{}).link("denied", "all", 1),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The chart has the same points as its table, per second. Without a script the table stands alone.
func TestTheChart(t *testing.T) {
	c := fixture(t)
	c.History.Mark(c.Now(), "new <configuration>")
	h := New(c)
	has(t, get(h, "/", "").Body.String(), `data-source="/chart?"`, `aria-current="true">15 minutes`, "new &lt;configuration&gt;", `<td class="n">600</td>`)
	has(t, get(h, "/?range=day", "").Body.String(), `data-source="/chart?range=day"`, `aria-current="true">24 hours`)
	var data struct {
		Time                   []int64
		Allowed, Denied, Would []float64
		Marks                  [][2]any
	}
	for path, want := range map[string]int{"/chart": 180, "/chart?range=day": 720, "/chart?domain=d&name=none": 0, "/chart?domain=d&name=send": 180} {
		if err := json.Unmarshal(get(h, path, "").Body.Bytes(), &data); err != nil || len(data.Time) != want || len(data.Would) != want || len(data.Marks) != 1 {
			t.Errorf("%s: %v, %d points, %d marks; want %d points and 1 mark", path, err, len(data.Time), len(data.Marks), want)
		}
		data.Time, data.Would = nil, nil
	}
	if w := get(h, "/uplot.js", ""); w.Header().Get("Content-Type") != "text/javascript; charset=utf-8" || !strings.Contains(w.Body.String(), "uPlot") {
		t.Errorf("the library is %s with %d bytes", w.Header().Get("Content-Type"), w.Body.Len())
	}
}
