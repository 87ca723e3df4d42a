package adjust

import (
	"fmt"
	"testing"
	"time"
)

// Requests read a Set without a lock, so neither the removal of expired adjustments nor a change may change it.
func TestASetIsImmutable(t *testing.T) {
	was := NewSet(Head{Version: 1}, []*Adjustment{{ID: "a", Expires: 1}, {ID: "b", Expires: 3_000_001}})
	if is := was.Live(1); is.Len() != 1 || is.Find("b") == nil || is.Head != was.Head {
		t.Errorf("%d are left; want b", is.Len())
	}
	e := &Entry{Head: Head{2, "x"}, At: time.Unix(3, 0), Target: "c", After: &Adjustment{ID: "c", Expires: 4_000_000}}
	is := was.With(e)
	again := is.With(&Entry{Head: Head{3, "y"}, At: time.Unix(4, 0), Target: "b"})
	if is.Len() != 2 || is.Find("b") == nil || is.Find("c") != e.After || is.Head != e.Head {
		t.Errorf("the change leaves %v; want b, which has not expired, and c", is.All())
	}
	if again.Len() != 0 {
		t.Errorf("the deletion of b at the end of c leaves %v; want none", again.All())
	}
	if was.Len() != 2 || is.Len() != 2 || len(was.Changes(9)) != 0 || len(is.Changes(9)) != 1 {
		t.Error("a change has changed the set before it")
	}
}

func TestASetKeepsTheLastChanges(t *testing.T) {
	s := NewSet(Head{}, nil)
	for i := range uint64(MaxChanges + 3) {
		s = s.With(&Entry{Head: Head{i + 1, fmt.Sprint("id", i+1)}})
	}
	all := s.Changes(MaxChanges + 9)
	if len(all) != MaxChanges || all[0].Version != MaxChanges+3 || all[MaxChanges-1].Version != 4 {
		t.Fatalf("%d changes, from %d to %d; want %d, the newest first", len(all), all[0].Version, all[len(all)-1].Version, MaxChanges)
	}
	for head, want := range map[string]int{"1003 id1003": 0, "1001 id1001": 2, "4 id4": MaxChanges - 1, "3 id3": -1, "1001 other": -1, "": -1} {
		entries, known := s.since(head)
		if known != (want >= 0) || known && len(entries) != want || known && want > 0 && entries[0].Version != MaxChanges+4-uint64(want) {
			t.Errorf("since %q: %d entries, known %t; want %d (-1: not known)", head, len(entries), known, want)
		}
	}
}
