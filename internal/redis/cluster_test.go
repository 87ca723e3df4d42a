package redis

import "testing"

// The layout knows the sender of each slot, for any number of masters. Only 255 senders have a number. Slots of
// other senders are unknown and are looked up each time.
func TestTheLayoutKnowsTheSenderOfEachSlot(t *testing.T) {
	l, senders := &layout{}, make([]senderTo, 300)
	for slot := range slots {
		if got := l.sender(slot); got != nil {
			t.Fatalf("slot %d has a sender; want none before one is stored", slot)
		}
		l.note(slot, &senders[slot%len(senders)])
		if l.sender(slot) != nil {
			l.note(slot, &senders[0]) // like another goroutine that received an older layout
		}
	}
	for slot := range slots {
		want := &senders[slot%len(senders)]
		if slot%len(senders) >= maxIndexed {
			want = nil
		}
		if l.sender(slot) != want {
			t.Errorf("slot %d has another sender; want %v", slot, want)
		}
	}
}
