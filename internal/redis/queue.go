package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const (
	// maxBatch is the largest number of charges in one call, unless a single group has more. While a server
	// runs a call it serves no other client. A call that takes longer than its timeout counts as a failure.
	maxBatch = 256
	// maxGroup is the largest number of charges in one group. A group is never divided, so a larger one is
	// answered ErrTooLarge.
	maxGroup = 1024
	// maxWaiting is the largest number of charges that may wait for one server. A larger batch is accepted if no
	// other charges wait.
	maxWaiting = 65_536
	// minBatch is the number of charges that a call may have however slow the server is. With fewer, most of its time
	// would be the cost of a call.
	minBatch = 32
	// portion is how many full calls a server should decide within the timeout of a call. A batch that comes while two
	// full calls are in flight waits for both, and for its own call.
	portion = 8
	// maxCalls is the largest number of calls in flight to a near server. With two, the server works on one while
	// the other is on the network. With more, each call would carry fewer charges, so each charge would cost
	// more.
	maxCalls = 2
	// farCalls is the largest number of calls in flight to a server whose round trip takes longer than nearTrip. So
	// a batch that comes while calls are in flight waits for a sixteenth of a round trip instead of up to a whole one. It
	// waits for nearTrip at least: a far server gets no more calls a second than a near one.
	// If the server has work for a round trip besides two full calls, more calls would only wait there. So a near server that
	// once took long for a small call, and counts as far, decides in time under overload.
	farCalls = 16
	nearTrip = time.Millisecond
)

// queue decides when a call to one server starts, and which groups the call carries. It is a state machine
// without a clock, a lock, a timer or a goroutine.
//
// If no call is in flight, the first batch starts a call at once. While one is in flight, batches wait. The next
// call starts when it has ended, when it has been in flight for half of timeout, or when enough charges wait to
// fill a call. Large calls cost less for each charge, but one late call must not delay all other charges. To a far
// server more calls may be in flight, and the next one starts earlier (farCalls).
//
// fill takes charges from the sources in turn. A batch with more charges than fit into a call is sent in
// several calls, one after the other, so that its groups are decided in their order. A batch that the server would
// probably decide too late is refused (hopeless), or its groups are not sent (tooLate).
type queue struct {
	timeout  time.Duration // the timeout of one call
	maxCalls int
	maxBatch int
	maxWait  int // the largest number of waiting charges

	inFlight  int
	started   time.Time     // when the last call started
	ended     time.Time     // when the last call was answered
	usual     time.Duration // a moving average of the durations of calls
	trip      time.Duration // the shortest duration of a small call with no other in flight, which is about that of a round trip
	tripIsOld bool          // the next such call replaces trip, even if it takes longer
	pace      time.Duration // the server's time for a charge in large calls; 0 if unknown
	armed     bool          // a call of tick is scheduled
	sent      int           // the number of charges in flight
	waiting   int           // the number of charges that wait in places
	suspended int           // the number of charges that wait until an earlier part of the same batch has been answered

	places      map[*backend.Source]*place
	first, last *place // the sources in the order of their turns
	sources     int    // the length of that list
	freePlaces  *place
	freeEntries *entry
}

// place is the queue of the entries of one source.
type place struct {
	source      *backend.Source
	first, last *entry
	waiting     int // the number of charges of these entries
	next        *place
}

// entry is a batch that waits or is in flight. At any time, at most one call carries charges of it.
type entry struct {
	batch   *backend.Batch
	since   time.Time // when the batch was submitted
	at      int       // the index of the first charge that has not been sent
	end     int       // the index of the first charge that is never sent, because it would be decided too late
	in      bool      // a call that is being filled or is in flight carries charges of the batch
	charged bool      // that call carries charges of the batch that are not resets
	next    *entry
}

func (e *entry) left() int { return e.end - e.at }

// call has the charges of one call to the server. Its slices are reused.
type call struct {
	runs    []run
	entries []*entry
	charges int
	started time.Time
	alone   bool             // no other call was in flight when it started
	leads   bool             // the goroutine that starts the call waits for its end
	ended   []*backend.Batch // batches whose decisions are complete
	sources []*backend.Source
	permit  effect
	payload payload
}

// run is a sequence of adjacent charges of one batch: those with the positions from <= i < to.
type run struct {
	batch    *backend.Batch
	from, to int
}

// joined returns runs with r appended. If r follows the last one, they become one run.
func joined(runs []run, r run) []run {
	if last := len(runs) - 1; last >= 0 && runs[last].batch == r.batch && runs[last].to == r.from {
		runs[last].to = r.to
		return runs
	}
	return append(runs, r)
}

// add appends n charges of e, which start at e.at.
func (c *call) add(e *entry, n int) {
	c.runs = joined(c.runs, run{e.batch, e.at, e.at + n})
	c.charges += n
	e.charged = e.charged || !e.batch.Charges[e.at].Reset
	if !e.in {
		e.in = true
		c.entries = append(c.entries, e)
	}
}

func (c *call) fail(err error) {
	for _, r := range c.runs {
		fail(r.batch.Decisions[r.from:r.to], err)
	}
}

// markKnown marks the decisions of the call as known, for batches that need further calls.
func (c *call) markKnown() {
	for _, r := range c.runs {
		if r.to-r.from < len(r.batch.Charges) {
			r.batch.SetKnown(r.from, r.to)
		}
	}
}

// effects are the actions that the caller must take after an event.
type effects struct {
	start     bool          // fill and send a call
	tickAfter time.Duration // call tick after this time; 0 means never
}

var (
	errTooLarge = fmt.Errorf("%w: the maximum is %d", backend.ErrTooLarge, maxGroup)
	errFull     = fmt.Errorf("%w: its queue is full", backend.ErrNotTaken)
	errBusy     = fmt.Errorf("%w: the server gets more charges than it can decide in time", backend.ErrNotTaken)
	errLate     = fmt.Errorf("%w: not sent in time: %w", backend.ErrNotTaken, context.DeadlineExceeded)
	errCanceled = fmt.Errorf("%w: not sent: %w", backend.ErrNotTaken, context.Canceled)
)

func newQueue(timeout time.Duration) queue {
	return queue{timeout: timeout, maxCalls: maxCalls, maxBatch: maxBatch, maxWait: maxWaiting, places: map[*backend.Source]*place{}}
}

// idle reports whether no call is in flight. Then no charge waits.
func (q *queue) idle() bool { return q.inFlight == 0 }

// submit adds b, which must have charges. If submit returns an error, the queue does not contain b.
func (q *queue) submit(b *backend.Batch, now time.Time) (effects, error) {
	if queued := q.waiting + q.suspended; queued > 0 && queued+len(b.Charges) > q.maxWait {
		return effects{}, errFull
	}
	if q.idle() && now.Sub(q.started) > q.timeout { // the last calls may have failed in an outage that is over
		q.usual, q.pace, q.tripIsOld = 0, 0, true
	}
	room := q.room(b, now)
	if room == 0 {
		return effects{}, errBusy
	}
	e := q.freeEntries
	if e == nil {
		e = &entry{}
	} else {
		q.freeEntries = e.next
	}
	*e = entry{batch: b, since: now, end: room}
	refuse(b, room, len(b.Charges), errBusy)
	q.enqueue(e)
	return q.startDue(now), nil
}

// tick starts a call if one is due. It must be called when the time effects.tickAfter has passed.
func (q *queue) tick(now time.Time) effects {
	q.armed = false
	return q.startDue(now)
}

// callEnded records that a call has ended, and starts another one if one is due.
func (q *queue) callEnded(now time.Time) effects {
	q.inFlight--
	return q.startDue(now)
}

func (q *queue) startDue(now time.Time) effects {
	most, pause := q.maxCalls, q.timeout/2
	beyond := time.Duration(q.sent-maxCalls*q.size()) * q.pace // the work in flight, without that of two full calls
	if q.trip > nearTrip && beyond < q.trip {
		most, pause = max(most, farCalls), min(pause, max(nearTrip, q.trip/farCalls))
	}
	switch out := now.Sub(q.started); {
	case q.waiting == 0 || q.inFlight >= most:
		return effects{}
	case q.inFlight == 0 || out >= pause || q.waiting >= q.size():
		q.inFlight++
		q.started = now
		return effects{start: true}
	case q.armed:
		return effects{}
	default:
		q.armed = true
		return effects{tickAfter: pause - out}
	}
}

func (q *queue) enqueue(e *entry) {
	source := e.batch.Source
	p := q.places[source]
	if p == nil {
		if p = q.freePlaces; p == nil {
			p = &place{}
		} else {
			q.freePlaces = p.next
		}
		*p = place{source: source}
		q.places[source] = p
		q.sources++
		q.push(p)
	}
	if p.first == nil {
		p.first = e
	} else {
		p.last.next = e
	}
	p.last = e
	q.add(p, e.left())
}

// add adds n to the number of waiting charges of p.
func (q *queue) add(p *place, n int) {
	p.waiting += n
	q.waiting += n
}

func (q *queue) push(p *place) {
	p.next = nil
	if q.first == nil {
		q.first = p
	} else {
		q.last.next = p
	}
	q.last = p
}

func (p *place) dequeue() {
	e := p.first
	p.first, e.next = e.next, nil
}

func (q *queue) release(e *entry) {
	*e = entry{next: q.freeEntries}
	q.freeEntries = e
}

// fill fills c, an empty call. It returns false if no group remains to be sent; then the call is over. In
// both cases c.ended gets the batches that need no answer of the server.
func (q *queue) fill(c *call, now time.Time) bool {
	full, size := false, q.size()
	for !full && q.waiting > 0 {
		p := q.first
		if p.first == nil {
			q.removeFirst()
			continue
		}
		room := size - c.charges
		share := room // if all waiting charges fit, each batch stays one run
		if q.waiting > room {
			share = max(1, room/q.sources)
		}
		if full = !q.serve(c, p, share, size, now); !full && q.first.next != nil {
			q.first = p.next
			q.push(p)
		}
	}
	for _, e := range c.entries { // the rest of these batches must wait until the server has answered the part in c
		if p := q.places[e.batch.Source]; p != nil && p.first == e {
			q.suspend(p)
		}
	}
	for q.first != nil && q.first.first == nil {
		q.removeFirst()
	}
	if len(c.runs) == 0 {
		q.inFlight--
		return false
	}
	c.started, c.alone = now, q.inFlight == 1
	q.sent += c.charges
	return true
}

// removeFirst removes the first source, which has no more entries, from the order of turns.
func (q *queue) removeFirst() {
	p := q.first
	q.first = p.next
	q.sources--
	delete(q.places, p.source)
	*p = place{next: q.freePlaces}
	q.freePlaces = p
}

// suspend removes the first entry of p until the server has answered the part of its batch that is in
// flight.
func (q *queue) suspend(p *place) {
	n := p.first.left()
	q.add(p, -n)
	q.suspended += n
	p.dequeue()
}

// serve moves groups of p to c, until at least quota charges are moved. It returns false if c is full. Then p
// is the first again at the next call.
func (q *queue) serve(c *call, p *place, quota, size int, now time.Time) bool {
	for quota > 0 && p.first != nil {
		e := p.first
		b := e.batch
		if q.tooLate(e, now) {
			q.skip(p, e, e.left(), errLate)
		}
		for quota > 0 && e.left() > 0 {
			n, err := group(b, e.at)
			switch {
			case err != nil:
				q.skip(p, e, n, err)
				continue
			case c.charges > 0 && c.charges+n > size:
				return false
			case b.Charges[e.at].Reset && e.charged: // the server runs the resets of a call first, so this reset must wait for the next call
				q.suspend(p)
				return true
			}
			c.add(e, n)
			e.at += n
			q.add(p, -n)
			quota -= n
		}
		if e.left() > 0 {
			return true
		}
		p.dequeue()
		if !e.in {
			c.ended = append(c.ended, b)
			q.release(e)
		}
	}
	return true
}

// room returns how many of b's charges the server can probably decide in time. They are those of the first groups.
// Without this bound, a server that gets more charges than it can decide would decide each of them just before or after
// its deadline, and the callers would get few of its decisions.
//
// The sources are served in turn, so b waits for its own source, and for as many charges of each other one. It also
// waits for the calls in flight. A Detached batch always waits, because a late refund is better than none.
func (q *queue) room(b *backend.Batch, now time.Time) int {
	most := len(b.Charges)
	if b.Deadline.IsZero() || b.Detached || q.pace == 0 || q.idle() {
		return most
	}
	own, sources := 0, q.sources
	if p := q.places[b.Source]; p != nil {
		own = p.waiting
	} else {
		sources++
	}
	fits := int(b.Deadline.Sub(now)/q.pace) - q.sent - q.suspended
	fits = max(fits, q.size())
	fits = max(fits/sources-own, fits*3/4-q.waiting) // of the time for all sources, a part is for variations
	if fits >= most {
		return most
	}
	for n := 0; ; {
		next, _ := group(b, n)
		if n+next > fits {
			return n
		}
		n += next
	}
}

// tooLate reports whether e must not be sent any more. That is so after its deadline, and when its call would probably
// be answered after its deadline. But a batch that has waited for at most half of its time is always sent. So
// calls go on, however long they take, and q.usual follows a server that has become faster. A Detached batch is sent
// until its deadline.
func (q *queue) tooLate(e *entry, now time.Time) bool {
	if e.batch.Deadline.IsZero() {
		return false
	}
	left := e.batch.Deadline.Sub(now)
	return left < 0 || left < q.usual && left < now.Sub(e.since) && !e.batch.Detached
}

// size returns the largest number of charges in a call, unless a single group has more.
func (q *queue) size() int {
	if q.pace == 0 {
		return q.maxBatch
	}
	return min(q.maxBatch, max(minBatch, int(q.timeout/portion/q.pace)))
}

// took learns from the call c, which was answered or has failed now. The server has worked on c since it was sent, or
// since it answered the call before. That includes the time on the network, if it answered that call before c arrived.
// So the shortest of several times counts, and small calls do not. Nor does a call that has failed before its timeout:
// the server has not decided it. A call that fails at its timeout is no answer: calls that started one after the other
// fail so, too, whatever the server does.
func (q *queue) took(c *call, now time.Time, failed bool) {
	took := now.Sub(c.started)
	q.usual += (took - q.usual) / 8
	if c.alone && c.charges < minBatch && !failed && (took < q.trip || q.trip == 0 || q.tripIsOld) {
		q.trip, q.tripIsOld = took, false
	}
	since := c.started
	if !failed {
		if q.ended.After(since) {
			since = q.ended
		}
		q.ended = now
	}
	if c.charges < minBatch || failed && now.Sub(c.started) < q.timeout {
		return
	}
	pace := max(1, now.Sub(since)/time.Duration(c.charges))
	if q.pace > 0 {
		pace = min(pace, q.pace+q.pace/8+1)
	}
	q.pace = pace
}

// errKnown marks a group that has been answered already.
var errKnown = errors.New("known")

// group returns the number of charges in the group that starts at charge i, and an error if it must not be
// sent. A dry run of a bucket and a following refund to the same bucket form one group, because the caller
// compares the states before and after the refund.
func group(b *backend.Batch, i int) (int, error) {
	c := &b.Charges[i]
	n := backend.GroupLen(b.Charges[i:])
	if c.Terms.DryRun && n == 1 && i+1 < len(b.Charges) {
		if next := &b.Charges[i+1]; next.Terms.Cost < 0 && next.Slot == c.Slot && bytes.Equal(next.Key, c.Key) {
			n += backend.GroupLen(b.Charges[i+1:])
		}
	}
	switch {
	case b.Known != nil && b.Known[i].Load():
		return n, errKnown
	case c.Canceled != nil && c.Canceled.Load():
		return n, errCanceled
	case n > maxGroup:
		return n, errTooLarge
	default:
		return n, nil
	}
}

// skip answers the next n charges of e with err, without sending them. Charges that have been answered
// already keep their decisions.
func (q *queue) skip(p *place, e *entry, n int, err error) {
	refuse(e.batch, e.at, e.at+n, err)
	e.at += n
	q.add(p, -n)
}

// refuse answers charges of b with err. Charges that have been answered already keep their decisions.
func refuse(b *backend.Batch, from, to int, err error) {
	for i := from; i < to; i++ {
		if !b.IsKnown(i) {
			b.Decisions[i] = backend.Decision{Err: err}
		}
	}
}

// complete receives c after the call was answered or has failed. It moves completed batches to c.ended, and the
// other batches back to the waiting ones. The call still counts as in flight until callEnded is called.
func (q *queue) complete(c *call) {
	for i, e := range c.entries {
		e.in, e.charged = false, false
		if e.left() == 0 {
			c.ended = append(c.ended, e.batch)
			q.release(e)
		} else {
			q.suspended -= e.left()
			q.enqueue(e)
		}
		c.entries[i] = nil
	}
	q.sent -= c.charges
	clear(c.runs)
	c.runs, c.entries, c.charges = c.runs[:0], c.entries[:0], 0
}

// drain answers all waiting batches with err. It returns ended with these batches appended.
func (q *queue) drain(err error, ended []*backend.Batch) []*backend.Batch {
	for ; q.first != nil; q.removeFirst() {
		for p := q.first; p.first != nil; {
			e := p.first
			q.skip(p, e, e.left(), err)
			ended = append(ended, e.batch)
			p.dequeue()
			q.release(e)
		}
	}
	return ended
}
