package routing

import (
	"encoding/base64"
	"encoding/json"
	"testing"
)

// FuzzClaim compares claim with encoding/json for tokens with any payload. claim must also survive any other
// header, because clients choose it.
func FuzzClaim(f *testing.F) {
	f.Add("Bearer x.", `{"sub":"alice","n":5}`, ".s", "sub")
	f.Add("bearer\tx.", `{"sub":null}`, ".s=", "sub")
	f.Add("Basic x.", `{"sub":"alice"}`, "", "sub")
	f.Fuzz(func(t *testing.T, before, payload, behind, name string) {
		_, _ = claim([]string{before + payload + behind}, name)
		_, _ = claim([]string{before + base64.RawURLEncoding.EncodeToString([]byte(payload)) + behind}, name)
		got, ok := claim([]string{"Bearer x." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".s"}, name)
		var claims map[string]any
		if json.Unmarshal([]byte(payload), &claims) != nil {
			if ok {
				t.Errorf("%q is not a JSON object, but has the claim %q", payload, got)
			}
			return
		}
		if text, is := claims[name].(string); is && (!ok || got != text) {
			t.Errorf("%q: claim %q is %q %t, want %q", payload, name, got, ok, text)
		}
		switch claims[name].(type) {
		case nil, map[string]any, []any:
			if ok {
				t.Errorf("%q: claim %q is not a string, but has the value %q", payload, name, got)
			}
		}
	})
}
