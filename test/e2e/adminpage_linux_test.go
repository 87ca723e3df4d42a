package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// hostileKeys are keys of clients that would change a page that does not escape them.
var hostileKeys = []string{
	`<script>document.title='pwned'</script>`,
	`<img src=x onerror=document.title='pwned'>`,
	`"><svg/onload=document.title='pwned'>`,
	`'><a href=javascript:document.title='pwned'>x</a>`,
	`</td></tr></table><style>*{display:none}</style>`,
	`<base href=//evil.test/><meta http-equiv=refresh content=0;//evil.test/>`,
	`&lt;script&gt;&#60;b&#62;`,
	"\u202egnp.exe", // a right-to-left override, which would reverse the text after it
	"%s%d%!(EXTRA)",
	"\r\n\x00\x1b[31m\xff",
	strings.Repeat("long", 200),
}

const pageLimits = `domain: shop
limits:
  send: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 3}
  "<img src=x onerror=document.title='pwned'>": {algorithm: fixed_window, rate: 1, period: 1h}
  quiet: {algorithm: sliding_window, rate: 1, period: 1h}
descriptors:
  - {key: user, limit: send}
  - {key: region, limit: quiet, shadow_mode: true}
`

// adminPage is a sidecar with an admin token.
type adminPage struct {
	*process
	http, admin, config string
}

func startAdminPage(t *testing.T, limits string, flags ...string) *adminPage {
	t.Helper()
	addr := loopback()
	p := &adminPage{http: "http://" + addr + ":8080", admin: "http://" + addr + ":6070", config: fileOf(t, "limits.yaml", limits)}
	p.process = serve(t, addr, append(flags, "--config", p.config, "--admin-token-file", fileOf(t, "token", "secret\n"))...)
	return p
}

// startDenials starts a sidecar that has denied requests of each of hostileKeys and of two other keys.
func startDenials(t *testing.T) *adminPage {
	t.Helper()
	p := startAdminPage(t, pageLimits)
	for _, key := range hostileKeys {
		p.deny(t, "send", key)
	}
	p.deny(t, "send", "bob")
	p.deny(t, "<img src=x onerror=document.title='pwned'>", "eve")
	return p
}

func (p *adminPage) write(t *testing.T, text string) { t.Helper(); writeFile(t, p.config, text) }

func (p *adminPage) deny(t *testing.T, limit, key string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"name": limit, "key": map[string]string{"base64": base64.StdEncoding.EncodeToString([]byte(key))}})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if code, _ := post(p.http+"/v1/limit", string(body)); code == http.StatusTooManyRequests {
			return
		}
	}
	t.Fatalf("limit %s, key %q: no request was denied", limit, key)
}

// tabTo presses Tab until the element with this text, label or value has the focus. It requires that the
// focus is visible.
func (b *browser) tabTo(text string) {
	b.t.Helper()
	const focused = `(() => {
		const e = document.activeElement, seen = getComputedStyle(e).outlineStyle !== 'none';
		const label = e.labels && e.labels.length ? e.labels[0].textContent : e.textContent || e.value || '';
		return (seen ? '' : 'unseen ') + label.trim();
	})()`
	var passed []string
	for range 200 {
		b.do(chromedp.KeyEvent(kb.Tab))
		at := in[string](b, focused)
		if at == text {
			return
		}
		passed = append(passed, at)
	}
	b.t.Fatalf("200 Tab keys do not reach %q; the first of them reached %q", text, passed[:min(len(passed), 40)])
}

// enter presses Enter and waits until the browser has loaded the next page.
func (b *browser) enter() {
	b.t.Helper()
	in[bool](b, `window.before = true`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("another page", `window.before === undefined && document.readyState === 'complete'`)
}

// until waits until a script returns true. The browser may leave the page while the script runs; then the
// script runs again on the next page.
func (b *browser) until(what, script string) {
	b.t.Helper()
	for deadline := time.Now().Add(maxWait); ; time.Sleep(50 * time.Millisecond) {
		done, err := evaluate[bool](b, script)
		switch {
		case err == nil && done:
			return
		case err != nil && !strings.Contains(err.Error(), "Inspected target navigated or closed"):
			b.t.Fatalf("%s: %v", what, err)
		case time.Now().After(deadline):
			b.t.Fatalf("%s: not within %v; the page is\n%s", what, maxWait, in[string](b, `document.body.innerText`))
		}
	}
}

func (b *browser) text() string {
	b.t.Helper()
	return in[string](b, `document.querySelector('main').innerText`)
}

func (b *browser) shows(texts ...string) {
	b.t.Helper()
	all := b.text()
	for _, text := range texts {
		if !strings.Contains(all, text) {
			b.t.Errorf("no %q in\n%s", text, all)
		}
	}
}

func (b *browser) logIn(p *adminPage) {
	b.t.Helper()
	b.do(chromedp.Navigate(p.admin + "/"))
	b.until("the focus in the field of the token", `document.activeElement !== null && document.activeElement.id === 'token'`)
	b.do(chromedp.KeyEvent("secret"))
	b.until("the token in its field", `document.activeElement.value === 'secret'`)
	b.enter()
	b.shows("Overview")
}

// The browser reports on its console what a page's Content-Security-Policy blocks, which must be nothing.
func TestAdminPageInABrowser(t *testing.T) {
	t.Parallel()
	p := startDenials(t)
	b := newBrowser(t)
	const name = "%3Cimg+src%3Dx+onerror%3Ddocument.title%3D%27pwned%27%3E"
	paths := map[string]string{
		"login": "/login", "overview": "/", "limits": "/limits", "limit": "/limit?domain=shop&name=send", "hostile-limit": "/limit?domain=shop&name=" + name,
		"search": "/key?q=b", "key": "/key?domain=shop&limit=send&value=bob", "hostile-key": "/key?domain=shop&limit=send&value=" + name,
		"raise": "/change?do=raise&domain=shop&limit=send&value=bob", "adjustments": "/adjustments",
		"configuration": "/configuration", "fleet": "/fleet", "problem": "/limit?domain=shop&name=none",
	}
	pages := []string{"login", "overview", "limits", "limit", "hostile-limit", "search", "key", "hostile-key", "raise", "adjustments", "configuration", "fleet", "problem"}
	loggedIn := false
	for width, scheme := range screens {
		b.emulate(width, scheme)
		for _, page := range pages {
			t.Run(fmt.Sprintf("%s %s %d", page, scheme, width), func(t *testing.T) {
				b := &browser{t: t, ctx: b.ctx}
				if page == "overview" && !loggedIn {
					b.logIn(p)
					loggedIn = true
				}
				b.do(chromedp.Navigate(p.admin + paths[page]))
				if title := in[string](b, `document.title`); !strings.HasSuffix(title, "· rlsidecar") {
					t.Errorf("the title is %q, want the suffix %q", title, "· rlsidecar")
				}
				b.wellMade(width, scheme, fmt.Sprintf("%s-%s-%d.png", page, scheme, width),
					`img, base, iframe, main script, main style, main svg[onload], [href^="javascript"], meta[http-equiv]`)
			})
		}
	}
	for _, output := range b.console() {
		// The test opens two pages that are errors: 401 before it logs in, and 404 for a limit that does not exist.
		if !strings.Contains(output, "401") && !strings.Contains(output, "404") {
			t.Errorf("the console of the browser reports %q", output)
		}
	}
}

// The keyboard reaches the links, fields and buttons. internal/admin tests what each of them does.
func TestAdminPageByKeyboard(t *testing.T) {
	t.Parallel()
	p := startDenials(t)
	b := newBrowser(t)
	b.emulate(1440, "dark")
	b.logIn(p)
	find := func() {
		b.tabTo("Why is this key denied?")
		b.do(chromedp.KeyEvent("bob"))
		b.enter()
		b.shows("denied 1 time", "0 of 3 left")
		b.tabTo("bob")
		b.enter()
	}
	because := func(reason string) {
		b.tabTo("Reason")
		b.do(chromedp.KeyEvent(reason))
		b.enter()
	}
	find()
	b.shows("Denied now: limit send denies until ", "because it is used up", "retry after 59 minutes")
	b.tabTo("Block")
	b.enter()
	b.shows("every request is denied until ")
	b.tabTo("Your name")
	b.do(chromedp.KeyEvent("ann"))
	because("mistake")
	b.shows("Blocked.", "because an operator blocks the key")
	b.tabTo("Undo")
	b.enter()
	b.shows("The adjustment was ended.", "Nothing is adjusted.", "mistake")
	find()
	b.tabTo("Raise or lower")
	b.enter()
	b.shows("token bucket: 2 per 1h, up to 6 at once, until ")
	because("launch")
	b.shows("The limit was changed.", "3 of 6 left", "By ann: “launch”", "Allowed now")
	p.write(t, strings.Replace(pageLimits, "capacity: 3", "capacity: 1", 1))
	eventually(t, "the new numbers are in use", func() bool {
		b.tabTo("Configuration")
		b.enter()
		return strings.Contains(b.text(), "up to 1 at once")
	})
	b.tabTo(in[string](b, `document.querySelector('form[action="/configuration/again"] button').textContent`))
	b.enter()
	b.shows("The earlier configuration is in use, until the next load.", "up to 3 at once")
	p.write(t, strings.Replace(pageLimits, "capacity: 3", "capacity: 5", 1))
	eventually(t, "the next load is in use", func() bool {
		b.tabTo("Configuration")
		b.enter()
		return strings.Contains(b.text(), "up to 5 at once") && !strings.Contains(b.text(), "An earlier configuration")
	})
	b.tabTo("Log out")
	b.enter()
	b.shows("Log in")
	if answer, err := http.Get(p.admin + "/"); err != nil || answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("got %v %v; want status 401", answer, err)
	}
}
