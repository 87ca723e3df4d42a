package e2e

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// reportLog returns an access log of 1,000 seconds with 204 paths, which writeReport makes the keys of a
// limit. Each of 200 users sends 1 to 7 requests a second for 5 seconds. One abuser sends a request in each
// second. The other three paths try to run a script in the report.
func reportLog() string {
	var log strings.Builder
	line := func(second int, path string) {
		fmt.Fprintf(&log, `192.0.2.1 - - [21/Nov/2026:12:%02d:%02d +0000] "GET %s HTTP/1.1" 200 512 "-" "-"`+"\n", second/60, second%60, path)
	}
	for second := range 1000 {
		for range 1 + second%7 {
			line(second, fmt.Sprintf("/user/%d", second/5))
		}
		line(second, "/abuser")
		if second%100 == 0 {
			line(second, `/</script><script>document.title='pwned'</script>`)
			line(second, `/<img/src=x/onerror=document.title='pwned'>`)
			line(second, `/\x22'><svg/onload=document.title='pwned'>`)
		}
	}
	return log.String()
}

func writeReport(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"limits.yaml": "domain: edge\ndescriptors: [{key: path, rate_limit: {algorithm: token_bucket, rate: 5, period: 1m}}]\n",
		"access.log":  reportLog(),
	} {
		writeFile(t, filepath.Join(dir, name), text)
	}
	c := exec.CommandContext(t.Context(), sidecartest.Program, "simulate", "--config", "limits.yaml", "--log-format", "nginx", "--descriptor", "path=%U", "--html", "report.html", "access.log")
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return (&url.URL{Scheme: "file", Path: filepath.Join(dir, "report.html")}).String()
}

type browser struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	output []string // messages, exceptions and policy violations in the console; guarded by mu
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("google-chrome")
	if err != nil {
		program = tooltest.Path(t, "chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU)
	allocated, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(allocated)
	t.Cleanup(end)
	b := &browser{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.record); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *browser) record(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		b.output = append(b.output, fmt.Sprint(e.Type))
	case *runtime.EventExceptionThrown:
		b.output = append(b.output, e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		b.output = append(b.output, e.Entry.Text)
	}
}

func (b *browser) console() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.output)
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 2*maxWait)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

func in[T any](b *browser, script string) T {
	b.t.Helper()
	value, err := evaluate[T](b, script)
	if err != nil {
		b.t.Fatalf("%s: %v", script[:min(len(script), 200)], err)
	}
	return value
}

// evaluate returns an error if the browser leaves the page meanwhile.
func evaluate[T any](b *browser, script string) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, 2*maxWait)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

// outcome is a script that returns the page's text about the selected rate.
const outcome = `document.querySelector('.outcome').textContent`

func TestReportInABrowser(t *testing.T) {
	t.Parallel()
	address := writeReport(t)
	for width, scheme := range screens {
		t.Run(fmt.Sprintf("%s %d", scheme, width), func(t *testing.T) {
			b := newBrowser(t)
			b.emulate(width, scheme)
			b.do(chromedp.Navigate(address))
			if title := in[string](b, `document.title`); title != "Limits for access.log" {
				t.Errorf("the title is %q, want %q", title, "Limits for access.log")
			}
			followsTheKeyboard(t, b)
			followsTheMouse(t, b)
			b.wellMade(width, scheme, fmt.Sprintf("report-%s-%d.png", scheme, width), "img, main script")
			if output := b.console(); len(output) > 0 {
				t.Errorf("the console of the browser reports %q", output)
			}
		})
	}
}

// screens has the color scheme for each width of a screen.
var screens = map[int64]string{390: "light", 1440: "dark"}

func (b *browser) emulate(width int64, scheme string) {
	b.t.Helper()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media); err != nil {
		b.t.Fatal(err)
	}
	b.do(chromedp.EmulateViewport(width, 900))
}

// wellMade checks the form of a page, and that keys and names have added no element to it that the selector hostile
// finds. It keeps a picture of the page.
func (b *browser) wellMade(width int64, scheme, picture, hostile string) {
	b.t.Helper()
	if got := in[int64](b, `document.documentElement.scrollWidth`); got > width {
		b.t.Errorf("the page is %d px wide, want at most %d", got, width)
	}
	if dark := in[string](b, `getComputedStyle(document.body).backgroundColor`) == "rgb(13, 17, 23)"; dark != (scheme == "dark") {
		b.t.Errorf("the dark color scheme is in use: %t, want the %s one", dark, scheme)
	}
	if n := in[int](b, `document.querySelectorAll('`+hostile+`').length`); n != 0 {
		b.t.Errorf("keys or names added %d elements to the page, want 0", n)
	}
	if text := in[string](b, `document.body.innerHTML`); strings.Contains(text, "\u202e") || strings.Contains(text, "\xff") {
		b.t.Error("the page contains unescaped bytes of a client")
	}
	shot, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		_, err = png.Decode(bytes.NewReader(shot))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(b.t.ArtifactDir(), picture), shot, 0o600)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	axe(b.t, b)
}

func followsTheKeyboard(t *testing.T, b *browser) {
	t.Helper()
	const suggested = "rate 24 denies a request of 1 of 204 clients"
	if got := in[string](b, outcome); !strings.HasPrefix(got, suggested) {
		t.Errorf("at first the page shows %q, want %q", got, suggested)
	}
	in[bool](b, `document.querySelector('input[type=range]').focus(), true`)
	b.do(chromedp.KeyEvent(kb.Home))
	for i := range 3 {
		row := fmt.Sprintf(`document.querySelectorAll('details')[0].querySelectorAll('tbody tr')[%d]`, i)
		limit, clients := in[string](b, row+`.children[0].textContent`), in[string](b, row+`.children[1].textContent.split(' ')[0]`)
		got := in[string](b, outcome)
		if want := fmt.Sprintf("%s denies a request of %s of ", strings.Replace(limit, ":", "", 1), clients); !strings.HasPrefix(got, want) {
			t.Errorf("at step %d the page shows %q, want %q", i, got, want)
		}
		b.do(chromedp.KeyEvent(kb.ArrowRight))
	}
	if got := in[string](b, `document.querySelector('input').getAttribute('aria-valuetext')`); !strings.Contains(got, "rate 4") {
		t.Errorf("the text for screen readers is %q, want one with %q", got, "rate 4")
	}
	b.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter)) // the button that selects the suggested rate again
	if got := in[string](b, outcome); !strings.HasPrefix(got, suggested) {
		t.Errorf("after the button the page shows %q, want %q", got, suggested)
	}
}

func followsTheMouse(t *testing.T, b *browser) {
	t.Helper()
	in[bool](b, `document.querySelector('.needs svg').scrollIntoView({block: 'center'}), true`)
	box := in[struct{ Left, Right, Y float64 }](b, `(() => {
		const b = document.querySelector('.needs svg').getBoundingClientRect();
		return {Left: b.left, Right: b.right, Y: b.top + 40};
	})()`)
	move := func(kind input.DispatchMouseEventType, x float64) {
		t.Helper()
		b.do(chromedp.MouseEvent(kind, x, box.Y, chromedp.ButtonLeft))
	}
	move(chromedp.MousePressed, (box.Left+box.Right)/2)
	middle := in[string](b, outcome)
	move(chromedp.MouseMoved, box.Right-2)
	if got := in[string](b, outcome); !strings.Contains(got, "denies a request of 0 of 204 clients (0.00 %), and 0 of ") {
		t.Errorf("dragged to the right end, the page shows %q, want no denial", got)
	}
	move(chromedp.MouseMoved, box.Left)
	if got := in[string](b, outcome); !strings.HasPrefix(got, "rate 1 denies ") || got == middle {
		t.Errorf("dragged to the left end, the page shows %q, and in the middle %q; want rate 1 at the left end only", got, middle)
	}
	move(chromedp.MouseReleased, box.Left)
	move(chromedp.MouseMoved, box.Right)
	if got := in[string](b, outcome); !strings.HasPrefix(got, "rate 1 denies ") {
		t.Errorf("the line moves without being dragged: %q", got)
	}
}

func axe(t *testing.T, b *browser) {
	t.Helper()
	files, err := filepath.Glob(root + "/.tools/axe-core*/axe.min.js")
	if err != nil || len(files) == 0 {
		tooltest.Missing(t, "axe-core")
	}
	script := read(t, files[0])
	in[bool](b, `document.querySelectorAll('details').forEach(d => { d.open = true; }), true`)
	in[bool](b, script+"; true")
	if found := in[string](b, `axe.run().then(r => JSON.stringify(r.violations.map(v => [v.id, v.nodes.map(n => n.html)]), null, 1))`); found != "[]" {
		t.Errorf("axe finds %s", found)
	}
}
