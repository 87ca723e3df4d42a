package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// Limits share equal parts, which are stored once. Parts that differ must not be shared.
func TestLimitsThatDifferShareNothing(t *testing.T) {
	limits := map[string]string{
		"a": `lease: {max: 1%, for: 100ms}`, "b": `lease: {max: 2%, for: 100ms}`,
		"c": `shards: 2`, "e": `shards: 4`,
		"f": `settle: {estimate: 10, unknown_cost: most, most: 70}`, "g": `settle: {estimate: 20}`,
	}
	text := "domain: d\ndescriptors:\n" // one key with many values, so that the limits differ only in the part under test
	for _, value := range slices.Sorted(maps.Keys(limits)) {
		text += fmt.Sprintf("  - {key: x, value: %s, descriptors: [{key: k, rate_limit: {algorithm: fixed_window, rate: 1000, period: 1d, %s}}]}\n", value, limits[value])
	}
	s := good(t, Options{}, text)
	of := func(value string) *limiter.Extras {
		t.Helper()
		for _, p := range s.Policies {
			if p.Name == "x_"+value+".k" {
				return p.Extras
			}
		}
		t.Fatalf("found no limit below x=%s; want one", value)
		return nil
	}
	if a, b := of("a").Lease.Most, of("b").Lease.Most; a != 10 || b != 20 {
		t.Errorf("leases of %d and %d, want 10 and 20", a, b)
	}
	if c, e := of("c").Shards[0].Capacity, of("e").Shards[0].Capacity; c != 500 || e != 250 {
		t.Errorf("shards of %d and %d, want 500 and 250", c, e)
	}
	if f, g := of("f").Settle, of("g").Settle; f.Estimate != 10 || f.Unknown != 70 || g.Estimate != 20 || g.Unknown != -1 {
		t.Errorf("%+v and %+v; want f.Estimate 10, f.Unknown 70, g.Estimate 20 and g.Unknown -1", f, g)
	}
}

func TestLimitsThatDifferInOneSettingShareNothing(t *testing.T) {
	for _, pair := range [][2]string{
		{"unit_name: tokens", "unit_name: requests"},
		{"weights: {in: 1}", "weights: {in: 2}"},
		{"max_delay: 1s", "max_delay: 2s"},
		{"deny_body: openai", "deny_body: anthropic"},
		{"lease: {max: 10%, for: 100ms}", "lease: {max: 10%, for: 200ms}"},
		{"on_backend_failure: local, local_share: 20%", "on_backend_failure: local, local_share: 40%"},
		{"settle: {estimate: 2}", "settle: {estimate: 3}"},
		{"settle: {estimate: 2, ttl: 1m}", "settle: {estimate: 2, ttl: 2m}"},
		{"shards: 2", "shards: 3"},
	} {
		text := "domain: d\ndescriptors:\n"
		for i, setting := range pair {
			algorithm := "token_bucket"
			if strings.HasPrefix(setting, "max_delay") {
				algorithm = "leaky_bucket"
			}
			text += fmt.Sprintf("- {key: k%d, value: x, rate_limit: {algorithm: %s, rate: 100, period: 1s, %s}}\n", i, algorithm, setting)
		}
		s, problems := Compile([]File{{"f.yaml", []byte(text)}}, Options{})
		if s == nil {
			t.Fatalf("%v: %v", pair, problems)
		}
		if one, two := s.Policies[0].Extra(), s.Policies[1].Extra(); reflect.DeepEqual(one, two) {
			t.Errorf("%v: both have the settings %+v", pair, *one)
		}
	}
}

func TestListsOfNamesHaveDifferentTexts(t *testing.T) {
	seen := map[string][]string{}
	for _, list := range [][]string{nil, {""}, {"", ""}, {"a", "b"}, {"b", "a"}, {"ab"}, {"a\x00.b"}, {"a\x00", "b"}, {"a", "\x00b"}, {"a\x00\x00.b"}} {
		text := joined(list)
		if was, ok := seen[text]; ok {
			t.Errorf("%q and %q have one text", was, list)
		}
		seen[text] = list
	}
}
