package redis

import "testing"

// The layout stores the senders of all slots for up to 255 senders. For slots of further senders it returns nil, so
// that they are looked up each time.
func TestTheLayoutKnowsTheSenderOfEachSlot(t *testing.T) {
	l, senders := &layout{}, make([]senderTo, 300)
	for slot := range slots {
		if got := l.sender(slot); got != nil {
			t.Fatalf("slot %d has a sender; want none before one is stored", slot)
		}
		l.note(slot, &senders[slot%len(senders)])
		if l.sender(slot) != nil {
			l.note(slot, &senders[0]) // as by another goroutine with an older answer; the first sender stays
		}
	}
	for slot := range slots {
		want := &senders[slot%len(senders)]
		if slot%len(senders) >= maxIndexed {
			want = nil
		}
		if l.sender(slot) != want {
			t.Errorf("slot %d has another sender than the one stored first, or one although the layout is full", slot)
		}
	}
}
