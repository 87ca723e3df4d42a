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
  - key: user
    value: replaced
    rate_limit: [{name: wide, unit: day, requests_per_unit: 10}, {name: narrow, unit: day, requests_per_unit: 1, replaces: [{name: wide}]}]
`)
	line := func(key string) string {
		return fmt.Sprintf(`{"time_us":0,"domain":"edge","descriptors":[{"entries":[["%s","x"]]}]}`, key) + "\n"
	}
	text, decisions := reportOn(t, Config{Snapshot: s, Format: JSONL}, line("user")+line("user")+strings.Replace(line("user"), `"x"`, `"replaced"`, 1)+line("other")+strings.Replace(line("x"), "edge", "nowhere", 1))
	for _, want := range []string{"requests  5, from", "denied    1 (20.00 %)", "no limit  1 matched none", "missing   1 had no entry", "edge/user (shadow)", "edge/wide           0 ", "edge/narrow         1 ", `"limits":[{"name":"narrow"`} {
		if all := text + decisions; !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
}
