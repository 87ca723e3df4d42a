package migrate

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

// notes returns the notes about one file, without the name of the file.
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

// FuzzWrite checks that Review and Write do not panic, and that a second Write changes nothing. The second check leaves
// out files with comments, aliases and other notations that the YAML encoder may change.
func FuzzWrite(f *testing.F) {
	f.Add([]byte(quiet + "descriptors: [{key: k, unit: x, rate_limit: [{name: a, name: b}]}, {key: k_a}]"))
	f.Add([]byte("a: &a [*a]\n---\n"))
	f.Add([]byte("domain: d\ndescriptors: &x\n- {<<: {key: k}, descriptors: *x}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		Review([]config.File{{Name: "f", Data: data}})
		once, err := Write(config.File{Name: "f", Data: data})
		if err != nil {
			return
		}
		if twice, err := Write(config.File{Name: "f", Data: once}); err == nil && !bytes.Equal(once, twice) && !bytes.ContainsAny(data, "#&*!|>\"'?\r") {
			t.Errorf("the second Write returned %q, want %q", twice, once)
		}
	})
}
