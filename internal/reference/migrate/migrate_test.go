package migrate

import (
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

func notes(text string) (lines []string) {
	for _, n := range Review([]config.File{{Name: "f", Data: []byte(text)}}) {
		lines = append(lines, strings.TrimPrefix(n.String(), "f:"))
	}
	return lines
}

const quiet = "domain: d\nconsume: each\non_backend_failure: error\n"

func TestReview(t *testing.T) {
	for text, want := range map[string][]string{
		"descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]": nil,
		"descriptors: [{key: k, rate_limit: {unlimited: true}}]":                 nil,
		"descriptors: [{key: remote_address}, {key: user_id}]":                   nil,
		"descriptors: [{key: a_b, value: c}, {key: a}]":                          nil,
		"descriptors: [{key: a_b}, {key: a}]":                                    {"4:21: differs: in the reference server an entry"},
		"descriptors: [{key: k, requests_per_unit: 1}]":                          {`4:24: refused: "requests_per_unit" has no effect`},
		"shadow_mode: true":                              {`4:1: refused: "shadow_mode" has no effect`},
		"descriptors: [{key: k, nonsense: 1}]":           {"4:24: refused: config error, unknown key 'nonsense'"},
		"descriptors: [{key: k, key: l}]":                {`4:24: refused: "key" occurs twice`},
		"descriptors: [{key: k, detailed_metric: true}]": {"4:24: differs: at most 10,000 metric series"},
		"descriptors: [{":                                {"4:1: refused: error loading config file"},
	} {
		got := notes(quiet + text)
		if len(got) != len(want) {
			t.Errorf("%s: %q, want %q", text, got, want)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("%s: %q, want %q", text, got[i], want[i])
			}
		}
	}
}

func FuzzReview(f *testing.F) {
	f.Add([]byte(quiet + "descriptors: [{key: k, unit: x, rate_limit: [{name: a, name: b}]}, {key: k_a}]"))
	f.Add([]byte("a: &a [*a]\n---\n"))
	f.Add([]byte("domain: d\ndescriptors: &x\n- {<<: {key: k}, descriptors: *x}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		Review([]config.File{{Name: "f", Data: data}}) // must not panic
	})
}

// The notes are in the order of the places in the file. They report defaults that differ, unless the file states the
// setting. They also report further documents, and keys that rlsidecar refuses or treats in another way.
func TestNotesAboutDefaultsThatDiffer(t *testing.T) {
	const (
		one      = "descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
		two      = "descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}, {key: l, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
		free     = "descriptors: [{key: k, rate_limit: {unlimited: true}}, {key: l, rate_limit: {unlimited: true}}]\n"
		finite   = "descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1, unlimited: false}}]\n"
		above    = "# a comment\n"
		consumes = "a denied request consumes nothing"
		failure  = "requests are denied while Redis"
	)
	for text, want := range map[string][]string{
		above + "domain: d\n" + two:                    {"2:1: differs: " + consumes, "2:1: differs: " + failure},
		above + two + "domain: d\n":                    {"3:1: differs: " + consumes, "3:1: differs: " + failure},
		"domain: d\n" + one:                            {"1:1: differs: " + failure},
		"domain: d\n" + finite:                         {"1:1: differs: " + failure},
		"domain: d\n" + free:                           nil,
		"domain: d\n":                                  nil,
		"domain: d\nconsume: each\n" + two:             {"1:1: differs: " + failure},
		"domain: d\non_backend_failure: error\n" + two: {"1:1: differs: " + consumes},
		quiet + "---\ndomain: e\n" + one:               {"5:1: differs: the reference server reads only the first", "5:1: differs: " + failure},
		quiet + "descriptors: [{key: k, value: v, value_to_metric: true}]":      {"4:34: differs: at most 10,000"},
		quiet + "descriptors: [{key: k, value_to_metric: false}]":               nil,
		quiet + "descriptors: [{key: a_b}, {key: a}]":                           {`4:21: differs: in the reference server an entry a=b also matches this, before "a"; here only the key "a_b" does`},
		quiet + "descriptors: [{key: k, key: l, unit: day, nonsense: true}]":    {"4:24: refused: \"key\" occurs twice", "4:32: refused: \"unit\" has no effect", "4:43: refused: config error, unknown key"},
		quiet + "descriptors: [{key: k, shadow_mode: [rate_limit: {}]}]":        {"4:37: refused: shadow_mode must be true or false"},
		quiet + "unit: {key: k, key: l}\n":                                      {"4:1: refused: \"unit\" has no effect"},
		"domain: d\n" + one + "---\ndomain: e\n" + one:                          {"1:1: differs: " + failure, "4:1: differs: the reference server reads only the first", "4:1: differs: " + failure},
		quiet + "detailed_metric: true\n":                                       {`4:1: refused: "detailed_metric" has no effect`},
		quiet + "descriptors: [{key: k, rate_limit: {unit: day}}]\n":            nil, // a limit that allows nothing causes a warning here and in the reference server, and no note
		quiet + "descriptors: [{nonsense: 1, key: k, detailed_metric: true}]\n": {"4:16: refused: config error, unknown key", "4:37: differs: at most 10,000"},
	} {
		got := notes(text)
		same := len(got) == len(want)
		for i := 0; same && i < len(got); i++ {
			same = strings.HasPrefix(got[i], want[i])
		}
		if !same {
			t.Errorf("%s:\n%s\nwant\n%s", text, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestNotesAreInTheOrderOfTheFiles(t *testing.T) {
	const late = "domain: d\ndescriptors:\n  - {key: k, detailed_metric: true, nonsense: 1}\n  - {key: l, unit: day, nonsense: 1}\n"
	var got []string
	for _, n := range Review([]config.File{{Name: "z", Data: []byte(late)}, {Name: "a", Data: []byte("domain: d\nnonsense: 1\nkey: k\n")}}) {
		got = append(got, strings.Join(strings.Fields(n.String())[:2], " "))
	}
	want := "z:3:14: differs:, z:3:37: refused:, z:4:14: refused:, z:4:25: refused:, a:2:1: refused:, a:3:1: refused:"
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("got %s\nwant %s", text, want)
	}
	same := Review([]config.File{{Name: "a", Data: []byte("domain: a\nkey: k\n")}, {Name: "b", Data: []byte("domain: b\nnonsense: 1\n")}})
	if len(same) != 2 || same[0].File != "a" || same[1].File != "b" {
		t.Errorf("mistakes at one place of two files: got %v; want one note for each file", same)
	}
}
