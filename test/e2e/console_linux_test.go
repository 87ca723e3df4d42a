package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

const consoleLimits = `domain: shop
limits:
  per_key: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 2}
descriptors:
  - {key: tenant, descriptors: [{key: user, limit: per_key}]}
  - {key: beta, shadow_mode: true, rate_limit: {name: try, algorithm: token_bucket, rate: 1, period: 1h}}
  - {key: free, descriptors: [{key: user, rate_limit: {name: much, algorithm: token_bucket, rate: 1000000, period: 1s}}]}
`

// ask sends a request with one descriptor over /json.
func (p *adminPage) ask(t *testing.T, keysAndValues ...string) (allowed bool) {
	t.Helper()
	var entries []map[string]string
	for i := 0; i < len(keysAndValues); i += 2 {
		entries = append(entries, map[string]string{"key": keysAndValues[i], "value": keysAndValues[i+1]})
	}
	body, err := json.Marshal(map[string]any{"domain": "shop", "descriptors": []any{map[string]any{"entries": entries}}})
	if err != nil {
		t.Fatal(err)
	}
	code, _ := post(p.http+"/json", string(body))
	return code == http.StatusOK
}

// click clicks the first element that the selector finds, and waits for the next page.
func (b *browser) click(selector string) {
	b.t.Helper()
	in[bool](b, `window.before = true`)
	in[bool](b, `document.querySelector('`+selector+`').click(), true`)
	b.until("another page", `window.before === undefined && document.readyState === 'complete'`)
}

// withoutScripts turns off the scripts of pages. Those of the test still run.
func (b *browser) withoutScripts() {
	b.t.Helper()
	off := emulation.SetScriptExecutionDisabledParams{Value: true}
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, off); err != nil {
		b.t.Fatal(err)
	}
}

// A tenant floods with 40 keys beside 20 honest keys. The first screen names it.
func TestAFloodIsNamed(t *testing.T) {
	t.Parallel()
	p := startAdminPage(t, consoleLimits)
	for user := range 40 {
		for range 6 {
			p.ask(t, "tenant", "evil", "user", fmt.Sprint(user))
		}
	}
	for user := range 20 {
		p.ask(t, "tenant", fmt.Sprint("honest", user), "user", fmt.Sprint(user))
		p.ask(t, "beta", "curious")
	}
	b := newBrowser(t)
	b.emulate(1280, "light")
	b.logIn(p)
	b.shows("tenant=evil", "160", "100 %", "40 keys", "Would be denied", "beta=curious", "19")
	if top := in[float64](b, `[...document.querySelectorAll('strong')].find(e => e.textContent === 'tenant=evil').getBoundingClientRect().bottom`); top > 900 {
		t.Errorf("the flood is named %v px below the top; want it on the first screen", top)
	}
	b.until("the chart", `document.querySelector('.chart canvas') !== null`)
	b.wellMade(1280, "light", "flood.png", `img, base, iframe`)
	b.do(chromedp.Navigate(p.admin + "/limits"))
	b.do(chromedp.KeyEvent("/"))
	b.until("the focus in the filter", `document.activeElement.id === 'q'`)
	b.do(chromedp.KeyEvent("much"))
	b.until("the filtered limits", `document.querySelectorAll('#rows tbody tr').length === 1`)
	if got := in[string](b, `location.search`); !strings.HasPrefix(got, "?q=much&") {
		t.Errorf("the address has %s; want the filter", got)
	}
}

// Without scripts the page shows everything, and its links and forms are in reach. internal/admin follows each of them.
func TestThePageWithoutScripts(t *testing.T) {
	t.Parallel()
	p := startAdminPage(t, consoleLimits)
	for i := range 18 {
		p.ask(t, "tenant", "evil", "user", fmt.Sprint(i%3))
	}
	b := newBrowser(t)
	b.emulate(390, "dark")
	b.withoutScripts()
	b.logIn(p)
	if in[bool](b, `!document.querySelector('label.live').hidden || document.querySelector('.chart canvas') !== null`) {
		t.Fatal("the scripts of the page run")
	}
	b.shows("tenant=evil", "3 keys", "12")
	eventually(t, "the chart in numbers", func() bool {
		b.do(chromedp.Navigate(p.admin + "/"))
		in[bool](b, `document.querySelector('#chart-rows summary').click(), true`)
		return strings.Contains(in[string](b, `document.querySelector('#chart-rows tbody').innerText`), "12")
	})
	if in[bool](b, `document.querySelector('nav').checkVisibility()`) {
		t.Error("a phone shows the links before the menu is open")
	}
	in[bool](b, `document.querySelector('.menu').click(), true`)
	b.click(`nav a[href="/limits"]`)
	in[bool](b, `document.querySelector('#q').value = 'much', true`)
	b.click(`#filter button`)
	if rows := in[int](b, `document.querySelectorAll('#rows tbody tr').length`); rows != 1 {
		t.Errorf("the filter leaves %d limits; want 1", rows)
	}
	b.do(chromedp.Navigate(p.admin + "/"))
	b.click(`#denied a.danger`)
	in[bool](b, `document.querySelector('#for').value = '2h', true`)
	b.click(`form.search button`)
	b.shows("all keys with tenant=evil: every request is denied until")
	b.click(`main form[method=post] button.danger`)
	b.shows("Blocked.")
	if p.ask(t, "tenant", "evil", "user", "new") || !p.ask(t, "tenant", "honest", "user", "new") {
		t.Error("a new key of the blocked tenant is allowed, or that of another denied")
	}
	b.click(`.logout button`)
	b.shows("Log in")
}

// traffic sends requests until the test ends.
func (p *adminPage) traffic(t *testing.T, key string) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(15 * time.Millisecond):
				p.ask(t, key, fmt.Sprint(i%3), "user", "x")
			}
		}
	})
	stop = sync.OnceFunc(func() { close(done); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// The line of state says what is wrong and that it is over, on a page that nobody touches. internal/telemetry/status tests
// each of its texts. The timeout is longer than the default, because the machine may be busy.
func TestTheLineOfStateFollowsFailures(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	p := startAdminPage(t, consoleLimits, "--redis-url", "redis://"+redis.Addr, "--backend-timeout", "250ms")
	b := newBrowser(t)
	b.emulate(1280, "light")
	b.logIn(p)
	state := func(what, level, words string) {
		t.Helper()
		b.until(what, `(() => { const e = document.querySelector('#state span'); return e.className === '`+level+`' && e.textContent.includes('`+words+`'); })()`)
	}
	stop := p.traffic(t, "free")
	state("healthy", "green", "Healthy")
	redis.Pause()
	state("a paused Redis", "red", "Redis gives no answer")
	in[bool](b, `document.querySelector('#state').click(), true`)
	b.shows("Cause", "Remedy", "Since", "Redis")
	redis.Resume()
	state("Redis answers again", "green", "Healthy")
	p.write(t, strings.Replace(consoleLimits, "rate: 1,", "rate: none,", 1))
	state("a refused file", "amber", "New configuration refused, the old one stays: limits.yaml:3")
	p.write(t, consoleLimits)
	state("a corrected file", "green", "Healthy")
	stop()
	p.traffic(t, "tenant")
	state("a flood", "amber", "requests/s denied")
	b.until("its keys", `document.querySelector('#denied').innerText.includes('tenant=')`)
}
