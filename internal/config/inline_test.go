package config

import (
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

func TestAnInlineLimitHasTheSettingsOfItsDomain(t *testing.T) {
	const file = "domain: d\non_backend_failure: local\nlocal_share: 50%\nlimits:\n  l: {algorithm: fixed_window, rate: 100, period: 1h}\n"
	d := good(t, Options{}, file).Domains["d"]
	const numbers = `{"algorithm": "fixed_window", "rate": 10, "period": "1h"}`
	p, err := Inline(d, "l", []byte(numbers))
	if err != nil {
		t.Fatal(err)
	}
	named := d.Named["l"]
	if p.OnFailure != limiter.Local || p.Extra().LocalShare != 0.5 || p.Extra().Local == nil || p.Extra().Local.Rate != 5 {
		t.Errorf("got %v with %+v; want local decisions on half of the limit", p.OnFailure, p.Extra())
	}
	if p.Index != -1 || p.Place != (limiter.Place{}) || p.StatKey != "" || p.Prefix == named.Prefix || p.Owner == named.Owner {
		t.Errorf("got %+v; want no number, no place, and other buckets than the named limit", p)
	}
	for _, key := range []string{"then", "max_delay", "penalty", "name", "time_zone"} {
		text := strings.Replace(numbers, "{", `{"`+key+`": "1s", `, 1)
		if _, err := Inline(d, "l", []byte(text)); err == nil || !strings.Contains(err.Error(), "unknown field") {
			t.Errorf("%s: got %v; want an unknown field", key, err)
		}
	}
}
