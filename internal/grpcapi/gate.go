package grpcapi

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
)

// gate bounds what all requests that are served one by one hold while they are decoded and decided, by their
// weight (Batch.Weight). Beyond it requests wait, and each connection that waits is let in, in its turn. A
// connection with little inside never waits, so that one that sends much cannot make the others late.
//
// The requests of a Batch do not pass it: package h2grpc bounds them.
type gate struct {
	aside chan struct{} // requests that were not let in and are answered all the same, which does not wait

	mu      sync.Mutex
	weight  int                  // inside
	waiting int                  // bytes of the requests that wait
	conns   map[net.Addr]*client // those with something inside, or that wait; of one connection always the same pointer
	spare   []*client            // for others
	turns   []*client            // those that wait, the next one first
}

// client is one connection.
type client struct {
	addr    net.Addr
	weight  int // inside
	waiting []*ticket
}

// ticket is a request that waits.
type ticket struct {
	weight, bytes int
	state         ticketState   // guarded by gate.mu
	in            chan struct{} // is closed when it is let in
}

type ticketState uint8

const (
	waits ticketState = iota
	entered
	abandoned
)

// pass is a request inside, to be given to leave.
type pass struct {
	client *client
	weight int
}

const (
	// gateWeight is the most that is inside, and gateOwn what each connection may always have there.
	gateWeight, gateOwn = 2048, 64
	// gateBytes bounds the requests that wait: one more is not let in.
	gateBytes = 16 << 20
	// gateAside is how many requests are answered at once that were not let in.
	gateAside = 16
	// gatePatience is how long a request waits where Options does not say.
	gatePatience = 10 * time.Millisecond
	// gateMargin is the time kept of a caller's deadline to give the answer in.
	gateMargin = 2 * time.Millisecond
)

// enter waits until a request of ctx may be decoded, which has so many bytes. false: it may not, because the
// time is over or there are too many. Otherwise leave must follow.
func (g *gate) enter(ctx context.Context, patience time.Duration, weight, bytes int) (pass, bool) {
	weight = min(weight, gateWeight)
	p, t := g.line(clientOf(ctx), weight, bytes)
	if t == nil {
		return p, p.client != nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(deadline)-gateMargin)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-t.in:
	case <-timer.C:
	case <-ctx.Done():
	}
	return p, g.entered(t)
}

// clientOf tells the connections apart.
func clientOf(ctx context.Context) net.Addr {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr
	}
	return nil
}

// line lets a request in, or has it wait: then there is a ticket. There is no pass if it may do neither.
func (g *gate) line(addr net.Addr, weight, bytes int) (pass, *ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.client(addr)
	p := pass{c, weight}
	switch {
	case c.weight+weight <= gateOwn, len(g.turns) == 0 && (g.weight == 0 || g.weight+weight <= gateWeight):
		g.admit(p)
		return p, nil
	case g.waiting+bytes > gateBytes:
		g.forget(c)
		return pass{}, nil
	}
	t := &ticket{weight: weight, bytes: bytes, in: make(chan struct{})}
	g.waiting += bytes
	if c.waiting = append(c.waiting, t); len(c.waiting) == 1 {
		g.turns = append(g.turns, c)
	}
	return p, t
}

// client finds the connection from addr. mu is held.
func (g *gate) client(addr net.Addr) *client {
	if c := g.conns[addr]; c != nil {
		return c
	}
	var c *client
	if last := len(g.spare) - 1; last >= 0 {
		c, g.spare = g.spare[last], g.spare[:last]
	} else {
		c = &client{}
	}
	c.addr = addr
	if g.conns == nil {
		g.conns = map[net.Addr]*client{}
	}
	g.conns[addr] = c
	return c
}

// forget drops c if it has nothing inside, and nothing that waits. mu is held.
func (g *gate) forget(c *client) {
	const spare = 64
	if c.weight > 0 || len(c.waiting) > 0 {
		return
	}
	delete(g.conns, c.addr)
	if c.addr, c.waiting = nil, nil; len(g.spare) < spare {
		g.spare = append(g.spare, c)
	}
}

// admit counts p as inside. mu is held.
func (g *gate) admit(p pass) {
	g.weight += p.weight
	p.client.weight += p.weight
}

// entered reports whether t was let in; otherwise it waits no longer.
func (g *gate) entered(t *ticket) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.state == entered {
		return true
	}
	t.state = abandoned // it is removed in its turn
	g.waiting -= t.bytes
	return false
}

// leave ends a request, and lets others in.
func (g *gate) leave(p pass) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.weight -= p.weight
	p.client.weight -= p.weight
	g.forget(p.client)
	for len(g.turns) > 0 {
		c := g.turns[0]
		for len(c.waiting) > 0 && c.waiting[0].state == abandoned {
			c.waiting = c.waiting[1:]
		}
		if len(c.waiting) > 0 {
			next := c.waiting[0]
			if g.weight > 0 && g.weight+next.weight > gateWeight {
				return
			}
			c.waiting = c.waiting[1:]
			next.state = entered
			g.waiting -= next.bytes
			g.admit(pass{c, next.weight})
			close(next.in)
		}
		if g.turns = g.turns[1:]; len(c.waiting) > 0 {
			g.turns = append(g.turns, c) // after the others
		} else {
			g.forget(c)
		}
	}
}
