package config

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// good compiles files a.yaml, b.yaml, …, which must be accepted.
func good(t *testing.T, o Options, contents ...string) *limiter.Snapshot {
	t.Helper()
	s, problems := Compile(numbered(contents), o)
	if s == nil || problems.Bad() {
		t.Fatalf("got the problems\n%v\nwant no mistakes", problems)
	}
	return s
}

// bad compiles files that must be rejected, and returns one line for each problem.
func bad(t *testing.T, o Options, contents ...string) string {
	t.Helper()
	s, problems := Compile(numbered(contents), o)
	if s != nil || !problems.Bad() {
		t.Fatalf("got a snapshot: %t, problems\n%v\nwant no snapshot, and a mistake", s != nil, problems)
	}
	return problems.Error()
}

func numbered(contents []string) (files []File) {
	for i, content := range contents {
		files = append(files, File{fmt.Sprintf("%c.yaml", 'a'+i), []byte(content)})
	}
	return files
}

// match returns the policies that descriptor, such as "user=ann,path=/", matches.
func match(t *testing.T, s *limiter.Snapshot, domain, descriptor string) []*limiter.Policy {
	t.Helper()
	entries, err := descriptors.Parse(descriptor)
	must(t, err)
	node := s.Domains[domain].Tree.Match(entries)
	if node == nil {
		return nil
	}
	return node.Found.Policies
}

func one(t *testing.T, s *limiter.Snapshot, domain, descriptor string) *limiter.Policy {
	t.Helper()
	policies := match(t, s, domain, descriptor)
	if len(policies) != 1 {
		t.Fatalf("%s matches %d policies, want 1", descriptor, len(policies))
	}
	return policies[0]
}

// Only values identify the buckets of a named limit, even if a pattern matches the key.
func TestANamedLimitAtAPatternHasTheBucketsOfTheAPI(t *testing.T) {
	s := good(t, Options{}, `
domain: d
limits: {n: {algorithm: token_bucket, rate: 5, period: 1s}}
descriptors:
  - {key: "user_*", limit: n}
  - {key: path, value_prefix: /a/, limit: n}
  - {key: path, value_suffix: .png, limit: n}
  - {key: path, value_regex: "/[0-9]+", limit: n}
  - {key: path, value_regex: "/x[0-9]+", share_threshold: true, limit: n}
`)
	named := s.Domains["d"].Named["n"]
	for descriptor, value := range map[string][]string{
		"user_id=bob": {"bob"}, "path=/a/b": {"/a/b"}, "path=x.png": {"x.png"}, "path=/7": {"/7"}, "path=/x7": nil,
	} {
		entries, err := descriptors.Parse(descriptor)
		must(t, err)
		got, _ := one(t, s, "d", descriptor).AppendKey(nil, entries)
		if want, _ := named.AppendKeyOf(nil, value); !bytes.Equal(got, want) {
			t.Errorf("%s: got the key %q; want %q, that of the values %q in the API", descriptor, got, want, value)
		}
	}
}

func TestInlineLimitsHaveBucketsOfTheirOwn(t *testing.T) {
	limit := "rate_limit: {unit: day, requests_per_unit: 1}"
	s := good(t, Options{}, fmt.Sprintf(`
domain: d
limits:
  a: {algorithm: fixed_window, rate: 1, period: 1d}
  a=b: {algorithm: fixed_window, rate: 1, period: 1d}
descriptors:
  - {key: a, %[1]s}
  - {key: a, value: b_c, %[1]s}
  - {key: a_b, value: c, %[1]s}
  - {key: a_b_c, %[1]s}
  - {key: a=b, %[1]s}
  - {key: "a,b", %[1]s}
  - {key: 'a#2', %[1]s}
  - {key: a, value: "b*", %[1]s}
  - {key: a, value_prefix: bb, %[1]s}
  - {key: a, value_suffix: bb, %[1]s}
  - {key: a, value_regex: bb, %[1]s}
  - {key: a, value: "prefix=bb", %[1]s}
  - {key: a, value: b, %[1]s, descriptors: [{key: b, %[1]s}]}
  - {key: b, rate_limit: [{unit: day, requests_per_unit: 1}, {unit: hour, requests_per_unit: 1}]}
  - {key: '\', value: '\', %[1]s}
  - {key: '\\', value: '\', %[1]s}
---
{domain: d/, descriptors: [{key: a, %[1]s}], limits: {x: {algorithm: fixed_window, rate: 1, period: 1d}}}
---
{domain: d%%2F, descriptors: [{key: a, %[1]s}], limits: {x: {algorithm: fixed_window, rate: 1, period: 1d}}}
`, limit))
	owners, prefixes := map[string]limiter.Place{}, map[string]limiter.Place{}
	for _, p := range s.Policies {
		if other, have := owners[p.Owner]; have {
			t.Errorf("%s and %s have the owner %q; want different owners", p.Place, other, p.Owner)
		}
		if other, have := prefixes[p.Prefix]; have {
			t.Errorf("%s and %s have the prefix %q; want different prefixes", p.Place, other, p.Prefix)
		}
		owners[p.Owner], prefixes[p.Prefix] = p.Place, p.Place
	}
}

func TestADomainMaySpanFiles(t *testing.T) {
	files := []string{
		"{domain: d, descriptors: [{key: a, limit: x}]}",
		"{domain: d, limits: {x: {algorithm: token_bucket, rate: 5, period: 1s}}, descriptors: [{key: b, limit: x}]}",
		"{domain: e, descriptors: [{key: a}]}",
	}
	s := good(t, Options{}, files...)
	if one(t, s, "d", "a=1").Owner != one(t, s, "d", "b=1").Owner || len(match(t, s, "e", "a=1")) != 0 || len(s.Domains) != 2 {
		t.Errorf("got %d domains; want 2, one owner for both uses of limit x, and no limit in domain e", len(s.Domains))
	}
	reported := bad(t, Options{}, files[0], files[1], "{domain: d, limits: {x: {algorithm: token_bucket, rate: 6, period: 1s}}, descriptors: [{key: a}]}")
	want := `c.yaml:1:22: domain "d" already has a limit named "x", at b.yaml:1; rename or remove one
c.yaml:1:94: duplicate descriptor composite key 'd.a'; it is first at a.yaml:1: merge the two`
	if reported != want {
		t.Errorf("got the problems\n%s\nwant\n%s", reported, want)
	}
}

func TestMistakesOfAllFilesAreReported(t *testing.T) {
	reported := bad(t, Options{}, "domain: a\n  b: c", "domain: b\nx: y", "domain: [", "domain: d\ndescriptors: [{key: a, limit: perhaps_in_a_broken_file}]")
	for _, want := range []string{"a.yaml:2:", "b.yaml:2:1: config error, unknown key 'x'", "c.yaml:1:"} {
		if !strings.Contains(reported, want) {
			t.Errorf("got the problems\n%[2]s\nwant %[1]q among them", want, reported)
		}
	}
	if strings.Contains(reported, "perhaps") {
		t.Errorf("got the problems\n%s\nwant none about the limit that may be in an unreadable file", reported)
	}
}

func TestScalarsAreReadAsTheReferenceServerDoes(t *testing.T) {
	for written, want := range map[string]string{
		"5": "5", "0x1F": "0x1F", "010": "010", "1_000": "1_000", "-3": "-3", "true": "true", "yes": "yes", "Off": "Off",
		"2026-01-01": "2026-01-01", "18446744073709551615": "18446744073709551615", "1.2.3.4": "1.2.3.4", `"1.5"`: "1.5",
		"!!str 1.5": "1.5", "!own text": "text", "!!binary /w==": "\xff", "<<": "<<", "|-\n    two\n    lines": "two\nlines",
	} {
		s := good(t, Options{}, "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unlimited: true}\n  value: "+written+"\n")
		if s.Domains["d"].Tree.Match([]descriptors.Entry{{Key: "a", Value: want}}) == nil {
			t.Errorf("%s does not match the value %q; want a match", written, want)
		}
	}
	for written, want := range words {
		s := good(t, Options{}, "{domain: d, descriptors: [{key: a, shadow_mode: "+written+", rate_limit: {unlimited: true}}]}")
		if s.Policies[0].Shadow != want {
			t.Errorf("%s is read as %t, want %t", written, !want, want)
		}
	}
	for written, want := range map[string]int64{"7": 7, "0x10": 16, "1_000": 1000, "0b11": 3, "0o17": 15, "017": 15, "+5": 5} {
		s := good(t, Options{}, "{domain: d, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: "+written+"}}]}")
		if s.Policies[0].Limit.Rate != want {
			t.Errorf("%s is %d, want %d", written, s.Policies[0].Limit.Rate, want)
		}
	}
}

func TestMetadataFitsIntoAStruct(t *testing.T) {
	s := good(t, Options{}, `{domain: d, descriptors: [{key: a, rate_limit: {unlimited: true}, metadata: {
		int: 5, hex: 0x10, big: 18446744073709551615, float: 1.5, no: false, text: x, word: yes, quoted: 'yes', none: ~, time: 2026-01-01, list: [1, [a], {b: c}], 7: seven, map: {<<: {x: 1}, y: 2}}}]}`)
	want := map[string]any{
		"int": 5.0, "hex": 16.0, "big": 18446744073709551615.0, "float": 1.5, "no": false, "text": "x", "word": true, "quoted": "yes", "none": nil, "time": "2026-01-01",
		"list": []any{1.0, []any{"a"}, map[string]any{"b": "c"}}, "7": "seven", "map": map[string]any{"x": 1.0, "y": 2.0},
	}
	if got := s.Policies[0].Extra().Metadata; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestConsumeTogetherTakesPrecedence covers STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT of the reference server.
func TestConsumeTogetherTakesPrecedence(t *testing.T) {
	const file = "domain: d\n%sdescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]"
	for _, consume := range []string{"", "consume: each\n", "consume: together\n"} {
		for _, each := range []bool{false, true} {
			for _, together := range []bool{false, true} {
				s := good(t, Options{ConsumeEach: each, ConsumeTogether: together}, fmt.Sprintf(file, consume))
				want := !together && (consume == "consume: each\n" || consume == "" && each)
				if p := s.Policies[0]; s.Domains["d"].Alone != want || p.Alone != want || p.Limit.TakesDenied != want {
					t.Errorf("%q, default each %t, together %t: %+v; want s.Domains[\"d\"].Alone %v, p.Alone %v and p.Limit.TakesDenied %v", consume, each, together, p, want, want, want)
				}
			}
		}
	}
}

func TestHashIdentifiesAConfiguration(t *testing.T) {
	const a, b = "domain: a\n", "domain: b\n"
	first := good(t, Options{}, a, b+"# a comment\n").Hash
	renamed, _ := Compile([]File{{"x", []byte(a)}, {"y", []byte(b + "# a comment\n")}}, Options{})
	if again := good(t, Options{}, a, b+"# a comment\n").Hash; again != first || renamed.Hash != first {
		t.Errorf("hashes %s, %s, and %s with other file names; want equal ones", first, again, renamed.Hash)
	}
	for name, other := range map[string]string{
		"another domain":   good(t, Options{}, a, "domain: c\n# a comment\n").Hash,
		"one file":         good(t, Options{}, a+"---\n"+b+"# a comment\n").Hash,
		"a line moved":     good(t, Options{}, a+"# a comment\n", b).Hash, // in another file, it may have another meaning
		"consume each":     good(t, Options{ConsumeEach: true}, a, b+"# a comment\n").Hash,
		"consume together": good(t, Options{ConsumeTogether: true}, a, b+"# a comment\n").Hash,
		"another default":  good(t, Options{OnFailure: limiter.Allow}, a, b+"# a comment\n").Hash,
	} {
		if other == first {
			t.Errorf("%s: the hash is %s too; want another", name, other)
		}
	}
}

func TestMoreLimitsThanTheBoundAreRefused(t *testing.T) {
	many := "domain: a\ndescriptors: [{key: a, rate_limit: [&l {unit: day, requests_per_unit: 5}" + strings.Repeat(", *l", DefaultMaxLimits) + "]}]"
	reported := bad(t, Options{}, many)
	if reported != "a.yaml: the configuration has more than 100000 limits; make it smaller, or raise RLSIDECAR_MAX_LIMITS" {
		t.Errorf("got %v; want reported %q", reported, "a.yaml: the configuration has more than 100000 limits; make it smaller, or raise RLSIDECAR_MAX_LIMITS")
	}
}

func FuzzCompile(f *testing.F) {
	for _, pattern := range []string{".good.yaml", ".bad.yaml"} {
		for _, file := range fixtures(f, pattern) {
			if !strings.HasPrefix(file.Name, "alias-") { // mutants of these are slow and find nothing
				f.Add(file.Data, false)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, each bool) {
		s, problems := Compile([]File{{"a.yaml", data}, {"b.yaml", []byte("domain: b")}}, Options{ConsumeEach: each})
		if (s == nil) != problems.Bad() {
			t.Fatalf("got a snapshot: %t, problems\n%v\nwant a snapshot exactly if there is no mistake", s != nil, problems)
		}
		if s == nil {
			return
		}
		for i, p := range s.Policies {
			if s.Domains[p.Domain].Policies[p.Index] != p || p.Prefix == "" || p.Owner == "" || p.Place.File == "" {
				t.Errorf("policy %d: %+v; want it at its Index, with a prefix, an owner and a file", i, p)
			}
		}
	})
}
