package h2grpc

import "time"

// slotAnswers remembers the latest answers of a connection that have slots (see Answer.Slots), because a client may
// reset a call after the server has written the answer, and then does not use the answer. It is empty on connections
// whose answers have no slots.
type slotAnswers struct {
	ids   map[uint32]string // by stream
	order []slotAnswer      // the oldest first
	bytes int               // the approximate memory of order and ids
}

type slotAnswer struct {
	stream uint32
	size   int
	at     time.Time
}

// remember records that the answer on a stream has the slots with an id. c.mu is held.
func (c *conn) remember(stream uint32, id string) {
	if id == "" {
		return
	}
	a := &c.slotAnswers
	if a.ids == nil {
		a.ids = map[uint32]string{}
	}
	now := time.Now()
	a.ids[stream] = id
	size := len(id) + slotAnswerBytes
	a.order = append(a.order, slotAnswer{stream, size, now})
	a.bytes += size
	a.forget(now, c.allowance())
	c.count()
}

// forget removes the answers that are too old, and the oldest ones beyond the bounds. most is a bound of the memory, in
// addition to slotBytesKept.
func (a *slotAnswers) forget(now time.Time, most int) {
	for len(a.order) > 0 {
		first := a.order[0]
		if len(a.order) <= slotAnswersKept && a.bytes <= min(slotBytesKept, most) && now.Sub(first.at) < answerAge {
			return
		}
		delete(a.ids, first.stream)
		a.bytes -= first.size
		a.order = a.order[1:]
	}
	*a = slotAnswers{}
}

// returnSlots reports the slots of an answer to the Method, because the answer is not used: its stream was reset.
// c.mu is held.
func (c *conn) returnSlots(stream uint32) {
	if len(c.slotAnswers.ids) == 0 {
		return
	}
	c.slotAnswers.forget(time.Now(), c.allowance())
	if id := c.slotAnswers.ids[stream]; id != "" {
		delete(c.slotAnswers.ids, stream)
		c.server.config.Method.Unused(id)
	}
}
