package adjust

import (
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestAdjustmentsAreReadAsTheyWereWritten(t *testing.T) {
	kinds := algorithms.Kinds()
	rapid.Check(t, func(t *rapid.T) {
		a := &Adjustment{
			Target:    Target{Domain: "edge", Limit: "l", Key: rapid.SliceOfN(rapid.String(), 0, 3).Draw(t, "key")},
			Algorithm: rapid.SampledFrom(kinds[:]).Draw(t, "algorithm"), Author: "a", Reason: "r",
			Created: 1, Expires: algorithms.Micros(rapid.Int64Range(2, int64(MaxFor)).Draw(t, "expires")),
		}
		if a.Target.AllKeys = len(a.Target.Key) == 0; a.Target.AllKeys {
			a.Target.Key = nil
			if rapid.Bool().Draw(t, "match") {
				a.Target.AllKeys, a.Target.Entry, a.Target.Value = false, "tenant", string(rapid.SliceOf(rapid.Byte()).Draw(t, "value"))
			}
		} else {
			a.Target.Key[0] += string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		}
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 0:
			a.Change.Rate, a.Change.Period = number(rapid.Int64Range(1, 1<<53).Draw(t, "rate")), Span(rapid.Int64Range(1, 1<<50).Draw(t, "period"))
		case 1:
			a.Change.Factor = Factor(rapid.Int64Range(1, int64(maxFactor)).Draw(t, "factor"))
		case 2:
			a.Change.Block = true
		case 3:
			a.Change.Unlimited = true
		}
		a.ID = a.Target.ID()
		text, err := a.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var b Adjustment
		if err := b.UnmarshalJSON(text); err != nil || !reflect.DeepEqual(a, &b) {
			t.Fatalf("%s: got %+v, %v; want an equal change", text, b, err)
		}
	})
}

func TestAKeyThatIsNotTextIsNotShownAsText(t *testing.T) {
	for want, key := range map[bool][]string{true: {"a", "b"}, false: {"\xff", "b"}} {
		a := Adjustment{Target: Target{Key: key}}
		if f := a.Target.form(); (f.Key != nil) != want || len(f.KeyB64) != 2 {
			t.Errorf("%q is shown as %q; want it shown: %v", key, f.Key, want)
		}
	}
}

// FuzzProposal shows that an accepted proposal is written as it was read.
func TestTheBodyOfAProposalIsReadStrictly(t *testing.T) {
	p, err := ParseProposal([]byte(`{"limit":"send_message","key_b64":["/wA="],"rate":100,"period":"1m30s","for":"2h","author":"ann","reason":"launch","version":7}`))
	if err != nil || p.Target.Key[0] != "\xff\x00" || *p.Change.Rate != 100 || p.Change.Period != Span(90*algorithms.Second) || p.For != Span(120*minute) || *p.Expect != 7 {
		t.Errorf("got %+v, %v; want the values of the text", p, err)
	}
	p, err = ParseProposal([]byte(`{"limit":"l","all_keys":true,"entry":"e","value_b64":"/w==","factor":1.5,"until":"2026-03-01T16:00:00Z"}`))
	if err != nil || !p.Target.AllKeys || p.Target.Entry != "e" || p.Target.Value != "\xff" || p.Change.Factor != 1500 || !p.Until.Equal(newClock().now) {
		t.Errorf("got %+v, %v; want the values of the text", p, err)
	}
	for text, want := range map[string]string{
		`{"rate":5}`:                        "",
		`{} {}`:                             "text after the JSON object",
		`[]`:                                "cannot unmarshal array",
		`{"size":1}`:                        "unknown field",
		`{"factor":0.0001}`:                 "factor ",
		`{"period":"1"}`:                    "without a unit",
		`{"for":"soon"}`:                    "is not a duration",
		`{"period":"9223372036854775807w"}`: "too long",
		`{"key":["a"],"key_b64":["YQ=="]}`:  "give the key once",
		`{"entry":"e","value":"a","value_b64":"YQ=="}`: "give the value once",
	} {
		if _, err := ParseProposal([]byte(text)); !contains(err, want) {
			t.Errorf("%s: got %v; want an error with %q", text, err, want)
		}
	}
}

func TestAnAdjustmentThatIsNotUnderstoodIsAnError(t *testing.T) {
	const valid = `{"domain": "edge", "limit": "l", "author": "a", "reason": "r", "created": "2026-03-01T16:00:00Z", "expires": "2026-03-01T17:00:00Z", `
	for field, want := range map[string]string{
		`"rate": 5`:                   "",
		`"rate": 0`:                   "rate must be at least 1",
		`"rate": "five"`:              "cannot unmarshal",
		`"period": "soon"`:            "is not a duration",
		`"factor": 0`:                 "factor ",
		`"algorithm": "unknown"`:      `unknown algorithm "unknown"`,
		`"factor": 18446744073709552`: "factor ", // times 1,000 it is 384 more than 2^64
	} {
		var a Adjustment
		if err := json.Unmarshal([]byte(valid+field+`}`), &a); !contains(err, want) {
			t.Errorf("%s: got %+v, %v; want an error with %q", field, a, err, want)
		}
	}
}

// FuzzProposal requires that an accepted proposal is equal after it is written and read again.
func FuzzProposal(f *testing.F) {
	for _, text := range []string{
		`{"limit":"l","key":["a","b"],"rate":5,"period":"1m","for":"1h","author":"me","reason":"why"}`,
		`{"domain":"d","limit":"l","all_keys":true,"factor":1.5,"until":"2026-01-01T00:00:00Z","author":"me","reason":"why","version":3}`,
		`{"limit":"l","key_b64":["/w=="],"block":true,"for":"2d","author":"me","reason":"why"}`,
		`{"limit":"l","entry":"tenant","value":"evil","block":true,"for":"2d","author":"me","reason":"why"}`,
		`{"limit":"l","entry":"tenant","value_b64":"/w==","block":true,"for":"2d","author":"me","reason":"why"}`,
		`{"limit":"l","all_keys":true,"period":"7m","for":"90m","author":"me","reason":"why","version":7}`,
		`{"limit":"l","unlimited":true,"for":"500ms"}`, `{"limit":"l"} {}`, `[]`, `{"factor":1e300}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParseProposal(text)
		if err != nil {
			return
		}
		written, err := json.Marshal(p)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		again, err := ParseProposal(written)
		if err != nil {
			t.Fatalf("%s, written %s: %v", text, written, err)
		}
		if !p.Until.Equal(again.Until) {
			t.Errorf("%s, written %s: until %s, again %s", text, written, p.Until, again.Until)
		}
		if p.Until = again.Until; !reflect.DeepEqual(p, again) {
			t.Errorf("%s, written %s:\n%+v\n%+v", text, written, p, again)
		}
	})
}

// FuzzChange requires that a text in Redis is a change or is left out.
func FuzzChange(f *testing.F) {
	f.Add("1 a\n" + `{"version":1,"operation":"a","at":"2026-01-01T00:00:00Z","author":"me","reason":"why","target":"t"}`)
	f.Fuzz(func(t *testing.T, text string) {
		if entries, ok := parseChanges([]string{text}); ok != (len(entries) == 1) {
			t.Errorf("%q: got %d changes, %t", text, len(entries), ok)
		}
	})
}
