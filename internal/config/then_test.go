package config

import (
	"strings"
	"testing"
)

// If the limit that pays for another one has a mistake, only that mistake is reported.
func TestAPayerWithAMistake(t *testing.T) {
	text := bad(t, Options{}, "domain: d\nhash_tag: domain\nlimits:\n  plan: {algorithm: fixed_window, rate: 1, period: 1h, then: credits}\n"+
		"  credits: {algorithm: no, rate: 5, period: 1h}\ndescriptors: [{key: k, limit: plan}]\n")
	if strings.Contains(text, "\n") || !strings.Contains(text, "algorithm must be one of") {
		t.Errorf("got %s; want one mistake, of the algorithm", text)
	}
}
