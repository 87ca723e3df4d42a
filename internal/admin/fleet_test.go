package admin

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
)

// The page about the fleet marks sidecars that differ from most. Of two equally frequent configurations, the one that
// was loaded last counts as the usual one.
func TestTheFleetPage(t *testing.T) {
	now := began
	member := func(id, config string, loaded, age float64) status.Sidecar {
		return status.Sidecar{ID: id, Age: age, Report: status.Report{Config: config, Loaded: now.Add(time.Duration(loaded) * time.Second), Started: now.Add(-2 * time.Hour)}}
	}
	p := &pages{Config: Config{Now: func() time.Time { return now }}}
	list := func(f status.Fleet) (b fleetBody, rows string) {
		p.members(&b, &f)
		var words []string
		for _, row := range b.Rows {
			text := row.ID + " " + row.Config
			for i, is := range []bool{row.Self, row.Other, row.Late} {
				if is {
					text += []string{" self", " other", " late"}[i]
				}
			}
			words = append(words, text)
		}
		return b, strings.Join(words, ", ")
	}
	b, rows := list(status.Fleet{Self: "b", Sidecars: []status.Sidecar{
		member("a", "new", -60, lateAfter+1), member("b", "old", -120, 1), member("c", "old", -3600, lateAfter), member("d", "old", -3600, 1),
	}})
	if want := "a new other late, b old self, c old, d old"; rows != want || !b.Differ || b.More != "" {
		t.Errorf("got %q, %+v; want %q", rows, b, want)
	}
	if want := "4 sidecars. 1 sidecar with another configuration than most."; b.Summary != want || b.Rows[0].Up != "2 hours" || b.Rows[2].Seen != "35 seconds ago" {
		t.Errorf("got %q, up %q, seen %q; want %q, 2 hours, 35 seconds ago", b.Summary, b.Rows[0].Up, b.Rows[2].Seen, want)
	}
	if _, rows := list(status.Fleet{Sidecars: []status.Sidecar{member("a", "new", -60, 1), member("b", "old", -120, 1)}}); rows != "a new, b old other" {
		t.Errorf("during a rollout: %q", rows)
	}
	var crowd []status.Sidecar
	for i := range maxMembers + 2 {
		crowd = append(crowd, member(fmt.Sprint(i), "new", 0, 0))
	}
	if b, _ = list(status.Fleet{Sidecars: crowd}); len(b.Rows) != maxMembers || b.More != "2 more sidecars" || b.Differ || b.Summary != "502 sidecars." {
		t.Errorf("got %d rows, %q, %q; want %d, and 2 more", len(b.Rows), b.More, b.Summary, maxMembers)
	}
}

// While Redis does not answer, the page shows what was read last, and says so.
func TestTheStoreDuringAnOutage(t *testing.T) {
	c := fixture(t)
	c.Status = func(context.Context) status.Status {
		return status.Status{
			Store: status.Store{Kind: "redis", Problem: "no\nanswer", Timeout: 10_000, Median: 450, P99: 9500, Failures: 7,
				Servers: []status.Server{{Address: "a:1", Version: "Valkey 8.1", Role: "slave", Memory: 3 << 20, MaxMemory: 4 << 20, Eviction: "allkeys-lru"}}},
			Fleet: status.Fleet{Self: "x", AsOf: began, Sidecars: []status.Sidecar{{ID: "x", Report: status.Report{Link: "h:6070", Load: .5, AllowedRate: 3}}}},
		}
	}
	has(t, get(New(c), "/fleet", "").Body.String(), "Last known, as of 2001-09-09 01:46:40 UTC: no", "half within 450µs, 99 % within 9.5ms", "10ms (--backend-timeout)", "7 calls since the start",
		`class="hot">slave`, "3.0 MiB of 4.0 MiB (75 %)", `class="hot">allkeys-lru`, `<a href="http://h:6070/">x</a>`, "0.50", "3.0/s")
	has(t, get(New(fixture(t)), "/fleet", "").Body.String(), "the memory of this sidecar", "This sidecar is alone")
}
