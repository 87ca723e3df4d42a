package simulate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

const estimated = `
domain: ai
limits:
  tokens: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 1000, settle: {estimate: 300, ttl: 1m}}
  jobs: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 100}
descriptors:
  - {key: user, limit: tokens}
`

// callOf returns the line of a call of bob. end contains the members that describe the end of the call.
func callOf(second int, end string) string { return callBy("bob", second, end) }

func callBy(user string, second int, end string) string {
	return fmt.Sprintf(`{"time_us":%d,"domain":"ai","descriptors":[{"entries":[["user","%s"]]}]%s}`, second*1_000_000, user, end)
}

// Each call reserves 300 of 1,000 units, unless a case states other numbers. The units left for the last call depend on
// the times at which the earlier calls end, and on their real costs.
func TestCallsAreSettledWhenTheyEnd(t *testing.T) {
	s := compiled(t, estimated)
	for _, test := range []struct {
		name  string
		lines []string
		want  []string // a part of the decision for the last line, and then texts in the report
	}{
		{"before their end", []string{callOf(0, `,"real":100,"settle_after_us":9000000`), callOf(8, "")}, []string{`"remaining":400`}},
		{"after it", []string{callOf(0, `,"real":100,"settle_after_us":9000000`), callOf(9, "")}, []string{
			`"remaining":600`, "1 calls reserved 300 units and cost 100; 0 were settled without a real cost, 0 after the ttl; 0 units were lost",
			"Real costs: p50 100, p90 100, p99 100, most 100. The reservation covered 100.00 % of the calls.",
			"Suggestion: settle: {estimate: 100, most: 100}",
		}},
		{"at once", []string{callOf(0, `,"real":100`), callOf(0, "")}, []string{`"remaining":600`}},
		{"in the order of their ends", []string{
			callOf(0, `,"real":350,"settle_after_us":5000000`), callOf(1, `,"real":250,"settle_after_us":2000000`), callOf(4, ""),
		}, []string{`"remaining":150`, "cost up to 50 units more than they had reserved"}},
		{"above the reservation, at the same time", []string{
			callOf(0, `,"real":700,"settle_after_us":5000000`), callOf(0, `,"real":800,"settle_after_us":5000000`), callOf(6, ""),
		}, []string{
			`"ok":false`, "2 calls reserved 600 units and cost 1500", "covered 0.00 % of the calls", "cost up to 900 units more than they had reserved",
		}},
		{"without a real cost", []string{callOf(0, `,"settle_after_us":1000000`), callOf(2, "")}, []string{`"remaining":400`, "1 were settled without a real cost"}},
		{"after the ttl", []string{callOf(0, `,"real":0,"settle_after_us":61000000`), callOf(62, "")}, []string{`"remaining":400`, "1 after the ttl"}},
		{"denied calls have nothing to settle", []string{
			callOf(0, ""), callOf(0, ""), callOf(0, ""), callOf(0, `,"real":5,"settle_after_us":1`), callOf(1, ""),
		}, []string{`"ok":false`}},
		{"declared hits", []string{strings.Replace(callOf(0, `,"real":650`), `]]`, `]],"hits":600`, 1), callOf(0, "")}, []string{`"remaining":50`, "reserved 600 units"}},
		{"reserved by name", []string{
			`{"time_us":0,"limits":[{"name":"jobs","key":"bob","count":60,"reserve":true}],"real":20,"settle_after_us":10}`,
			`{"time_us":10,"limits":[{"name":"jobs","key":"bob"}]}`,
		}, []string{`"remaining":79`, "1 calls reserved 60 units and cost 20"}},
		{"one after the other", []string{callOf(0, `,"real":400,"settle_after_us":1000000`), callOf(2, `,"real":350,"settle_after_us":1000000`), callOf(4, "")},
			[]string{`"ok":false`, "cost up to 100 units more", "2 calls reserved 600 units and cost 750"}},
		{"overlapping", []string{callOf(0, `,"real":350,"settle_after_us":2000000`), callOf(1, `,"real":370,"settle_after_us":9000000`), callOf(3, `,"real":400,"settle_after_us":9000000`)},
			[]string{`"ok":true`, "cost up to 170 units more", "3 calls reserved 900 units and cost 1120"}},
		{"with and without a real cost", []string{callOf(0, `,"real":300`), callOf(1, `,"settle_after_us":1`)},
			[]string{`"ok":true`, "2 calls reserved 600 units and cost 600; 1 were settled without a real cost", "covered 100.00 % of the calls"}},
		{"beyond max_debt", []string{callOf(0, `,"real":2500`), callOf(1, `,"real":5`)},
			[]string{`"ok":false`, "1 calls reserved 300 units and cost 2500; 0 were settled without a real cost, 0 after the ttl; 500 units were lost"}},
	} {
		got := run(t, s, strings.Join(test.lines, "\n")+"\n", 0)
		decisions := strings.Split(got, "\n")
		if last := decisions[len(test.lines)-1]; !strings.Contains(last, test.want[0]) {
			t.Errorf("%s: the last line got %s, want %s", test.name, last, test.want[0])
		}
		for _, want := range test.want[1:] {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in\n%s", test.name, want, got)
			}
		}
		if again := run(t, s, strings.Join(test.lines, "\n")+"\n", 0); again != got {
			t.Errorf("%s: the second run reports\n%s\nwant the report of the first run:\n%s", test.name, again, got)
		}
	}
}

// Each of ten calls, one after the other, reserves 300 units and costs 10.
func TestCallsSettleByBucketWhenTheyEnd(t *testing.T) {
	s := compiled(t, strings.Replace(estimated, "estimate: 300", "by: bucket, estimate: 300", 1))
	call := func(second int, end string) string {
		return strings.Replace(callOf(second, end), `]]`, `]],"hits":0`, 1)
	}
	for name, test := range map[string]struct {
		lines []string
		want  string
	}{
		"before their end": {[]string{call(0, `,"real":100,"settle_after_us":9000000`), call(8, "")}, `"remaining":400`},
		"after it":         {[]string{call(0, `,"real":100,"settle_after_us":9000000`), call(9, "")}, `"remaining":600`},
		"without a cost":   {[]string{call(0, `,"settle_after_us":1000000`), call(9, "")}, `"remaining":400`},
		"expired":          {[]string{call(0, `,"settle_after_us":1000000`), call(64, "")}, `"remaining":700`},
		"a refund":         {[]string{callOf(0, ""), strings.Replace(callOf(1, ""), `]]`, `]],"hits":-1`, 1)}, `"remaining":1000`},
	} {
		got := run(t, s, strings.Join(test.lines, "\n")+"\n", 0)
		if last := strings.Split(got, "\n")[len(test.lines)-1]; !strings.Contains(last, test.want) {
			t.Errorf("%s: the last line got %s, want %s", name, last, test.want)
		}
	}
}

// Each call costs 20 units. The first calls reserve 300 units each. After 20 calls of five users, the estimate is 20.
func TestEstimatesLearnInAReplay(t *testing.T) {
	var trace strings.Builder
	for i := range 21 {
		trace.WriteString(callBy(fmt.Sprint(i%5), 2*i, `,"real":20,"settle_after_us":1000000`) + "\n")
	}
	got := run(t, compiled(t, strings.Replace(estimated, "estimate: 300", "estimate: {learn: p90, first: 300, least: 10}", 1)), trace.String(), 0)
	if lines := strings.Split(got, "\n"); !strings.Contains(lines[19], `"remaining":640`) || !strings.Contains(lines[20], `"remaining":900`) {
		t.Errorf("got %s; want 640 remaining in line 20 and 900 in line 21", got)
	}
}

func TestMistakesInTheEndOfACall(t *testing.T) {
	s := compiled(t, estimated)
	for line, want := range map[string]string{
		callOf(0, `,"real":-1`):                                                       "real must not be negative, but is -1",
		callOf(0, `,"settle_after_us":-1`):                                            "settle_after_us must be between 0 and",
		callOf(0, `,"settle_after_us":9223372036854775807`):                           "settle_after_us must be between 0 and",
		callOf(0, `,"real":1,"real":2`):                                               "real occurs twice; write it once",
		`{"time_us":0,"limits":[{"name":"jobs"}],"real":1}`:                           "no limit of this line has \"reserve\": true",
		`{"time_us":0,"limits":[{"name":"jobs","reserve":true}],"settle_after_us":1}`: "settle_after_us without real",
	} {
		_, err := Run(t.Context(), Config{Snapshot: s, Name: "trace", Input: strings.NewReader(line), Format: JSONL})
		if _, ok := errors.AsType[*LineError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}

func TestCreditsPayInAReplay(t *testing.T) {
	s := compiled(t, `
domain: shop
hash_tag: entry:user
limits:
  plan: {algorithm: token_bucket, rate: 10, period: 1h, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 365d, capacity: 20}
descriptors:
  - {key: user, limit: plan}
`)
	line := `{"time_us":0,"domain":"shop","descriptors":[{"entries":[["user","bob"]],"hits":6}]}` + "\n"
	got := run(t, s, strings.Repeat(line, 5), 0)
	for _, want := range []string{
		`"limits":[{"name":"plan","key":"bob","ok":true,"remaining":4,`,
		`"limits":[{"name":"plan","payer":"credits","key":"bob","ok":true,"remaining":14,`,
		`{"ok":false,"retry_after_us":720000000,"limits":[{"name":"plan","key":"bob","ok":false,"remaining":4,`,
		"shop/plan     5         1       1        1 (100.00 %)\n",
		"shop/credits  3         0       1        0 (0.00 %)\n",
		"shop/credits paid for 3 requests that shop/plan did not allow\n",
		"most 30 by bob", // of the plan: all units that bob requested
		"most 18 by bob", // of the credits: the units that they paid for
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
