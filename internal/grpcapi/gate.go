package grpcapi

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
)

// gate bounds the total weight (see Batch.Weight) of the requests that are served one by one, while they are
// decoded and decided. Beyond the bound, requests wait, and the connections take turns. A connection whose
// admitted requests have little weight never waits. So a connection with many requests cannot delay other
// connections.
//
// Requests of a Batch do not pass the gate, because package h2grpc bounds them.
type gate struct {
	overflow chan struct{} // has an element for each request that is answered without being admitted; the capacity is gateOverflow

	mu      sync.Mutex
	weight  int                  // the weight of the admitted requests
	waiting int                  // the bytes of the waiting requests
	conns   map[net.Addr]*client // connections with admitted or waiting requests; requests of one connection share the pointer to its address
	spare   []*client
	turns   []*client // clients with waiting requests, in the order of their turns
}

// client is one connection.
type client struct {
	addr    net.Addr
	weight  int // the weight of its admitted requests
	waiting []*ticket
}

type ticket struct {
	weight, bytes int
	state         ticketState // guarded by gate.mu
	admitted      chan struct{}
}

type ticketState uint8

const (
	queued ticketState = iota
	entered
	abandoned
)

// pass represents an admitted request. The caller of enter must call leave with it.
type pass struct {
	client *client
	weight int
}

const (
	// gateWeight is the largest weight of all admitted requests. gateOwn is the weight that a connection may
	// have admitted even beyond gateWeight.
	gateWeight, gateOwn = 2048, 64
	// gateBytes bounds the bytes of the waiting requests. Further requests are answered as if the store had failed.
	gateBytes = 16 << 20
	// gateOverflow is the number of requests that may be answered concurrently without being admitted.
	gateOverflow        = 16
	defaultQueueTimeout = 10 * time.Millisecond
	// gateMargin is the time before a caller's deadline that is reserved for sending the answer.
	gateMargin = 2 * time.Millisecond
)

// enter waits until the request of ctx may be decoded. It returns false if that takes longer than timeout or
// leaves less than gateMargin before the deadline of ctx, if ctx ends, or if too many bytes wait. Otherwise the
// caller must call leave.
func (g *gate) enter(ctx context.Context, timeout time.Duration, weight, bytes int) (pass, bool) {
	weight = min(weight, gateWeight)
	p, t := g.admitOrQueue(clientOf(ctx), weight, bytes)
	if t == nil {
		return p, p.client != nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)-gateMargin)
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-t.admitted:
	case <-timer.C:
	case <-ctx.Done():
	}
	return p, g.entered(t)
}

// clientOf returns the address that identifies the connection of ctx, or nil if ctx has none.
func clientOf(ctx context.Context) net.Addr {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr
	}
	return nil
}

// admitOrQueue admits a request, or makes it wait and returns a ticket. If it can do neither, it returns an
// empty pass.
func (g *gate) admitOrQueue(addr net.Addr, weight, bytes int) (pass, *ticket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.client(addr)
	p := pass{c, weight}
	switch {
	case c.weight+weight <= gateOwn, len(g.turns) == 0 && g.weight+weight <= gateWeight:
		g.admit(p)
		return p, nil
	case g.waiting+bytes > gateBytes:
		g.release(c)
		return pass{}, nil
	}
	t := &ticket{weight: weight, bytes: bytes, admitted: make(chan struct{})}
	g.waiting += bytes
	if c.waiting = append(c.waiting, t); len(c.waiting) == 1 {
		g.turns = append(g.turns, c)
	}
	return p, t
}

// client returns the client of the connection from addr. mu is held.
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

// release removes c if it has neither admitted nor waiting requests. mu is held.
func (g *gate) release(c *client) {
	const spare = 64
	if c.weight > 0 || len(c.waiting) > 0 {
		return
	}
	delete(g.conns, c.addr)
	if c.addr, c.waiting = nil, nil; len(g.spare) < spare {
		g.spare = append(g.spare, c)
	}
}

// admit adds p to the weight of the admitted requests. mu is held.
func (g *gate) admit(p pass) {
	g.weight += p.weight
	p.client.weight += p.weight
}

func (g *gate) entered(t *ticket) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.state == entered {
		return true
	}
	t.state = abandoned // leave removes it when its turn comes
	g.waiting -= t.bytes
	return false
}

func (g *gate) leave(p pass) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.weight -= p.weight
	p.client.weight -= p.weight
	g.release(p.client)
	for len(g.turns) > 0 {
		c := g.turns[0]
		for len(c.waiting) > 0 && c.waiting[0].state == abandoned {
			c.waiting = c.waiting[1:]
		}
		if len(c.waiting) > 0 {
			next := c.waiting[0]
			if g.weight+next.weight > gateWeight {
				return
			}
			c.waiting = c.waiting[1:]
			next.state = entered
			g.waiting -= next.bytes
			g.admit(pass{c, next.weight})
			close(next.admitted)
		}
		if g.turns = g.turns[1:]; len(c.waiting) > 0 {
			g.turns = append(g.turns, c) // the next turn of this connection comes after the others
		} else {
			g.release(c)
		}
	}
}
