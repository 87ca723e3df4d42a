package simulate

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// logTest is a line with its templates, and the expected descriptors (as text, joined by "; ") and time.
type logTest struct {
	name, line, templates, want, at string
}

func (test logTest) run(t *testing.T, format Format) {
	t.Helper()
	templates, err := ParseTemplates(format, strings.Fields(test.templates))
	if err != nil {
		t.Fatal(err)
	}
	r := newAccessLog(format, templates, "edge", false)
	var c limiter.Call
	at, _, err := r.read(test.line, &c)
	if err != nil {
		if test.want != "error" {
			t.Errorf("%s: got %v; want %s", test.name, err, test.want)
		}
		return
	}
	var got []string
	for _, d := range c.Descriptors {
		var entries []string
		for _, e := range d.Entries {
			entries = append(entries, e.Key+"="+e.Value)
		}
		got = append(got, strings.Join(entries, ","))
	}
	if text := strings.Join(got, "; "); text != test.want {
		t.Errorf("%s: got %q, want %q", test.name, text, test.want)
	}
	if when := time.UnixMicro(int64(at)).UTC().Format(time.RFC3339Nano); test.at != "" && when != test.at {
		t.Errorf("%s: at %s, want %s", test.name, when, test.at)
	}
}

func TestNginxLog(t *testing.T) {
	line := func(request, agent string) string {
		return fmt.Sprintf(`192.0.2.7 - bob [10/Oct/2000:13:55:36 -0700] "%s" 200 2326 "http://example.com/" "%s"`, request, agent)
	}
	for _, test := range []logTest{
		{"combined", line("GET /a?b=c HTTP/1.1", "curl"), "a=%h,b=%m,c=%U,d=%q,e=%H,f=%s,g=%u,h=%{referer}i,i=%{User-Agent}i",
			"a=192.0.2.7,b=GET,c=/a,d=b=c,e=HTTP/1.1,f=200,g=bob,h=http://example.com/,i=curl", "2000-10-10T20:55:36Z"},
		{"common", `::1 - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.0" 404 -`, "a=%h,s=%>s a=%u a=%{Referer}i", "a=::1,s=404", "2000-10-10T13:55:36Z"},
		{"escapes", line(`GET /\xC3\xA9\x22 HTTP/1.1`, `a\\b\"c\x5C`), "a=%U,b=%{User-Agent}i", "a=/é\",b=a\\b\"c\\", ""},
		{"raw bytes", line(`GET /\xff HTTP/1.1`, "-"), "a=%U", "a=/\xff", ""},
		{"the one form of a path", line(`GET /a/%2e%2e//b/./%6cogin/?x HTTP/1.1`, "-"), "a=%U", "a=/b/login/", ""},
		{"absent parts drop a descriptor", line("GET / HTTP/1.1", "-"), "a=%{User-Agent}i b=%q c=%m", "c=GET", ""},
		{"text around", line("GET / HTTP/1.1", "-"), "a=x-%m-%%-y generic_key=api", "a=x-GET-%-y; generic_key=api", ""},
		{"no request", line("-", "-"), "a=%U a=%h", "a=192.0.2.7", ""},
		{"TLS on a plain port", line(`\x16\x03\x01\x00 x`, "-"), "a=%m a=%h", "a=192.0.2.7", ""},
		{"a space in a path", line("GET /a b HTTP/1.1", "-"), "a=%U", "a=/a b", ""},
		{"a space in a name", `1.2.3.4 - bob smith [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.1" 200 1 "-" "-"`, "a=%u", "a=bob smith", ""},
		{"no log", "hello", "a=%h", "error", ""},
		{"no time", `1.2.3.4 - - [never] "GET / HTTP/1.1" 200 1 "-" "-"`, "a=%h", "error", ""},
		{"before 1970", `1.2.3.4 - - [10/Oct/1960:13:55:36 +0000] "GET / HTTP/1.1" 200 1`, "a=%h", "error", ""},
		{"cut off", `1.2.3.4 - - [10/Oct/2000:13:55:36 +0000] "GET /`, "a=%h", "error", ""},
	} {
		test.run(t, Nginx)
	}
}

func TestEnvoyLog(t *testing.T) {
	const text = `[2016-04-15T20:17:00.310Z] "POST /api/v1/locations?x=1 HTTP/2" 204 - 154 0 226 100 "10.0.35.28, 192.0.2.7" "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"`
	for _, test := range []logTest{
		{"text", text, "a=%h,b=%m,c=%U,d=%q,e=%H,f=%s,g=%{Host}i,h=%{user-agent}i,i=%{X-Request-Id}i",
			"a=192.0.2.7,b=POST,c=/api/v1/locations,d=x=1,e=HTTP/2,f=204,g=locations,h=nsq2http,i=cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2", "2016-04-15T20:17:00.31Z"},
		{"text, nothing known", `[2016-04-15T20:17:00.310Z] "- - -" 400 DPE 0 11 0 - "-" "-" "-" "-" "-"`, "a=%h b=%m c=%U d=%H s=%s", "s=400", ""},
		{"quotes are not escaped", `[2016-04-15T20:17:00.310Z] "GET / HTTP/1.1" 200 - 0 0 0 - "192.0.2.7" "a"b" "-" "h" "-"`, `a=%{User-Agent}i,b=%{Host}i`, `a=a"b,b=h`, ""},
		{"a path is as it came", `[2016-04-15T20:17:00.310Z] "GET //%41 HTTP/1.1" 200 - 0 0 0 - "-" "-" "-" "-" "-"`, "a=%U", "a=//%41", ""},
		{"JSON", `{"start_time":"2016-04-15T20:17:00.310Z","method":"GET","path":"/a?b","protocol":"HTTP/1.1","response_code":200,"authority":"h","downstream_remote_address":"192.0.2.7:4711","x_forwarded_for":"1.1.1.1","user_agent":null,"x_user":"bob","more":{"a":[1]}}`,
			"a=%h,b=%m,c=%U,s=%s,h=%{host}i,u=%{X-User}i d=%{user-agent}i", "a=192.0.2.7,b=GET,c=/a,s=200,h=h,u=bob", "2016-04-15T20:17:00.31Z"},
		{"JSON, address from the header", `{"x_forwarded_for":"1.1.1.1, 192.0.2.7","start_time":"2016-04-15T20:17:00Z"}`, "a=%h", "a=192.0.2.7", ""},
		{"JSON of IPv6", `{"downstream_remote_address":"[::1]:1","start_time":"2016-04-15T20:17:00Z"}`, "a=%h", "a=::1", ""},
		{"JSON without a time", `{"method":"GET"}`, "a=%m", "error", ""},
		{"JSON cut off", `{"start_time":"2016-04-15T20:17:00Z","meth`, "a=%m", "error", ""},
		{"no log", "hello", "a=%h", "error", ""},
		{"nginx", `1.2.3.4 - - [10/Oct/2000:13:55:36 +0000] "GET / HTTP/1.1" 200 1`, "a=%h", "error", ""},
	} {
		test.run(t, Envoy)
	}
}

func TestTemplatesRefuse(t *testing.T) {
	for text, want := range map[string]string{
		"a":                  "has no value",
		"a=%z":               `"%z" is not known`,
		"a=%":                `"%" is not known`,
		"a=%>":               `"%>" is not known`,
		"a=%{X-User}i":       "not in the combined format",
		"a=%{X-User}o":       "is not known",
		"a=%{}i":             "is not known",
		"a=":                 "an entry has no value",
		"a=%h,b=%U%{Nope}i ": "not in the combined format",
	} {
		if _, err := ParseTemplates(Nginx, []string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

func FuzzLogs(f *testing.F) {
	f.Add(`1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] "GET /%2e%2E/\x41 HTTP/1.1" 200 1 "-" "-"`)
	f.Add(`1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 1 "-" "-" 0.25 971211336.5`)
	f.Add(`[2016-04-15T20:17:00.310Z] "GET / HTTP/1.1" 200 - 0 0 0 - "-" "-" "-" "-" "-"`)
	f.Add(`{"start_time":"2016-04-15T20:17:00Z","a":{}}`)
	texts := []string{"a=%h,b=%m,c=%U", "a=%q,b=%H,c=%s", "a=%{user-agent}i"}
	ofNginx, err := ParseTemplates(Nginx, texts)
	if err != nil {
		f.Fatal(err)
	}
	ofEnvoy, err := ParseTemplates(Envoy, texts)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, line string) {
		for _, r := range []reader{newAccessLog(Nginx, ofNginx, "", true), newAccessLog(Envoy, ofEnvoy, "edge", false)} {
			var c limiter.Call
			if at, _, err := r.read(line, &c); err == nil && checkTime(at) != nil {
				t.Errorf("%q: accepted the time %d, which is out of range", line, at)
			}
		}
	})
}

// nginxLine returns a line of a log. rest is its end, after the size of the response.
func nginxLine(second int, request, rest string) string {
	return fmt.Sprintf(`192.0.2.1 - - [10/Oct/2000:13:55:%02d +0000] "%s" 200 5%s`+"\n", second, request, rest)
}

func TestALineKeepsNothingOfTheLineBefore(t *testing.T) {
	templates, err := ParseTemplates(Nginx, []string{"user=%{User-Agent}i"})
	if err != nil {
		t.Fatal(err)
	}
	_, decisions := reportOn(t, Config{Snapshot: compiled(t, small), Format: Nginx, Templates: templates, Domain: "edge"},
		nginxLine(1, "GET / HTTP/1.1", ` "-" "curl"`)+nginxLine(2, "GET / HTTP/1.1", ``)+nginxLine(3, "GET / HTTP/1.1", ` "-" "a\x0ab\""`))
	lines := strings.Split(strings.TrimSpace(decisions), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], `"key":"curl"`) || !strings.HasSuffix(lines[1], `"limits":[]}`) {
		t.Fatalf("got\n%s\nwant a decision about curl, one without a limit, and a third", decisions)
	}
	var third struct{ Limits []struct{ Key string } }
	if err := json.Unmarshal([]byte(lines[2]), &third); err != nil || third.Limits[0].Key != "a\nb\"" {
		t.Errorf("got %s, %v; want the key %q", lines[2], err, "a\nb\"")
	}
}

func TestBrokenLinesOfALogAreCounted(t *testing.T) {
	templates, err := ParseTemplates(Nginx, []string{"user=%h"})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Snapshot: compiled(t, small), Format: Nginx, Templates: templates, Domain: "edge"}
	broken := []string{
		"192.0.2.1", "192.0.2.1 - -", `192.0.2.1 - - [10/Oct/2000:13:55:01 +0000]`, `192.0.2.1 - - [10/Oct/2000:13:55:01 +0000] "GET / HTTP/1.1`,
		` - - [10/Oct/2000:13:55:01 +0000] "GET / HTTP/1.1" 200 5`, `192.0.2.1 - - [yesterday] "GET / HTTP/1.1" 200 5`,
	}
	text, decisions := reportOn(t, c, nginxLine(1, "GET / HTTP/1.1", "")+strings.Join(broken, "\n")+"\n")
	if want := fmt.Sprintf("not read  %d of the lines, first at line 2", len(broken)); !strings.Contains(text, want) || strings.Count(decisions, `"limits":[]`) != len(broken) {
		t.Errorf("no %q in\n%s\nwith the decisions\n%s", want, text, decisions)
	}
	if text, _ := reportOn(t, c, ""); !strings.Contains(text, "requests  0") {
		t.Errorf("an empty log: got\n%s\nwant no requests", text)
	}
	if _, err := Run(t.Context(), Config{Snapshot: c.Snapshot, Format: JSONL, Input: iotest.ErrReader(io.ErrUnexpectedEOF)}); err == nil {
		t.Error("an input that cannot be read gave a report; want an error")
	}
}
