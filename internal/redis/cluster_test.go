package redis

import "testing"

// The layout knows the lane of each slot, for any number of masters. Only 255 lanes have a number. Slots of
// other lanes are unknown and are looked up each time.
func TestTheLayoutKnowsTheLaneOfEachSlot(t *testing.T) {
	l, lanes := &layout{}, make([]laneTo, 300)
	for slot := range slots {
		if got := l.lane(slot); got != nil {
			t.Fatalf("slot %d has a lane before it was noted", slot)
		}
		l.note(slot, &lanes[slot%len(lanes)])
		if l.lane(slot) != nil {
			l.note(slot, &lanes[0]) // as by another goroutine with an older answer
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
