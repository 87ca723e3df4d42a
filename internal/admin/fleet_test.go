package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
)

// The page about the fleet lists sidecars with an old configuration first. The configuration that was loaded last counts
// as the current one.
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
			for name, is := range map[string]bool{" self": row.Self, " old": row.Old, " late": row.Late} {
				if is {
					text += name
				}
			}
			words = append(words, text)
		}
		return b, strings.Join(words, ", ")
	}
	b, rows := list(status.Fleet{Self: "b", Sidecars: []status.Sidecar{
		member("c", "new", -60, 1), member("a", "new", -3600, lateAfter+1),
		member("d", "old", -120, lateAfter), member("b", "new", -3600, 1),
	}})
	if want := "d old old, a new late, b new self, c new"; rows != want || !b.Old || b.More != "" || b.Problem != "" {
		t.Errorf("got %q, %+v; want %q", rows, b, want)
	}
	if want := "4 sidecars. 1 sidecar with a configuration other than the one that was loaded last."; b.Summary != want || b.Rows[0].Up != "2 hours" || b.Rows[0].Seen != "35 seconds ago" {
		t.Errorf("got %q, up %q, seen %q; want %q, 2 hours, 35 seconds ago", b.Summary, b.Rows[0].Up, b.Rows[0].Seen, want)
	}
	var crowd []status.Sidecar
	for i := range maxMembers + 2 {
		crowd = append(crowd, member(fmt.Sprint(i), "new", 0, 0))
	}
	b, _ = list(status.Fleet{Sidecars: crowd, Problem: "a\nb"})
	if len(b.Rows) != maxMembers || b.More != "2 more sidecars" || b.Old || b.Summary != "502 sidecars." || strings.Contains(b.Problem, "\n") || b.Problem == "" {
		t.Errorf("got %d rows, %q, %q, %q; want %d, 2 more, and a printable problem", len(b.Rows), b.More, b.Summary, b.Problem, maxMembers)
	}
	b, _ = list(status.Fleet{Sidecars: crowd[:maxMembers]})
	if len(b.Rows) != maxMembers || b.More != "" {
		t.Errorf("got %d rows, %q; want %d, and no more", len(b.Rows), b.More, maxMembers)
	}
}
