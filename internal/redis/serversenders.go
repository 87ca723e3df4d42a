package redis

import (
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// detachedTimeout is the timeout of calls for detached batches. It is long because no caller waits for them, and
// because it stays unknown whether charges were consumed if the answer comes after the timeout.
const detachedTimeout = 250 * time.Millisecond

// serverSenders has the two senders to one server. long has a longer timeout: it sends detached batches, and
// groups so large that a healthy server may exceed the timeout. usual sends everything else. If usual has a timeout
// of detachedTimeout or more, long is the same sender.
type serverSenders struct {
	usual, long *sender
	node        *node // of usual
	wires       []*wire
}

func (w *serverSenders) Submit(b *backend.Batch) {
	switch {
	case mixed(b.Charges):
		w.divide(b)
	case b.Detached || len(b.Charges) > maxBatch && backend.GroupLen(b.Charges) > maxBatch:
		w.long.Submit(b)
	default:
		w.usual.Submit(b)
	}
}

func (w *serverSenders) signOfLife() {
	w.usual.signOfLife()
	if w.long != w.usual {
		w.long.signOfLife()
	}
}

// renew is called when another server has become the master.
func (w *serverSenders) renew() {
	for _, to := range w.wires {
		to.renew()
	}
	w.signOfLife()
}

func (w *serverSenders) close() {
	w.usual.close()
	w.long.close()
}

// mixed reports whether a batch must be divided, because it contains a group for the sender long and other groups,
// or a group that is too large.
func mixed(charges []backend.Charge) bool {
	if len(charges) <= maxBatch {
		return false
	}
	whole := len(charges)
	for len(charges) > 0 {
		n := backend.GroupLen(charges)
		if n > maxBatch && (n < whole || n > maxGroup) {
			return true
		}
		charges = charges[n:]
	}
	return false
}

// divide submits the groups of b in parts, one after the other. Each group that needs the sender long is a
// part, and so are all groups between two of them.
func (w *serverSenders) divide(b *backend.Batch) {
	d := &divided{serverSenders: w, whole: b}
	d.part.Done = func(*backend.Batch) { d.next() }
	d.next()
}

type divided struct {
	serverSenders *serverSenders
	whole         *backend.Batch
	at            int // the position of the first charge that has not been submitted
	known         int // the position of the first charge whose decision is not known
	part          backend.Batch
}

// next submits the next part, or ends the whole batch if all parts have ended. It answers a group of more than maxGroup
// charges with backend.ErrTooLarge, without submitting the group.
func (d *divided) next() {
	b := d.whole
	b.SetKnown(d.known, d.at)
	d.known = d.at
	for d.at < len(b.Charges) {
		from, n := d.at, backend.GroupLen(b.Charges[d.at:])
		large := n > maxBatch
		for !large && from+n < len(b.Charges) {
			more := backend.GroupLen(b.Charges[from+n:])
			if more > maxBatch {
				break
			}
			n += more
		}
		to := from + n
		d.at = to
		if n > maxGroup && large {
			fail(b.Decisions[from:to], fmt.Errorf("%w: %d; the maximum is %d", backend.ErrTooLarge, n, maxGroup))
			continue
		}
		p := &d.part
		p.Charges, p.Decisions = b.Charges[from:to], b.Decisions[from:to]
		p.Deadline, p.Source, p.Detached = b.Deadline, b.Source, b.Detached
		d.serverSenders.Submit(p)
		return
	}
	b.Done(b)
}
