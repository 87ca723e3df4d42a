package simulate

import (
	"container/heap"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func reportOn(t *testing.T, c Config, input string) (text, decisions string) {
	t.Helper()
	var report, out strings.Builder
	c.Name, c.Input, c.Decisions = "log", strings.NewReader(input), &out
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteText(&report); err != nil {
		t.Fatal(err)
	}
	return report.String(), out.String()
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
	if want := fmt.Sprintf("not read  %d, first at line 2", len(broken)); !strings.Contains(text, want) || strings.Count(decisions, `"limits":[]`) != len(broken) {
		t.Errorf("no %q in\n%s\nwith the decisions\n%s", want, text, decisions)
	}
	if text, _ := reportOn(t, c, ""); !strings.Contains(text, "requests  0") {
		t.Errorf("an empty log: got\n%s\nwant no requests", text)
	}
	if _, err := Run(t.Context(), Config{Snapshot: c.Snapshot, Format: JSONL, Input: brokenReader{}}); err == nil {
		t.Error("an input that cannot be read gave a report; want an error")
	}
}

func TestEscapesInALog(t *testing.T) {
	for text, want := range map[string]string{
		`plain`: "plain", `\x41`: "A", `a\"b`: `a"b`, `a\\x41`: `a\x41`, `\x4`: "x4", `\x`: "x", `\`: `\`, `\xZ1`: "xZ1", `\x1Z`: "x1Z", `\xfF!`: "\xff!",
	} {
		if got := unescape(text); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// With routes, the lines are decided as /v1/auth decides the requests. The default of auth decides about a request that
// no route matches, unless its domain requires an entry.
func TestRoutesDecideAboutALog(t *testing.T) {
	const config = `
domain: edge
%s
descriptors:
  - {key: client, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: agent, rate_limit: {unit: day, requests_per_unit: 1}}
auth:
  default: %s
  routes:
    - {match: {path: /page}, descriptors: [[{key: client, from: client_ip}]]}
    - {match: {path: /agent}, descriptors: [[{key: agent, from: "header:User-Agent"}], [{key: client, from: "header:X-User"}]]}
    - {match: {path: /user}, descriptors: [[{key: agent, from: "header:X-User"}]]}
`
	mapped := strings.Replace(nginxLine(3, "GET /page HTTP/1.1", ""), "192.0.2.1", "::ffff:192.0.2.1", 1) // the same client
	log := nginxLine(1, "GET /page HTTP/1.1", "") + nginxLine(2, "GET /page?x=1 HTTP/1.1", "") + mapped +
		nginxLine(4, "GET /other HTTP/1.1", "") + nginxLine(5, "GET /user HTTP/1.1", "") + nginxLine(6, "GET /agent HTTP/1.1", ` "-" "curl"`) +
		nginxLine(7, "GET /agent HTTP/1.1", ` "-" "curl"`) + nginxLine(8, "GET /agent HTTP/1.1", "")
	for _, test := range []struct{ require, standard, want string }{
		{"", "deny", "ok ok denied denied denied ok denied denied"},
		{"", "allow", "ok ok denied ok ok ok denied ok"},
		{"require: [client]", "allow", "ok ok denied denied denied denied denied denied"},
	} {
		s := compiled(t, fmt.Sprintf(config, test.require, test.standard))
		text, decisions := reportOn(t, Config{Snapshot: s, Format: Nginx, Templates: RouteTemplates(Nginx, s.Auth), Domain: "edge"}, log)
		var got []string
		for line := range strings.Lines(decisions) {
			got = append(got, map[bool]string{true: "ok", false: "denied"}[strings.HasPrefix(line, `{"ok":true`)])
		}
		if strings.Join(got, " ") != test.want || !strings.Contains(text, "left out  5 descriptors") {
			t.Errorf("%s, default %s: got %s, want %s\n%s", test.require, test.standard, got, test.want, text)
		}
	}
}

func TestProgressOfALongInput(t *testing.T) {
	var at []int64
	const lines = 2*progressEvery + 10
	r, err := Run(t.Context(), Config{
		Snapshot: compiled(t, small), Name: "trace", Format: JSONL, Progress: func(line int64) { at = append(at, line) },
		Input: strings.NewReader(strings.Repeat(`{"time_us":5,"limits":[{"name":"send"}]}`+"\n", lines)),
	})
	if err != nil || !slices.Equal(at, []int64{progressEvery, 2 * progressEvery}) {
		t.Fatalf("got the lines %v, %v; want %d and %d", at, err, progressEvery, 2*progressEvery)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), fmt.Sprint(lines-20)) {
		t.Errorf("got\n%s\n%v; want %d denied requests", text.String(), err, lines-20)
	}
}

func TestMistakesInALineOfATrace(t *testing.T) {
	for line, want := range map[string]string{
		`{"time_us":12`:         "column 14: expected",
		`{"time_us":`:           "expected a whole number",
		`{"time_us":-`:          "expected a whole number",
		`{"time_us" 12}`:        "expected :",
		`{"time_us":01}`:        "expected a whole number",
		`{"time_us":1.5}`:       "expected a whole number",
		`{"time_us":0,"limits"`: "expected :",
		`{"time_us":0,"limits":[{"name":"send","other":1}]}`:                     "other",
		`{"time_us":0,"limits":[{"name":"jobs","reserve":true,"reserve":true}]}`: "reserve occurs twice",
		`{"time_us":0,"limits":[{"name":"send"} {"name":"send"}]}`:               "expected ,",
		`{"time_us":0,"limits":[{"name":"send","key":["a"`:                       "expected ,",
		`{"time_us":0,"limits":[{"name":"send"}]} x`:                             "expected the end of the line",
	} {
		_, err := Run(t.Context(), Config{Snapshot: compiled(t, small), Name: "trace", Input: strings.NewReader(line), Format: JSONL})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "trace:1: ") || !strings.Contains(err.Error(), "column ") {
			t.Errorf("%s: got %v; want %q in line 1, with a column", line, err, want)
		}
	}
	for digits, want := range map[string]bool{
		"0": true, "9223372036854775806": true, "9223372036854775807": true, "9223372036854775808": false, "10000000000000000000": false, "999999999999999999": true,
	} {
		if got := fits(digits); got != want {
			t.Errorf("%s fits: %t, want %t", digits, got, want)
		}
	}
}

func TestUnusedValuesMustBeJSON(t *testing.T) {
	for text, want := range map[string]bool{
		`1`: true, `-1.5e3`: true, `null`: true, `true`: true, `"a]"`: true, `{"a":["}",{"b":"\""}]}`: true, `[]`: true,
		`nul`: false, `01`: false, ``: false, `{"a"}`: false, `[1,]`: false, `["a`: false, `{"a":[}`: false, "[\"\x01\"]": false,
	} {
		s := scanner{text: text + ",next"}
		got := s.skip()
		if (s.err == nil) != want || want && (got != text || s.text[s.pos] != ',') {
			t.Errorf("%s: got %q, %v; want it skipped: %t", text, got, s.err, want)
		}
	}
}

func TestOpenCallsAreOrdered(t *testing.T) {
	var open openCalls
	for _, c := range []openCall{{at: 2, number: 3}, {at: 1, number: 5}, {at: 2, number: 1}, {at: 2, number: 2}, {at: 1, number: 4}, {at: 3, number: 0}} {
		heap.Push(&open, &c)
	}
	var got []int64
	for len(open) > 0 {
		got = append(got, heap.Pop(&open).(*openCall).number)
	}
	if want := []int64{4, 5, 1, 2, 3, 0}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSumsOfSettledCalls(t *testing.T) {
	named := func(second, count int, end string) string {
		return fmt.Sprintf(`{"time_us":%d,"limits":[{"name":"jobs","key":"bob","count":%d,"reserve":true}]%s}`, second*1_000_000, count, end)
	}
	for _, test := range []struct {
		name  string
		lines []string
		want  []string
	}{
		{"one after the other", []string{callOf(0, `,"real":350,"settle_after_us":1000000`), callOf(2, `,"real":400,"settle_after_us":1000000`), callOf(4, "")},
			[]string{"cost up to 100 units more", "2 calls reserved 600 units and cost 750"}},
		{"overlapping", []string{callOf(0, `,"real":350,"settle_after_us":2000000`), callOf(1, `,"real":370,"settle_after_us":9000000`), callOf(3, `,"real":400,"settle_after_us":9000000`)},
			[]string{"cost up to 170 units more", "3 calls reserved 900 units and cost 1120"}},
		{"with and without a real cost", []string{callOf(0, `,"real":300`), callOf(1, `,"settle_after_us":1`)},
			[]string{"2 calls reserved 600 units and cost 600; 1 were settled without a real cost", "covered 100.00 % of the calls"}},
		{"without any real cost", []string{callOf(0, `,"settle_after_us":1`)}, []string{"1 calls reserved 300 units and cost 300; 1 were settled without a real cost"}},
		{"by name, the second denied", []string{named(0, 60, `,"real":20,"settle_after_us":5000000`), named(1, 5000, `,"real":20,"settle_after_us":5000000`)},
			[]string{"1 calls reserved 60 units and cost 20"}},
		{"beyond max_debt", []string{callOf(0, `,"real":2000`), callOf(1, `,"real":5`)}, []string{"1 calls reserved 300 units and cost 2000; 0 were settled without a real cost, 0 after the ttl; 900 units were lost"}},
	} {
		s := compiled(t, strings.NewReplacer("ttl: 1m", "ttl: 1m, max_debt: 100", "capacity: 100}", "capacity: 100, max_reserved: 10}").Replace(estimated))
		got := run(t, s, strings.Join(test.lines, "\n")+"\n", 0)
		for _, want := range test.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in\n%s", test.name, want, got)
			}
		}
	}
}

// Otherwise one client could move the estimate of all.
func TestAKeyCountsOnceASecondForAnEstimate(t *testing.T) {
	var trace strings.Builder
	for range 40 {
		trace.WriteString(callOf(0, `,"real":0`) + "\n")
	}
	trace.WriteString(callOf(1, "") + "\n")
	got := run(t, compiled(t, strings.Replace(estimated, "estimate: 300", "estimate: {learn: p90, first: 300}", 1)), trace.String(), 0)
	if lines := strings.Split(got, "\n"); !strings.Contains(lines[40], `"remaining":700`) {
		t.Errorf("got %s; want the first estimate, which leaves 700 units", lines[40])
	}
}

func TestTheReportCountsEachKindOfRequest(t *testing.T) {
	s := compiled(t, `
domain: edge
require: [user]
descriptors:
  - {key: user, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
`)
	line := func(key string) string {
		return fmt.Sprintf(`{"time_us":0,"domain":"edge","descriptors":[{"entries":[["%s","x"]]}]}`, key) + "\n"
	}
	text, _ := reportOn(t, Config{Snapshot: s, Format: JSONL}, line("user")+line("user")+line("other")+strings.Replace(line("x"), "edge", "nowhere", 1))
	for _, want := range []string{"requests  4, from", "denied    1 (25.00 %)", "no limit  1 matched none", "missing   1 had no entry", "edge/user (shadow)"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
