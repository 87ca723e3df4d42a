package h2grpc

import "sync"

// aloft bounds what all connections together have in the air, so that what waits for the Store is decided here,
// where it is known who has sent it: each connection that waits is given a flight in its turn. A connection with
// little in the air never waits, so that one that sends much cannot make the others late.
type aloft struct {
	mu      sync.Mutex
	weight  int       // of what is in the air
	waiting []*flight // in the order in which they came; of a connection at most Config.Flights
}

// enter counts f as in the air; false: it waits, and conn.resume is called when it is its turn.
func (a *aloft) enter(f *flight) bool {
	w := f.batch.Weight()
	a.mu.Lock()
	defer a.mu.Unlock()
	f.aloft = w
	own := &f.conn.aloft
	free := len(a.waiting) == 0 && (a.weight == 0 || a.weight+w <= maxAloft)
	if !free && *own+w > ownAloft {
		a.waiting = append(a.waiting, f)
		return false
	}
	a.weight += w
	*own += w
	return true
}

// leave ends the flight of f, and sends those that wait for room. f still has its connection.
func (a *aloft) leave(f *flight) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.weight -= f.aloft
	f.conn.aloft -= f.aloft
	n := 0
	for ; n < len(a.waiting) && (a.weight == 0 || a.weight+a.waiting[n].aloft <= maxAloft); n++ {
		next := a.waiting[n]
		a.weight += next.aloft
		next.conn.aloft += next.aloft
		c := next.conn
		c.server.goroutines.Go(func() { c.resume(next) })
	}
	if n > 0 {
		rest := copy(a.waiting, a.waiting[n:])
		clear(a.waiting[rest:])
		a.waiting = a.waiting[:rest]
	}
}
