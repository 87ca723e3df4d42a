package simulate

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestComparisonIsThatOfTwoReplays(t *testing.T) {
	templates := func() Templates {
		parsed, err := ParseTemplates(Nginx, []string{"remote_address=%h"})
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	rapid.Check(t, func(rt *rapid.T) {
		log := drawLog(rt)
		side := func() (Config, []bool, []string) {
			form := rapid.SampledFrom(forms).Draw(rt, "limit")
			c := Config{Snapshot: compiled(t, perAddress("{"+form.limit+"}")), Name: "log", Input: strings.NewReader(log), Format: Nginx, Templates: templates(), Domain: "edge"}
			var decisions strings.Builder
			c.Decisions = &decisions
			if _, err := Run(t.Context(), c); err != nil {
				rt.Fatal(err)
			}
			var denied []bool
			var keys []string
			for line := range strings.Lines(decisions.String()) {
				var d struct {
					OK     bool
					Limits []struct{ Key string }
				}
				if err := json.Unmarshal([]byte(line), &d); err != nil {
					rt.Fatal(err)
				}
				denied, keys = append(denied, !d.OK), append(keys, d.Limits[0].Key)
			}
			c.Decisions, c.Input = nil, strings.NewReader(log)
			return c, denied, keys
		}
		was, before, keys := side()
		is, after, _ := side()
		got, err := Compare(t.Context(), was, is)
		if err != nil {
			rt.Fatal(err)
		}
		newly := func(from, to []bool) (requests, clients int64) {
			seen := map[string]bool{}
			for i := range from {
				if to[i] && !from[i] {
					requests++
					seen[keys[i]] = true
				}
			}
			return requests, int64(len(seen))
		}
		for name, c := range map[string]struct {
			got      Changes
			from, to []bool
		}{"denied": {got.Denied, before, after}, "allowed": {got.Allowed, after, before}} {
			requests, clients := newly(c.from, c.to)
			if c.got.Requests != requests || c.got.Clients != clients || c.got.AtLeast {
				rt.Fatalf("newly %s: %d requests of %d clients, want %d of %d", name, c.got.Requests, c.got.Clients, requests, clients)
			}
		}
		if got.Requests != int64(len(before)) {
			rt.Fatalf("Compare counts %d requests, want %d", got.Requests, len(before))
		}
	})
}
