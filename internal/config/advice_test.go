package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestMessagesAboutNumbersSuggestANumber(t *testing.T) {
	for value, want := range map[string]string{
		"10/m": "; write rate: 10, period: 1m", "10 per hours": "; write rate: 10, period: 1h", "5rps": "; write rate: 5, period: 1s",
		"2k": "; write 2000", "3M": "; write 3000000", "5.0": "; write 5", "1e3": "; write 1000",
		".inf": "", ".nan": "", "1.5": "", "many": "", "'7'": "; remove the quotes",
	} {
		text := bad(t, Options{}, "domain: d\nlimits: {l: {algorithm: fixed_window, rate: "+value+", period: 1h}}\n")
		if !strings.HasSuffix(text, want) || want == "" && strings.Contains(text, "; ") {
			t.Errorf("%s: got %s; want the suggestion %q", value, text, want)
		}
	}
}

func TestALongNameIsNotSuggestedForAnyWord(t *testing.T) {
	long := strings.Repeat("d", 250)
	text := bad(t, Options{}, "domain: "+long+"\nauth: {routes: [{domain: other, descriptors: [[{key: k, from: path}]]}]}\n")
	if strings.Contains(text, "did you mean") {
		t.Errorf("got %s; want no suggestion", text)
	}
}

func TestMessagesNameTheWordToWrite(t *testing.T) {
	const limit = "domain: d\nlimits: {a: {algorithm: %s, rate: %s, period: 1s%s}}\n"
	for text, want := range map[string]string{
		fmt.Sprintf(limit, "gcra", "1", ""):                                                                      `is the text "gcra"; write token_bucket`,
		fmt.Sprintf(limit, "token_bucket", "1", ", on_backend_failure: open"):                                    `is the text "open"; write allow`,
		fmt.Sprintf(limit, "token_bucket", "1", ", on_backend_failure: closed"):                                  `is the text "closed"; write deny`,
		fmt.Sprintf(limit, "token_bucket", "99999999999999999999", ""):                                           "rate must be at most 9007199254740992, but is 99999999999999999999",
		fmt.Sprintf(limit, "token_bucket", "9", ", capacity: 99999999999999999999"):                              "capacity must be at most 9007199254740992",
		fmt.Sprintf(limit, "token_bucket", "1", "") + "descriptors: [{key: k, rate_limit: a}]\n":                 `write "limit: a" in place of rate_limit`,
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 99999999999999999999}}]\n": "requests_per_unit must be at most 4294967295",
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 10/minute}}]\n":            "write requests_per_unit: 10, unit: minute",
	} {
		if got := bad(t, Options{}, text); !strings.Contains(got, want) {
			t.Errorf("%s: got %s; want %q", text, got, want)
		}
	}
}
