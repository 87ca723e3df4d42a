package redis

import (
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// detachedTimeout is the timeout of calls for detached batches. It is long because no caller waits for them, and
// because it stays unknown whether charges were consumed if the answer comes after the timeout.
const detachedTimeout = 250 * time.Millisecond

// serverSenders has the two senders to one server. long has a longer timeout, and sends detached batches. usual sends
// everything else. If usual has a timeout of detachedTimeout or more, long is the same sender. The circuit of long is open
// only while that of usual is: a refund that it refused, after usual has made the charge, would be lost.
type serverSenders struct {
	route       stores.Route // to this
	usual, long *sender
	node        *node // of usual
	wires       []*wire
}

func (w *serverSenders) Submit(b *backend.Batch) {
	if !b.Detached {
		w.usual.Submit(b)
		return
	}
	if w.long != w.usual && w.usual.works() {
		w.long.answeredElsewhere()
	}
	w.long.Submit(b)
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
