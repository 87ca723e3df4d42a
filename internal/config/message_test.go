package config

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func perMinute(n uint32) *MessageLimit { return &MessageLimit{Unit: "minute", RequestsPerUnit: n} }

func TestMessagesEqualFiles(t *testing.T) {
	file := `
domain: edge
descriptors:
  - {key: path, value: /login, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5, name: login, replaces: [{name: all}]}, descriptors: [
      {key: remote_address, quota_mode: true, detailed_metric: true, metadata: {team: a}, rate_limit: {unit: week, requests_per_unit: 7}}]}
  - {key: free, rate_limit: {unlimited: true, name: all}}
`
	login := perMinute(5)
	login.Name, login.Replaces = "login", []string{"all"}
	message := Message{Name: "edge", Domain: "edge", Descriptors: []MessageDescriptor{
		{Key: "path", Value: "/login", Shadow: true, Limit: login, Descriptors: []MessageDescriptor{{
			Key: "remote_address", Quota: true, Detailed: true, Metadata: map[string]any{"team": "a"},
			Limit: &MessageLimit{Unit: "week", RequestsPerUnit: 7},
		}}},
		{Key: "free", Limit: &MessageLimit{Unlimited: true, Name: "all"}},
	}}
	want, problems := Compile([]File{{"f", []byte(file)}}, Options{})
	if len(problems) > 0 {
		t.Fatalf("got %v; want 0", problems)
	}
	got, problems := CompileMessages([]Message{message}, Options{})
	if len(problems) > 0 {
		t.Fatalf("got %v; want 0", problems)
	}
	if len(got.Policies) != len(want.Policies) {
		t.Fatalf("%d policies, want %d", len(got.Policies), len(want.Policies))
	}
	for i, p := range got.Policies {
		w := want.Policies[i]
		if p.StatKey != w.StatKey || *p.Limit != *w.Limit || p.RateName != w.RateName || p.Shadow != w.Shadow || p.Quota != w.Quota ||
			p.Detailed != w.Detailed || p.Unlimited != w.Unlimited || !slices.Equal(p.Extra().Replaces, w.Extra().Replaces) || p.Prefix != w.Prefix || len(p.Extra().Metadata) != len(w.Extra().Metadata) {
			t.Errorf("%+v\nwant %+v", p, w)
		}
	}
	if got := got.Policies[1].Place.String(); got != "xds:edge: descriptors[0](path=/login).descriptors[0](remote_address).rate_limit" {
		t.Errorf("place %q; want %q", got, "xds:edge: descriptors[0](path=/login).descriptors[0](remote_address).rate_limit")
	}
}

func TestMistakesInMessagesHaveTheirPlace(t *testing.T) {
	deep := MessageDescriptor{Key: "k"}
	for range maxMessageDepth {
		deep = MessageDescriptor{Key: "k", Descriptors: []MessageDescriptor{deep}}
	}
	for want, m := range map[string]Message{
		"xds:r: config file cannot have empty domain; write \"domain: NAME\"":                                                                         {Name: "r"},
		"xds:d: descriptors[0](): descriptor has empty key; write \"key: NAME\"":                                                                      {Descriptors: []MessageDescriptor{{}}},
		"xds:d: descriptors[1](a): duplicate descriptor composite key 'd.a'; it is first at xds:d: descriptors[0](a): merge the two":                  {Descriptors: []MessageDescriptor{{Key: "a"}, {Key: "a"}}},
		"xds:d: descriptors[0](a=b).rate_limit: invalid rate limit unit 'UNKNOWN'; write one of":                                                      {Descriptors: []MessageDescriptor{{Key: "a", Value: "b", Limit: &MessageLimit{Unit: "UNKNOWN"}}}},
		"xds:d: descriptors[0](a).rate_limit: invalid rate limit unit ''; write one of":                                                               {Descriptors: []MessageDescriptor{{Key: "a", Limit: &MessageLimit{RequestsPerUnit: 1}}}},
		"xds:d: descriptors[0](a).rate_limit: should not specify rate limit unit when unlimited":                                                      {Descriptors: []MessageDescriptor{{Key: "a", Limit: &MessageLimit{Unit: "day", Unlimited: true}}}},
		"xds:d: descriptors[0](a).rate_limit.replaces[0]: should not have an empty replaces entry":                                                    {Descriptors: []MessageDescriptor{{Key: "a", Limit: &MessageLimit{Unit: "day", RequestsPerUnit: 1, Replaces: []string{""}}}}},
		"xds:d: descriptors[0](a).metadata: error parsing metadata: a number that is not finite":                                                      {Descriptors: []MessageDescriptor{{Key: "a", Metadata: map[string]any{"x": []any{math.NaN()}}}}},
		strings.Repeat(".descriptors[0](k)", 33)[1:] + ": nested more than 32 descriptors deep":                                                       {Descriptors: []MessageDescriptor{deep}},
		"xds:d: descriptors[0](a).rate_limit: requests_per_unit is 0: this limit denies every request; write a larger number if it should allow some": {Descriptors: []MessageDescriptor{{Key: "a", Limit: perMinute(0)}}},
		"xds:d: descriptors[0](a): field 9 is not known to this version and has no effect":                                                            {Descriptors: []MessageDescriptor{{Key: "a", Unknown: []int32{9}}}},
	} {
		if m.Name == "" {
			m.Domain = "d"
		}
		_, problems := CompileMessages([]Message{m}, Options{})
		if len(problems) != 1 || !strings.Contains(problems[0].File+": "+problems[0].Message, want) {
			t.Errorf("%v\nwant %s", problems, want)
		}
	}
}

func TestOrderOfMessagesDoesNotMatter(t *testing.T) {
	a := Message{Name: "1", Domain: "a", Descriptors: []MessageDescriptor{{Key: "x", Limit: perMinute(1)}}}
	more := Message{Name: "2", Domain: "a", Descriptors: []MessageDescriptor{{Key: "y", Limit: perMinute(2)}}}
	b := Message{Name: "0", Domain: "b", Descriptors: []MessageDescriptor{{Key: "x", Limit: perMinute(3)}}}
	one, problems := CompileMessages([]Message{b, more, a}, Options{})
	if len(problems) > 0 {
		t.Fatalf("got %v; want 0", problems)
	}
	other, _ := CompileMessages([]Message{a, b, more}, Options{})
	if one.Hash != other.Hash {
		t.Errorf("hashes %s and %s of the same messages; want equal ones", one.Hash, other.Hash)
	}
	b.Descriptors[0].Limit = perMinute(4)
	if other, _ = CompileMessages([]Message{a, b, more}, Options{}); one.Hash == other.Hash {
		t.Errorf("hash %s for messages with other limits too; want another", other.Hash)
	}
	if len(one.Domains) != 2 || one.Domains["a"].Tree.Match([]descriptors.Entry{{Key: "y"}}) == nil {
		t.Errorf("got %d domains; want 2, and both descriptors of domain a in one tree", len(one.Domains))
	}
	if got := one.Policies[2].Limit; got.Rate != 3 || got.Period() != 60*algorithms.Second {
		t.Errorf("got %+v; want a rate of 3 in %d us", got, 60*algorithms.Second)
	}
}
