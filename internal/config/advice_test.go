package config

import (
	"strings"
	"testing"
)

func TestALongNameIsNotSuggestedForAnyWord(t *testing.T) {
	long := strings.Repeat("d", 250)
	text := bad(t, Options{}, "domain: "+long+"\nauth: {routes: [{domain: other, descriptors: [[{key: k, from: path}]]}]}\n")
	if strings.Contains(text, "did you mean") {
		t.Errorf("got %s; want no suggestion", text)
	}
}
