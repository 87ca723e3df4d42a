package redis

import "testing"

// TestTheLayoutKnowsTheLaneOfEachSlot for any number of masters. Slots of lanes beyond the last one that has a number
// are not known, and are looked up each time.
func TestTheLayoutKnowsTheLaneOfEachSlot(t *testing.T) {
	l, lanes := &layout{}, make([]laneTo, 300)
	for slot := range slots {
		if got := l.lane(slot); got != nil {
			t.Fatalf("slot %d has a lane before it was noted", slot)
		}
		l.note(slot, &lanes[slot%len(lanes)])
		if l.lane(slot) != nil {
			l.note(slot, &lanes[0]) // by another goroutine, with the answer of an earlier moment
		}
	}
	for slot := range slots {
		want := &lanes[slot%len(lanes)]
		if slot%len(lanes) >= maxIndexed {
			want = nil
		}
		if l.lane(slot) != want {
			t.Errorf("slot %d has another lane", slot)
		}
	}
}
