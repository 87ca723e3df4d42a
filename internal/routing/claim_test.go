package routing

import (
	"encoding/base64"
	"encoding/json"
	"testing"
)

// FuzzClaim compares claim with encoding/json, for tokens with any payload. It also checks that claim does not
// panic for other headers, because clients choose them.
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
				t.Errorf("%q has the claim %q; want none, because it is not a JSON object", payload, got)
			}
			return
		}
		if text, is := claims[name].(string); is && (!ok || got != text) {
			t.Errorf("%q: claim %q is %q %t, want %q", payload, name, got, ok, text)
		}
		switch claims[name].(type) {
		case nil, map[string]any, []any:
			if ok {
				t.Errorf("%q: claim %q is %q; want none, because it is missing, null, an object or a list", payload, name, got)
			}
		}
	})
}
