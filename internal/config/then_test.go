package config

import (
	"reflect"
	"strings"
	"testing"
)

func TestThePayerHasTheMetadataOfItsDescriptor(t *testing.T) {
	s, problems := Compile([]File{{"f.yaml", []byte(`
domain: d
hash_tag: domain
limits:
  plan: {algorithm: token_bucket, rate: 1, period: 1m, then: credits}
  credits: {algorithm: token_bucket, rate: 1, period: 1h}
descriptors:
- {key: user, limit: plan, metadata: {tier: gold}}
`)}}, Options{})
	if s == nil {
		t.Fatal(problems)
	}
	payers := 0
	for _, p := range s.Policies {
		if then := p.Extra().Then; then != nil && p.Extra().Metadata != nil {
			payers++
			if !reflect.DeepEqual(then.Extra().Metadata, p.Extra().Metadata) {
				t.Errorf("the payer has the metadata %v, want %v", then.Extra().Metadata, p.Extra().Metadata)
			}
		}
	}
	if payers != 1 {
		t.Errorf("%d limits with metadata have a payer, want 1", payers)
	}
}

// If the limit that pays for another one has a mistake, only that mistake is reported.
func TestAPayerWithAMistake(t *testing.T) {
	text := bad(t, Options{}, "domain: d\nhash_tag: domain\nlimits:\n  plan: {algorithm: fixed_window, rate: 1, period: 1h, then: credits}\n"+
		"  credits: {algorithm: no, rate: 5, period: 1h}\ndescriptors: [{key: k, limit: plan}]\n")
	if strings.Contains(text, "\n") || !strings.Contains(text, "algorithm must be one of") {
		t.Errorf("got %s; want one mistake, of the algorithm", text)
	}
}
