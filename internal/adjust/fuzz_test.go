package adjust

import (
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzProposal requires that an accepted proposal is equal after it is written and read again.
func FuzzProposal(f *testing.F) {
	for _, text := range []string{
		`{"limit":"l","key":["a","b"],"rate":5,"period":"1m","for":"1h","author":"me","reason":"why"}`,
		`{"domain":"d","limit":"l","all_keys":true,"factor":1.5,"until":"2026-01-01T00:00:00Z","author":"me","reason":"why","version":3}`,
		`{"limit":"l","key_b64":["/w=="],"block":true,"for":"2d","author":"me","reason":"why"}`,
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
		if p.Target.Key == nil || len(p.Target.Key) == 0 { // an empty list equals no list
			p.Target.Key, again.Target.Key = nil, nil
		}
		if !p.Until.Equal(again.Until) {
			t.Errorf("%s, written %s: until %s, again %s", text, written, p.Until, again.Until)
		}
		if p.Until = again.Until; !reflect.DeepEqual(p, again) {
			t.Errorf("%s, written %s:\n%+v\n%+v", text, written, p, again)
		}
	})
}

func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"version":1,"action":"set"}`), "mac")
	f.Fuzz(func(t *testing.T, body []byte, mac string) {
		if e, err := ParseEntry(body, mac); err == nil && e == nil {
			t.Error("neither an entry nor an error")
		}
	})
}
