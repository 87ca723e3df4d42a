package shared

import (
	"fmt"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
)

func TestRecentEntries(t *testing.T) {
	head := func(version uint64) adjust.Head {
		return adjust.Head{Version: version, MAC: fmt.Sprint("mac", version)}
	}
	r := recent{base: head(10)}
	if entries, known := r.after(head(10)); !known || len(entries) != 0 {
		t.Errorf("at the base: %d entries, %t; want none, and known", len(entries), known)
	}
	for version := uint64(11); version <= 260; version++ {
		e := &adjust.Entry{Version: version, MAC: fmt.Sprint("mac", version), Target: fmt.Sprint("t", version/2), After: &adjust.Adjustment{}}
		if version%2 == 1 { // the entry before has set this adjustment
			e.After = nil
		}
		r.add(e)
		if len(r.entries) > maxRecent {
			t.Fatalf("%d entries are remembered; want at most %d", len(r.entries), maxRecent)
		}
	}
	for version, want := range map[uint64]int{159: -1, 160: 100, 161: 99, 200: 60, 259: 1, 260: 0, 261: -1} {
		entries, known := r.after(head(version))
		if known != (want >= 0) || known && len(entries) != want || known && want > 0 && entries[0].Version != version+1 {
			t.Errorf("after %d: %d entries, known %t; want %d (-1: not known)", version, len(entries), known, want)
		}
	}
	if _, known := r.after(adjust.Head{Version: 200, MAC: "another"}); known {
		t.Error("an entry with another signature is known")
	}
	for target, want := range map[string]bool{"t100": true, "t130": false, "t79": false, "t10": false} {
		if r.deleted(target) != want {
			t.Errorf("%s deleted: %t; want %t", target, !want, want)
		}
	}
}
