package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

func TestParseShare(t *testing.T) {
	for text, want := range map[string]float64{"0%": 0, "1%": 0.01, "0.5 %": 0.005, "50%": 0.5} {
		if got, err := parseShare(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "%", "1", "100%", "-1%", "NaN%", "Inf%", "x%"} {
		if got, err := parseShare(text); err == nil {
			t.Errorf("%q: got %v; want an error", text, got)
		}
	}
}

func TestFlagsOfALog(t *testing.T) {
	one, two := map[string]*limiter.Domain{"a": {}}, map[string]*limiter.Domain{"a": {}, "b": {}}
	descriptor := []string{"user=%h"}
	for name, test := range map[string]struct {
		flags   logFlags
		domains map[string]*limiter.Domain
		domain  string
		wrong   string // a part of the error; "" means that there is none
	}{
		"a trace":                      {logFlags{LogFormat: "jsonl"}, two, "", ""},
		"a trace with a domain":        {logFlags{LogFormat: "jsonl", Domain: "b"}, two, "b", ""},
		"a trace with descriptors":     {logFlags{LogFormat: "jsonl", Descriptor: descriptor}, one, "", "--descriptor needs --log-format"},
		"a trace with routes":          {logFlags{LogFormat: "jsonl", Auth: true}, one, "", "--auth needs --log-format"},
		"a log":                        {logFlags{LogFormat: "nginx", Descriptor: descriptor}, one, "a", ""},
		"a log with two domains":       {logFlags{LogFormat: "nginx", Descriptor: descriptor}, two, "", "needs --domain"},
		"a log with a domain":          {logFlags{LogFormat: "nginx", Descriptor: descriptor, Domain: "b"}, two, "b", ""},
		"a log with another domain":    {logFlags{LogFormat: "nginx", Descriptor: descriptor, Domain: "c"}, two, "", "is not configured"},
		"a log without descriptors":    {logFlags{LogFormat: "envoy"}, one, "", "needs --descriptor"},
		"a log with routes":            {logFlags{LogFormat: "envoy", Auth: true}, two, "", ""},
		"routes and descriptors":       {logFlags{LogFormat: "nginx", Auth: true, Descriptor: descriptor}, one, "", "cannot be combined"},
		"routes and a domain":          {logFlags{LogFormat: "nginx", Auth: true, Domain: "a"}, one, "", "cannot be combined"},
		"a descriptor that is invalid": {logFlags{LogFormat: "nginx", Descriptor: []string{"user=%?"}}, one, "", "%?"},
	} {
		_, err := test.flags.templates()
		domain := ""
		if err == nil {
			domain, err = test.flags.domain(test.domains)
		}
		if test.wrong == "" && (err != nil || domain != test.domain) || test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)) {
			t.Errorf("%s: got %q, %v; want %q, %q", name, domain, err, test.domain, test.wrong)
		}
	}
}

func TestARequestToExplain(t *testing.T) {
	q, err := requestToExplain{
		Request: "POST /a/%62?x=1&y", Header: []string{"x-user:  bob\t", "X-User: eve", "host: Shop.test:80"}, ClientIP: "::ffff:192.0.2.1",
	}.read()
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(q.Method, " ", q.Path, " ", q.Query, " ", q.Host, " ", q.Client, " ", q.Header)
	if want := "POST /a/b x=1&y shop.test 192.0.2.1 map[X-User:[bob eve]]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if q, err := (requestToExplain{Request: "GET /"}).read(); err != nil || q.Client.IsValid() {
		t.Errorf("got %+v, %v; want no address", q, err)
	}
	for _, wrong := range []requestToExplain{
		{Request: "GET"}, {Request: " /"}, {Request: "GET "}, {Request: "GET /", Header: []string{"x"}}, {Request: "GET /", Header: []string{":x"}}, {Request: "GET /", ClientIP: "x"},
	} {
		if q, err := wrong.read(); err == nil {
			t.Errorf("%+v: got %+v; want an error", wrong, q)
		}
	}
}

func TestExitCodesOfAnswersOfTheAdminListener(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		body   string
		code   int // 0 means an error without a code of its own
		text   string
	}{
		"wrong usage":   {400, `{"title":"Bad Request","detail":"why"}`, exitUsage, "why"},
		"no detail":     {400, `{"title":"Bad Request"}`, exitUsage, "Bad Request"},
		"a missing one": {404, `{"title":"Not Found","detail":"why"}`, exitNo, "why"},
		"a failure":     {503, `{"title":"Unavailable","detail":"why"}`, 0, "why"},
		"no token":      {401, `{"title":"Unauthorized"}`, 0, "the token is missing or wrong"},
		"another one":   {404, `not found`, 0, "is this rlsidecar's admin listener?"},
		"no title":      {404, `{"detail":"why"}`, 0, "is this rlsidecar's admin listener?"},
	} {
		err := (&adminFlags{AdminListen: "127.0.0.1:1"}).refused(&http.Response{StatusCode: test.status, Status: http.StatusText(test.status)}, []byte(test.body))
		exit, coded := errors.AsType[exitError](err)
		if !strings.Contains(err.Error(), test.text) || coded != (test.code != 0) || coded && exit.code != test.code {
			t.Errorf("%s: got %#v; want %q with the code %d", name, err, test.text, test.code)
		}
	}
}
