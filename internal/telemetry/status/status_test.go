package status

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
)

func TestTheStateInOneLine(t *testing.T) {
	since := time.Unix(1e9, 0)
	refused := conditions.Condition{Name: "configuration-refused", Severity: conditions.Degraded, Headline: "New configuration refused, the old one stays"}
	slow := conditions.Condition{Name: "redis-slow", Severity: conditions.Degraded, Headline: "Redis too slow", Since: since}
	open := conditions.Condition{Name: "redis-breaker-open/a:1", Severity: conditions.Critical, Headline: "Redis gives no answer"}
	long := conditions.Condition{Name: "memory-full", Severity: conditions.Critical, Headline: strings.Repeat("ü", 200)}
	slowly := Traffic{Allowed: 290, Denied: 4267, Undecided: 12}
	flood := Traffic{Allowed: 29, Denied: 4267, MostlyBy: "per_key", HalfSince: since}
	for _, x := range []struct {
		list     []conditions.Condition
		notReady string
		traffic  Traffic
		want     string
	}{
		{nil, "", Traffic{}, "green Healthy: no requests now"},
		{nil, "", Traffic{Allowed: 1234.5}, "green Healthy: 0 of 1,234 requests/s denied"},
		{nil, "", Traffic{Allowed: 290, Denied: 6.2}, "green Healthy: 6.2 of 296 requests/s denied"},
		{nil, "", flood, "amber 4,267 of 4,296 requests/s denied, mostly by per_key"},
		{nil, "there is no configuration yet\n", Traffic{}, "red Not ready: there is no configuration yet"},
		{[]conditions.Condition{refused}, "", Traffic{Allowed: 1}, "amber New configuration refused, the old one stays"},
		{[]conditions.Condition{refused}, "", flood, "amber 4,267 of 4,296 requests/s denied, mostly by per_key"},
		{[]conditions.Condition{refused, slow}, "", flood, "red Redis too slow: 0 of 4,296 requests/s denied because of it (1 more)"},
		{[]conditions.Condition{slow}, "", slowly, "red Redis too slow: 12 of 4,557 requests/s denied because of it"},
		{[]conditions.Condition{open, slow}, "", Traffic{}, "red Redis gives no answer (1 more)"},
		{[]conditions.Condition{long, slow}, "", flood, "red " + strings.Repeat("ü", 82) + "… (1 more)"},
	} {
		l := LineOf(x.list, x.notReady, &x.traffic)
		if got := string(l.Level) + " " + l.Text; got != x.want || utf8.RuneCountInString(l.Text) > MaxText {
			t.Errorf("got %q; want %q", got, x.want)
		}
	}
	if l := LineOf([]conditions.Condition{slow}, "", &Traffic{}); l.Since != since {
		t.Errorf("since %v; want when the condition began", l.Since)
	}
}
