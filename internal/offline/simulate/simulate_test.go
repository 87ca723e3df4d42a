package simulate

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
)

var compiled = configtest.Compile

const small = `
domain: edge
limits:
  send: {algorithm: token_bucket, rate: 10, period: 1m, capacity: 20, max_reserved: 10}
  pace: {algorithm: leaky_bucket, rate: 1, period: 1s, capacity: 2, max_delay: 1s}
  log: {algorithm: sliding_log, rate: 2, period: 1s}
  day: {algorithm: fixed_window, rate: 5, period: 1d}
  login: {algorithm: token_bucket, rate: 1, period: 1s, penalty: {after: 1, for: 1m, max: 1h}}
descriptors:
  - {key: user, limit: send}
  - {key: pace, limit: pace}
  - {key: free, rate_limit: {unlimited: true}}
  - key: two
    descriptors: [{key: three, limit: log}]
  - {key: "any*", rate_limit: {algorithm: sliding_log, rate: 2, period: 1s}}
`

func TestDecisions(t *testing.T) {
	s := compiled(t, small)
	descriptor := func(key, value string) string {
		return fmt.Sprintf(`{"time_us":0,"domain":"edge","descriptors":[{"entries":[[%q,%q]]}]}`, key, value)
	}
	limit := func(members string) string { return `{"time_us":0,"limits":[{` + members + `}]}` }
	for _, test := range []struct{ name, input, want string }{
		{"allowed", descriptor("user", "bob"), `{"ok":true,"retry_after_us":0,"limits":[{"name":"send","key":"bob","ok":true,"remaining":19,"retry_after_us":0}]}`},
		{"denied", limit(`"name":"send","key":"bob","count":20`) + "\n" + limit(`"name":"send","key":"bob"`),
			`{"ok":false,"retry_after_us":6000000,"limits":[{"name":"send","key":"bob","ok":false,"remaining":0,"retry_after_us":6000000}]}`},
		{"blocked", limit(`"name":"login"`) + "\n" + limit(`"name":"login"`),
			`{"ok":false,"retry_after_us":60000000,"limits":[{"name":"login","ok":false,"remaining":0,"retry_after_us":60000000,"blocked_us":60000000}]}`},
		{"a window by name", limit(`"name":"day","key":"bob"`), `{"ok":true,"retry_after_us":0,"limits":[{"name":"day","key":"bob","ok":true,"remaining":4,"retry_after_us":0}]}`},
		{"one of two denies", strings.Repeat(limit(`"name":"pace","key":"x"},{"name":"send","key":"bob","count":20`)+"\n", 2),
			`{"ok":false,"retry_after_us":120000000,"limits":[{"name":"pace","key":"x","ok":true,"remaining":2,"retry_after_us":0,"wait_us":0},{"name":"send","key":"bob","ok":false,"remaining":0,"retry_after_us":120000000}]}`},
		{"never", limit(`"name":"send","key":"bob","count":21`),
			`{"ok":false,"retry_after_us":-1,"error":"never","limits":[{"name":"send","key":"bob","ok":false,"remaining":20,"retry_after_us":-1,"error":"never"}]}`},
		{"reserved", limit(`"name":"send","key":"bob","count":21,"reserve":true`),
			`{"ok":true,"retry_after_us":0,"wait_us":6000000,"limits":[{"name":"send","key":"bob","ok":true,"remaining":0,"retry_after_us":0,"wait_us":6000000}]}`},
		{"reserved, at once", limit(`"name":"send","reserve":true`),
			`{"ok":true,"retry_after_us":0,"wait_us":0,"limits":[{"name":"send","ok":true,"remaining":19,"retry_after_us":0,"wait_us":0}]}`},
		{"a turn", limit(`"name":"pace"`) + "\n" + limit(`"name":"pace"`),
			`{"ok":true,"retry_after_us":0,"wait_us":1000000,"limits":[{"name":"pace","ok":true,"remaining":1,"retry_after_us":0,"wait_us":1000000}]}`},
		{"a delay longer than max_delay, for a proxy",
			strings.Repeat(descriptor("pace", "x")+"\n", 3),
			`{"ok":false,"retry_after_us":1000000,"limits":[{"name":"pace","key":"x","ok":false,"remaining":1,"retry_after_us":1000000}]}`},
		{"unlimited", descriptor("free", "x"), `{"ok":true,"retry_after_us":0,"limits":[{"name":"free","ok":true,"remaining":4294967295,"retry_after_us":0}]}`},
		{"no limit", descriptor("other", "x"), `{"ok":true,"retry_after_us":0,"limits":[]}`},
		{"no domain", strings.Replace(descriptor("user", "x"), "edge", "nowhere", 1), `{"ok":true,"retry_after_us":0,"limits":[]}`},
		{"several values", `{"time_us":0,"domain":"edge","descriptors":[{"entries":[["two","é\""],["three","<"]]}]}`,
			`{"ok":true,"retry_after_us":0,"limits":[{"name":"log","key":["é\"","<"],"ok":true,"remaining":1,"retry_after_us":0}]}`},
		{"the whole descriptor", descriptor("anyone", "x"), `{"ok":true,"retry_after_us":0,"limits":[{"name":"any*","key":["anyone","x"],"ok":true,"remaining":1,"retry_after_us":0}]}`},
		{"a list of one", limit(`"name":"send","key":["bob"]`), `{"ok":true,"retry_after_us":0,"limits":[{"name":"send","key":"bob","ok":true,"remaining":19,"retry_after_us":0}]}`},
		{"a dry run", limit(`"name":"send","count":0`), `{"ok":true,"retry_after_us":0,"limits":[{"name":"send","ok":true,"remaining":20,"retry_after_us":0}]}`},
		{"a refund", limit(`"name":"send","count":5`) + "\n" + limit(`"name":"send","count":-9223372036854775809`),
			`{"ok":true,"retry_after_us":0,"limits":[{"name":"send","ok":true,"remaining":20,"retry_after_us":0}]}`},
	} {
		lines := strings.Split(strings.TrimSpace(decisionsOn(t, s, test.input)), "\n")
		if got := lines[len(lines)-1]; got != test.want {
			t.Errorf("%s:\ngot  %s\nwant %s", test.name, got, test.want)
		}
	}
}

func TestAFullStoreIsReported(t *testing.T) {
	_, got := reportOn(t, Config{Snapshot: compiled(t, small), Format: JSONL, MaxKeys: 2}, `{"time_us":0,"limits":[{"name":"send","key":"a"}]}
{"time_us":0,"limits":[{"name":"send","key":"b"}]}
{"time_us":0,"limits":[{"name":"send","key":"c"}]}
`)
	const want = `{"ok":false,"retry_after_us":0,"error":"full","limits":[{"name":"send","key":"c","ok":false,"remaining":0,"retry_after_us":0,"error":"full"}]}`
	if lines := strings.Split(strings.TrimSpace(got), "\n"); lines[len(lines)-1] != want {
		t.Errorf("got %s; want the last line to be %s", got, want)
	}
}

func TestMistakesEndTheRun(t *testing.T) {
	s := compiled(t, small)
	good := `{"time_us":5,"limits":[{"name":"send"}]}` + "\n"
	for _, test := range []struct{ name, bad, want string }{
		{"not JSON", "x", "trace:3: column 1: invalid character 'x'"},
		{"time going back", `{"time_us":4,"limits":[{"name":"send"}]}`, "trace:3: time goes back: time_us is 4, and was 5 before"},
		{"unknown limit", `{"time_us":5,"limits":[{"name":"nope"}]}`, `trace:3: no limit is named "nope"`},
		{"unknown domain of a limit", `{"time_us":5,"domain":"x","limits":[{"name":"send"}]}`, `trace:3: domain "x" is not configured`},
		{"a limit without reservations", `{"time_us":5,"limits":[{"name":"log","reserve":true}]}`, `trace:3: limit "log" is a sliding_log, which cannot be reserved`},
		{"a long line", `"` + strings.Repeat("x", maxLine), "trace:3: line is longer than 1 MiB"},
	} {
		var decisions strings.Builder
		_, err := Run(t.Context(), Config{
			Snapshot: s, Name: "trace", Input: strings.NewReader(good + "\n" + test.bad + "\n" + good), Format: JSONL, Decisions: &decisions,
		})
		if _, ok := errors.AsType[*LineError](err); !ok || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %s", test.name, err, test.want)
		}
		if n := strings.Count(decisions.String(), "\n"); n != 1 {
			t.Errorf("%s: %d decisions written before the mistake, want 1", test.name, n)
		}
	}
}

func TestLogIsReadLeniently(t *testing.T) {
	line := func(host string, second int, rest string) string {
		return fmt.Sprintf(`%s - - [10/Oct/2000:13:55:%02d +0000] "GET / HTTP/1.1"%s`+"\n", host, second, rest)
	}
	templates, err := ParseTemplates(Nginx, []string{"user=%h"})
	if err != nil {
		t.Fatal(err)
	}
	text, decisions := reportOn(t, Config{Snapshot: compiled(t, small), Format: Nginx, Templates: templates, Domain: "edge"},
		line("1.1.1.1", 9, " 200 1")+"what?\n"+line("1.1.1.1", 3, " 200 1")+"\n")
	const want = `{"ok":true,"retry_after_us":0,"limits":[{"name":"send","key":"1.1.1.1","ok":true,"remaining":19,"retry_after_us":0}]}
{"ok":true,"retry_after_us":0,"limits":[]}
{"ok":true,"retry_after_us":0,"limits":[{"name":"send","key":"1.1.1.1","ok":true,"remaining":18,"retry_after_us":0}]}
`
	if decisions != want {
		t.Errorf("decisions:\n%s\nwant\n%s", decisions, want)
	}
	for _, part := range []string{"requests  2,", "not read  1 of the lines, first at line 2: not in the combined format", "order     1 earlier than a line before"} {
		if !strings.Contains(text, part) {
			t.Errorf("the report lacks %q:\n%s", part, text)
		}
	}
}

func TestCompressedInput(t *testing.T) {
	s := compiled(t, small)
	const input = `{"time_us":5,"limits":[{"name":"send"}]}` + "\r\n" + `{"time_us":5,"limits":[{"name":"send"}]}`
	var packed bytes.Buffer
	for _, part := range []string{input[:20], input[20:]} { // two gzip members, as in log files that were concatenated
		w := gzip.NewWriter(&packed)
		if _, err := io.WriteString(w, part); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := decisionsOn(t, s, packed.String()), decisionsOn(t, s, input); got != want || want == "" {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSameInputSameOutput(t *testing.T) {
	s := compiled(t, small)
	random := rand.New(rand.NewPCG(1, 2))
	var input strings.Builder
	at := 0
	for range 20_000 {
		at += random.IntN(100_000)
		fmt.Fprintf(&input, `{"time_us":%d,"domain":"edge","descriptors":[{"entries":[["user","%d"]],"hits":%d}]}`+"\n", at, random.IntN(500), random.IntN(5))
	}
	full := compiled(t, `{domain: edge, limits: {day: {algorithm: token_bucket, rate: 10, period: 30d}}, descriptors: [{key: user, limit: day}]}`)
	tight := compiled(t, `{domain: edge, limits: {short: {algorithm: token_bucket, rate: 5, period: 10s}}, descriptors: [{key: user, limit: short}]}`)
	for name, test := range map[string]struct {
		s       *limiter.Snapshot
		maxKeys int
	}{"room for all": {s, 0}, "full": {full, 300}, "room after old buckets are deleted": {tight, 100}} {
		first := run(t, test.s, input.String(), test.maxKeys)
		for range 3 {
			if run(t, test.s, input.String(), test.maxKeys) != first {
				t.Fatalf("%s: the same input gave a different output", name)
			}
		}
	}
}

func TestRunStopsWhenItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	input := strings.Repeat(`{"time_us":5,"limits":[{"name":"send"}]}`+"\n", sweepEvery+1)
	_, err := Run(ctx, Config{Snapshot: compiled(t, small), Name: "trace", Input: strings.NewReader(input), Format: JSONL})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v; want context.Canceled", err)
	}
}

// run replays a trace, and returns the decisions and the report.
func run(t *testing.T, s *limiter.Snapshot, input string, maxKeys int) string {
	t.Helper()
	text, decisions := reportOn(t, Config{Snapshot: s, Format: JSONL, MaxKeys: maxKeys}, input)
	return decisions + text
}

func decisionsOn(t *testing.T, s *limiter.Snapshot, trace string) string {
	t.Helper()
	_, decisions := reportOn(t, Config{Snapshot: s, Format: JSONL}, trace)
	return decisions
}

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
