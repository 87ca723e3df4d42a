package config

import (
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
