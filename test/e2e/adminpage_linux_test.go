package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// browse has Chromium show a page. It returns what the page then consists of, and what the browser's
// console says.
func browse(t *testing.T, url string) (dom, console string) {
	t.Helper()
	program, err := exec.LookPath("google-chrome") // the same for what is asked of it here
	if err != nil {
		program = tooltest.Path(t, "chromium") // may skip
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--user-data-dir="+t.TempDir(), "--enable-logging=stderr", "--dump-dom", url)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // and those it started
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	for line := range strings.Lines(said.String()) {
		if strings.Contains(line, ":CONSOLE:") {
			console += line
		}
	}
	return out.String(), console
}

// hostileKeys would each be more than a text on a page that did not take care.
var hostileKeys = []string{
	`<script>document.title='pwned'</script>`,
	`<img src=x onerror=document.title='pwned'>`,
	`"><svg/onload=document.title='pwned'>`,
	`'><a href=javascript:document.title='pwned'>x</a>`,
	`</td></tr></table><style>*{display:none}</style>`,
	`<base href=//evil.test/><meta http-equiv=refresh content=0;//evil.test/>`,
	`&lt;script&gt;&#60;b&#62;`,
	"\u202egnp.exe", // what follows would be read backwards
	"%s%d%!(EXTRA)",
}

// TestAdminPageInABrowser has hostile keys denied, and looks at the page that tells of them.
func TestAdminPageInABrowser(t *testing.T) {
	t.Parallel()
	s := newFront(t, "")
	ask := func(headers ...string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.addr+":8080/v1/auth/nginx", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = a.Body.Close()
		return a.StatusCode
	}
	client := netip.MustParseAddr("192.0.2.1")
	denied := func(headers ...string) {
		t.Helper()
		client = client.Next() // each address has a limit of its own
		for range 100 {
			if ask(append(headers, "X-Real-IP", client.String())...) == http.StatusForbidden {
				return
			}
		}
		t.Fatalf("%q is not denied", headers)
	}
	for _, key := range hostileKeys {
		denied("X-Original-URI", "/", "X-Api-Key", key)
	}
	denied("X-Original-URI", "/?tenant=%0d%0a%00%1b[31m%ff%3Cscript%3Edocument.title='pwned'%3C/script%3E")

	page := "http://" + net.JoinHostPort(s.addr, "6070") + "/"
	dom, console := browse(t, page)
	if console != "" {
		t.Errorf("the console says\n%s", console)
	}
	for _, want := range []string{
		"<title>Overview · rlsidecar</title>", "the limit was reached",
		`>api_key=&lt;script&gt;document.title='pwned'&lt;/script&gt;</a>`,
		`>api_key=&lt;img src=x onerror=document.title='pwned'&gt;</a>`,
		`>api_key=\"&gt;&lt;svg/onload=document.title='pwned'&gt;</a>`,
		`>api_key=&lt;/td&gt;&lt;/tr&gt;&lt;/table&gt;&lt;style&gt;*{display:none}&lt;/style&gt;</a>`,
		`>api_key=&amp;lt;script&amp;gt;&amp;#60;b&amp;#62;</a>`,
		`>api_key=\u202egnp.exe</a>`, `>api_key=%s%d%!(EXTRA)</a>`,
		`>tenant=\r\n\x00\x1b[31m\xff&lt;script&gt;`,
	} {
		if !strings.Contains(dom, want) {
			t.Errorf("no %q", want)
		}
	}
	for _, no := range []string{"<script>document", "<img", "<svg/", "<base", "<meta http-equiv", "<a href=\"javascript", "\u202e", "\xff"} {
		if strings.Contains(dom, no) {
			t.Errorf("the page has %q", no)
		}
	}
	if n := strings.Count(dom, "<style"); n != 1 {
		t.Errorf("%d styles", n)
	}
	if t.Failed() {
		t.Log(dom)
	}

	// That this browser would do what the keys want, and say what a policy forbids:
	careless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'")
			fmt.Fprint(w, "<!doctype html><title>x</title><style>p{color:red}</style>", hostileKeys[0])
		}
	}))
	defer careless.Close()
	if dom, console := browse(t, careless.URL+"/"); !strings.Contains(dom, "<title>pwned</title>") || !strings.Contains(console, "style") {
		t.Errorf("this browser shows nothing:\n%s\n%s", dom, console)
	}
}
