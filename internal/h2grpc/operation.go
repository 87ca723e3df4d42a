package h2grpc

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// operation is a Batch of requests of one connection, which arrived in one read. They have the same deadline,
// unless Config.Inline is set.
type operation struct {
	conn     *conn
	batch    Batch
	messages []byte    // copies of the messages, unless Config.Inline
	answers  []byte    // the messages of the answers
	requests []request // not reallocated while batch uses them
	arrived  time.Time
	deadline time.Time // the deadline of the callers, or an earlier one by Config.SubmitTimeout; zero means none
	weight   int       // the weight that is counted in outstanding
	size     int       // the size that is counted in conn.submitted

	state atomic.Int32
	done  func() // the method value of completed, made once because making it allocates
}

type request struct {
	id       uint32
	stream   *stream // nil if the request is not in conn.open
	canceled atomic.Bool
	finished bool // the Batch has computed the answer
	answered bool // the answer was sent, or is about to be sent
	message  []byte
	Answer
}

// These are the states of an operation. The reader submits it. If the Store completes the operation before the
// reader sets waitingForStore, the reader sends the answers. Otherwise the completing goroutine does.
const (
	submitting int32 = iota
	waitingForStore
	decided
	abandoned // Submit has panicked
)

const requestSize = int(unsafe.Sizeof(request{})) + streamBytes

func newOperation(b Batch) *operation {
	o := &operation{batch: b}
	o.done = o.completed
	return o
}

// submit submits an operation with requests of list. It moves these requests to the start of list and
// returns their number, or 0 if the connection was closed. c.mu is held, and released during the call.
func (c *conn) submit(list []arrival) (n int) {
	o := c.server.operations.Get().(*operation)
	c.mu.Unlock()
	n = o.fill(c, list)
	if !c.server.config.Inline && !c.enter(o) {
		c.mu.Lock()
		o.recycle()
		return 0
	}
	o.state.Store(submitting)
	if !c.attempt(func() { o.batch.Submit(o.deadline, &c.source, o.done) }) {
		c.abandon(o)
		return n
	}
	if o.state.Load() == decided {
		o.finish(false)
		c.mu.Lock()
		o.answer()
	} else if c.adopt(o) {
		return n
	}
	c.release(o)
	o.recycle()
	return n
}

// fill adds requests of list to o until its weight reaches maxWeight, and returns their number. Without
// Config.Inline it adds only requests that have the same deadline.
func (o *operation) fill(c *conn, list []arrival) (n int) {
	inline := c.server.config.Inline
	if !inline {
		list = list[:groupByDeadline(list)]
	}
	o.conn, o.arrived, o.deadline = c, c.now, time.Time{}
	if left := list[0].left; left > 0 && !inline { // after the deadline, the Batch has only what must be done nevertheless
		o.deadline = c.now.Add(left)
	}
	if cap(o.requests) < len(list) {
		o.requests = make([]request, 0, max(2*cap(o.requests), len(list)))
	}
	o.weight = 0
	for n < len(list) && o.weight < maxWeight {
		c.attempt(func() { // repeated after a panic
			for n < len(list) && o.weight < maxWeight {
				o.requests = o.requests[:n+1]
				a, r := &list[n], &o.requests[n]
				n++
				r.id, r.stream = a.id, a.stream
				message, canceled := a.message, (*atomic.Bool)(nil)
				if !inline {
					from := len(o.messages)
					o.messages = append(o.messages, a.message...) // if this reallocates, the batch still uses the former array
					message, canceled = o.messages[from:len(o.messages):len(o.messages)], &r.canceled
				}
				o.weight = o.batch.Add(message, o.arrived, a.left, canceled, a.trace)
			}
		})
	}
	o.size = len(o.messages) + n*requestSize
	return n
}

// groupByDeadline moves the requests with the same deadline as the first to the start of list, and returns their
// number.
func groupByDeadline(list []arrival) int {
	n := 1
	for i := 1; i < len(list); i++ {
		if list[i].left == list[0].left {
			list[n], list[i] = list[i], list[n]
			n++
		}
	}
	return n
}

// enter waits until o may be submitted or its deadline has passed. After the deadline, o is submitted too, so that
// its requests are answered, but not charged. enter returns false if the connection was closed during the wait.
func (c *conn) enter(o *operation) bool {
	all := &c.server.outstanding
	if !c.behind && all.enter(o, false) {
		return true
	}
	if timeout := c.server.config.SubmitTimeout; timeout > 0 {
		if due := o.arrived.Add(timeout); o.deadline.IsZero() || due.Before(o.deadline) {
			o.deadline = due
		}
	}
	if !o.late() && !all.enter(o, false) {
		c.mu.Lock()
		c.flush() // ready answers are written before waiting; this may block on the client
		c.behind = true
		if !all.enter(o, true) {
			c.awaitTurn(o)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		all.leave(o)
	}
	return !c.closed
}

// late reports whether the deadline of o has passed. If so, it sets the weight of o to 0, because its requests
// will not be charged.
func (o *operation) late() bool {
	if o.deadline.IsZero() || time.Now().Before(o.deadline) {
		return false
	}
	o.weight = 0
	return true
}

// awaitTurn waits until o, which is in outstanding.waiting, is admitted, or its deadline has passed.
func (c *conn) awaitTurn(o *operation) {
	var late <-chan time.Time
	if !o.deadline.IsZero() {
		timer := time.NewTimer(time.Until(o.deadline))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-c.share.room:
	case <-late:
		if c.server.outstanding.cancelWait(o) {
			o.weight = 0
		} else {
			<-c.share.room
		}
	}
}

// adopt answers the requests of o that are already decided, and makes streams for the remaining ones. o was
// submitted. If adopt returns true, o belongs to the goroutine that completes it. If it returns false, the Store
// has completed o meanwhile, and all requests are answered. When it returns, c.mu is held.
func (c *conn) adopt(o *operation) bool {
	o.finish(true)
	c.mu.Lock()
	for i := range o.requests {
		r := &o.requests[i]
		if r.answered {
			c.answer(o, i)
			continue
		}
		if r.stream == nil {
			r.stream = c.openComplete(r.id)
		}
		c.releaseBody(r.stream)
		r.stream.canceled = &r.canceled
	}
	c.operations++
	c.submitted += o.size
	if o.state.CompareAndSwap(submitting, waitingForStore) {
		return true
	}
	c.mu.Unlock()
	o.finish(false)
	c.mu.Lock()
	c.conclude(o)
	return false
}

// completed is the done function of Batch.Submit. If the reader has adopted o, completed answers the requests.
// Otherwise it leaves that to the reader.
func (o *operation) completed() {
	if o.state.CompareAndSwap(submitting, decided) || !o.state.CompareAndSwap(waitingForStore, decided) {
		return
	}
	c := o.conn
	o.finish(false)
	c.mu.Lock()
	c.conclude(o)
	c.mu.Unlock()
	c.release(o)
	o.recycle()
}

// conclude answers the requests of o that adopt has not answered, and no longer counts o as an operation in the
// Store. c.mu is held.
func (c *conn) conclude(o *operation) {
	o.answer()
	c.operations--
	c.submitted -= o.size
	c.changed.Broadcast()
}

func (c *conn) release(o *operation) {
	if !c.server.config.Inline {
		c.server.outstanding.leave(o)
	}
}

// abandon denies the requests of o after a panic in Submit. o is not reused, because the Store may still
// refer to it.
func (c *conn) abandon(o *operation) {
	o.state.Store(abandoned)
	c.mu.Lock()
	o.answer()
	c.release(o)
}

// finish computes the remaining answers from the decisions. If early is true, it does so only for requests that
// are Known, and marks them as answered.
func (o *operation) finish(early bool) {
	for next := 0; next < len(o.requests); {
		o.conn.attempt(func() { // repeated after a panic
			for next < len(o.requests) {
				i := next
				next++
				r := &o.requests[i]
				if r.answered || early && !o.batch.Known(i) {
					continue
				}
				r.answered = early
				from := len(o.answers)
				o.answers, r.Answer = o.batch.Finish(o.answers, i)
				r.message, r.finished = o.answers[from:], true // if the next answer reallocates, r keeps the former array
			}
		})
	}
}

// answer answers the requests that are not answered yet, except those whose stream was reset. conn.mu is held.
func (o *operation) answer() {
	c := o.conn
	for i := range o.requests {
		r := &o.requests[i]
		switch {
		case r.answered:
		case r.stream == nil || r.stream.open:
			c.answer(o, i)
		default:
			c.resetInStore--
			if r.Slots != "" {
				c.server.config.Method.Unused(r.Slots)
			}
		}
	}
}

// recycle keeps o for other requests. o must be completed, or never submitted. A Store may still read
// request.canceled.
func (o *operation) recycle() {
	const large = 64 << 10
	if cap(o.messages) > large {
		o.messages = nil
	}
	if cap(o.answers) > large {
		o.answers = nil
	}
	for i := range o.requests {
		r := &o.requests[i]
		r.stream, r.finished, r.answered, r.message, r.Answer = nil, false, false, nil, Answer{}
		if r.canceled.Load() {
			r.canceled.Store(false) // atomic, because a Store may still read it
		}
	}
	o.messages, o.answers, o.requests = o.messages[:0], o.answers[:0], o.requests[:0]
	o.batch.Reset()
	operations := &o.conn.server.operations
	o.conn = nil
	operations.Put(o)
}
