package simulate

import (
	"fmt"
	"strings"
	"testing"
)

func TestTheReportCountsEachKindOfRequest(t *testing.T) {
	s := compiled(t, `
domain: edge
require: [user]
descriptors:
  - {key: user, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
`)
	line := func(key string) string {
		return fmt.Sprintf(`{"time_us":0,"domain":"edge","descriptors":[{"entries":[["%s","x"]]}]}`, key) + "\n"
	}
	text, _ := reportOn(t, Config{Snapshot: s, Format: JSONL}, line("user")+line("user")+line("other")+strings.Replace(line("x"), "edge", "nowhere", 1))
	for _, want := range []string{"requests  4, from", "denied    1 (25.00 %)", "no limit  1 matched none", "missing   1 had no entry", "edge/user (shadow)"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
