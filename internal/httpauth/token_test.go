package httpauth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A file without a usable token is an error at the start. It never means that no token is required.
func TestFilesWithoutATokenAreRefused(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty": "", "blank": " \r\n\t\n", "two-lines": "a\nb\n", "two-words": "a b", "leading": " a", "null": "a\x00b", "delete": "a\x7fb", "large": strings.Repeat("x", maxFile+1),
	} {
		write(t, filepath.Join(dir, name), text)
	}
	for _, path := range []string{"empty", "blank", "two-lines", "two-words", "leading", "null", "delete", "large", "none", "."} {
		token, err := FileToken(filepath.Join(dir, path), zap.NewNop())
		if err == nil || token != nil || !strings.Contains(err.Error(), filepath.Join(dir, path)) || strings.Contains(err.Error(), "xxx") {
			t.Errorf("%s: got %v; want an error with the path and without the content", path, err)
		}
	}
	largest := strings.Repeat("x", maxFile)
	write(t, filepath.Join(dir, "largest"), largest)
	if token, err := FileToken(filepath.Join(dir, "largest"), zap.NewNop()); err != nil || token() != largest {
		t.Errorf("a token of %d bytes: %v; want it accepted", maxFile, err)
	}
	if token, err := FileToken("", zap.NewNop()); err == nil || token != nil {
		t.Errorf("FileToken without a file name: token is nil: %t, error %v; want no token and an error", token == nil, err)
	}
}

func TestTokensAreReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		write(t, path, "first \r\n")
		token, err := FileToken(path, zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct{ text, want string }{
			{"first", "first"},
			{"second\n", "second"},
			{"", "second"}, // while the file is being replaced, or by mistake
			{"", "second"}, // the same problem is logged once
			{"thi rd", "second"},
			{"third", "third"},
			{"-", "third"}, // removed
			{"third", "third"},
			{"fourth", "fourth"},
			{"-", "fourth"}, // logged again, because the file could be read in between
		} {
			if step.text == "-" {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, path, step.text)
			}
			time.Sleep(reread)
			for range 3 {
				if got := token(); got != step.want {
					t.Errorf("file %q: token %q, want %q", step.text, got, step.want)
				}
			}
		}
		for _, entry := range logs.All() {
			if strings.Contains(entry.Message, "hird") || strings.Contains(fmt.Sprint(entry.ContextMap()), "hird") {
				t.Errorf("the log entry %v contains a token; want none", entry)
			}
		}
		if n := logs.FilterMessageSnippet("cannot be read").Len(); n != 4 {
			t.Errorf("%d problems are logged, want 4", n)
		}
	})
}

func TestRequestsOfTheSamePage(t *testing.T) {
	for _, c := range []struct {
		host, origin, site string
		want               bool
	}{
		{"sidecar:80", "http://sidecar:80", "", true},
		{"sidecar", "https://sidecar", "same-origin", true},
		{"sidecar", "", "", false},
		{"sidecar", "null", "", false},
		{"sidecar", "http://sidecar:81", "", false},
		{"sidecar", "http://evil.example", "", false},
		{"sidecar", "https://evil.example", "same-origin", false},
		{"sidecar", "ftp://sidecar", "", false},
		{"sidecar", "http://sidecar", "same-site", false},
		{"sidecar", "https://sidecar", "cross-site", false},
		{"", "http://", "", false}, // neither has a host
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Host = c.host
		r.Header.Set("Origin", c.origin)
		if c.site != "" {
			r.Header.Set("Sec-Fetch-Site", c.site)
		}
		if got := FromSamePage(r); got != c.want {
			t.Errorf("Host %q, Origin %q, Sec-Fetch-Site %q: FromSamePage returned %t, want %t", c.host, c.origin, c.site, got, c.want)
		}
	}
}

func TestRequestsOfOtherSites(t *testing.T) {
	for site, want := range map[string]bool{"cross-site": true, "same-site": true, "same-origin": false, "none": false, "": false} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Sec-Fetch-Site", site)
		if got := FromOtherSite(r); got != want {
			t.Errorf("Sec-Fetch-Site %q: FromOtherSite returned %t, want %t", site, got, want)
		}
	}
}

func TestOnlyRequestsToThisMachineArePassed(t *testing.T) {
	handler := LocalHostOnly(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "passed") }), "use an address")
	for host, want := range map[string]string{"localhost": "200 passed", "evil.example": "421 use an address\n"} {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.Host = host
		handler.ServeHTTP(w, r)
		if got := fmt.Sprintf("%d %s", w.Code, w.Body); got != want {
			t.Errorf("Host %s: got %q, want %q", host, got, want)
		}
	}
}

// A page of a web site whose host name resolves to this machine reaches a Unix socket through a forwarded port. Its
// GET may have neither of the headers that FromBrowser examines.
func TestHostsOfRequestsThroughAUnixSocket(t *testing.T) {
	for _, c := range []struct {
		host, header string
		want         bool
	}{
		{"sidecar", "", true}, // a program
		{"evil.example:6070", "Accept-Language", false},
		{"evil.example:6070", "Origin", false},
		{"evil.example:6070", "Sec-Fetch-Site", false},
		{"localhost:6070", "Accept-Language", true},
		{"127.0.0.1:6070", "Origin", true},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{Net: "unix", Name: "/admin.sock"}))
		r.Host = c.host
		if c.header != "" {
			r.Header.Set(c.header, "x")
		}
		if got := HasLocalHost(r); got != c.want {
			t.Errorf("Host %s with the header %q: HasLocalHost returned %t, want %t", c.host, c.header, got, c.want)
		}
	}
}

func TestHostsOfThisMachine(t *testing.T) {
	for host, want := range map[string]bool{
		"": true, "localhost": true, "LocalHost:8080": true, "127.0.0.1": true, "[::1]:8080": true, "192.0.2.1:80": true,
		"evil-localhost": false, "localhost.evil.example:8080": false, "evil.localhost": false, "127.0.0.1.evil.example": false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6070}))
		if r.Host = host; HasLocalHost(r) != want {
			t.Errorf("Host %q: HasLocalHost returned %t, want %t", host, !want, want)
		}
	}
}

func TestWithoutATokenNoRequestIsAuthorized(t *testing.T) {
	for _, header := range []string{"", "Bearer", "Bearer ", "Bearer x", "Basic x", "x", " x"} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", header)
		if HasToken(r, nil) || HasToken(r, FixedToken("")) {
			t.Errorf("the header %q is accepted although no token is configured; want it refused", header)
		}
		if HasToken(r, FixedToken("x")) != (header == "Bearer x") {
			t.Errorf("the header %q: accepted %t; want %t", header, HasToken(r, FixedToken("x")), header == "Bearer x")
		}
	}
}

func TestKeysOfReservationsAreReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	one, two, three := strings.Repeat("a", shortestSecret), strings.Repeat("b", shortestSecret), strings.Repeat("c", shortestSecret)
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		write(t, path, one+"\n")
		secrets, err := FileSecrets(path, zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct{ text, want string }{
			{one, one},
			{two + "\n" + one, two + " " + one},                // a new key signs, and the previous one is still accepted
			{"", two + " " + one},                              // while the file is being replaced, or by mistake
			{one[1:], two + " " + one},                         // too short
			{one + "\n" + two + "\n" + three, two + " " + one}, // too many
			{three, three},
		} {
			write(t, path, step.text)
			time.Sleep(reread)
			for range 3 {
				if got := strings.Join(secrets(), " "); got != step.want {
					t.Errorf("%q: %q, want %q", step.text, got, step.want)
				}
			}
		}
		for _, entry := range logs.All() {
			if text := entry.Message + fmt.Sprint(entry.ContextMap()); strings.Contains(text, "aaa") || strings.Contains(text, "bbb") || strings.Contains(text, "ccc") {
				t.Errorf("the log entry %v contains a key; want none", entry)
			}
		}
		if problems, changes := logs.FilterMessageSnippet("cannot be read").Len(), logs.FilterMessageSnippet("were read again").Len(); problems != 3 || changes != 2 {
			t.Errorf("%d problems and %d changes are logged, want 3 and 2", problems, changes)
		}
	})
	write(t, path, one+"\n"+two[1:])
	if _, err := FileSecrets(path, zap.NewNop()); err == nil || !strings.Contains(err.Error(), "key 2 in "+path) {
		t.Errorf("a second key that is too short: got %v, want an error that names key 2", err)
	}
	if secrets, err := FileSecrets(filepath.Join(t.TempDir(), "none"), zap.NewNop()); !errors.Is(err, fs.ErrNotExist) || secrets != nil {
		t.Errorf("FileSecrets of a file that does not exist: secrets are nil: %t, error %v; want no secrets and an error", secrets == nil, err)
	}
}

func TestAFileIsReadOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		get, err := follow(file[int]{
			read:    func() (int, error) { reads++; return reads, nil },
			equal:   func(a, b int) bool { return a == b },
			changed: func(int) {},
		})
		if err != nil {
			t.Fatal(err)
		}
		for second := range 3 {
			for range 100 {
				if got := get(); got != second+1 || reads != second+1 {
					t.Fatalf("after %d s: got %d from read %d, want read %d", second, got, reads, second+1)
				}
			}
			time.Sleep(reread)
		}
	})
}
