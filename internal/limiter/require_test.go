package limiter_test

import (
	"testing"
)

const requiring = `
domain: d
require: [[user, team], model]
descriptors:
  - {key: generic_key, value: always, rate_limit: {algorithm: token_bucket, rate: 10, period: 1m}}
  - {key: user, rate_limit: {algorithm: token_bucket, rate: 10, period: 1m}}
`

func TestARequestWithoutARequiredEntryIsDeniedAndChargesNothing(t *testing.T) {
	for _, test := range []struct {
		name        string
		descriptors []string
		missing     string
	}{
		{"all there", []string{"generic_key=always", "user=bob", "model=large"}, ""},
		{"the alternative", []string{"generic_key=always", "team=red", "model=large"}, ""},
		{"in one descriptor", []string{"route=a,user=bob,model=large"}, ""},
		{"one is missing", []string{"generic_key=always", "model=large"}, "user or team"},
		{"the other is missing", []string{"generic_key=always", "user=bob"}, "model"},
		{"an empty value", []string{"generic_key=always", "user=", "model=large"}, "user or team"},
		{"a value of blanks", []string{"generic_key=always", "user= \t ", "model=large"}, "user or team"},
		{"a key that only looks alike", []string{"generic_key=always", "users=bob", "model=large"}, "user or team"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, requiring)
			c := b.send(t, 1, test.descriptors...)
			if got := c.Missing.String(); got != test.missing || c.Denied != (test.missing != "") {
				t.Errorf("missing %q, denied %t; want missing %q, denied %t", got, c.Denied, test.missing, test.missing != "")
			}
			if !c.Denied {
				return
			}
			if c.RetryAfter != 0 || !c.Never || len(c.Results) > 0 || len(c.Statuses) != len(test.descriptors) {
				t.Errorf("%+v: want a denial for good, of no limit, with a status for each descriptor", c.Verdict)
			}
			if left := b.send(t, 0, "generic_key=always", "user=bob", "model=large").Results[0].Decision.Remaining; left != 10 {
				t.Errorf("%d left, want 10: a denial costs nothing", left)
			}
		})
	}
}
