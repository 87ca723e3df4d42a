package redis

import (
	"bytes"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy is between a Store and a server, and damages answers as networks do. The script has already run when
// its answer is damaged. So if the Store sends the charge again, it is charged twice.
type proxy struct {
	Addr   string
	server string

	dials   atomic.Int64 // connections accepted
	scripts atomic.Int64 // answers of scripts, forwarded or damaged
	damaged atomic.Int64 // damaged answers of scripts

	mu     sync.Mutex
	rng    *rand.Rand
	faults faults            // guarded by mu
	conns  map[net.Conn]bool // guarded by mu
	turn   chan struct{}     // closed when faults change; guarded by mu
	closed bool              // guarded by mu
	done   sync.WaitGroup
}

type faults struct {
	share float64       // the share of the answers to scripts to which the faults close, reset and late apply
	close bool          // the connection is closed in place of the answer
	reset bool          // the connection is reset in place of the answer
	late  time.Duration // the delay of the answer
	hole  bool          // no bytes pass on any connection, in either direction
	far   time.Duration // the time of a round trip, also of a login
}

func startProxy(tb testing.TB, server string, seed uint64) *proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{
		Addr: l.Addr().String(), server: server, rng: rand.New(rand.NewPCG(seed, 4)),
		conns: map[net.Conn]bool{}, turn: make(chan struct{}),
	}
	p.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.dials.Add(1)
			p.done.Go(func() { p.serve(c) })
		}
	})
	tb.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		p.closed = true
		close(p.turn)
		p.turn = make(chan struct{})
		for c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.done.Wait()
	})
	return p
}

func (p *proxy) do(f faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = f
	close(p.turn)
	p.turn = make(chan struct{})
}

func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

func (p *proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	c.Close()
}

// through waits while no bytes may pass, and reports whether to continue.
func (p *proxy) through() bool {
	for {
		p.mu.Lock()
		hole, closed, turn := p.faults.hole, p.closed, p.turn
		p.mu.Unlock()
		if closed || !hole {
			return !closed
		}
		<-turn
	}
}

func (p *proxy) fault() (f faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rng.Float64() < p.faults.share {
		f = p.faults
	}
	return f
}

func (p *proxy) serve(client net.Conn) {
	if !p.keep(client) {
		return
	}
	defer p.drop(client)
	if !p.through() {
		return
	}
	server, err := net.Dial("tcp", p.server)
	if err != nil || !p.keep(server) {
		return
	}
	defer p.drop(server)
	answers := p.behind(client)
	defer close(answers)
	// The server's next bytes after a script call count as the script's answer.
	var script atomic.Bool
	p.done.Go(func() {
		defer server.Close()
		buffer := make([]byte, 1<<16)
		for {
			n, err := client.Read(buffer)
			if err != nil || !p.through() {
				return
			}
			if bytes.Contains(buffer[:n], []byte("evalsha\r\n")) || bytes.Contains(buffer[:n], []byte("eval\r\n")) {
				script.Store(true)
			}
			if _, err := server.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	buffer := make([]byte, 1<<16)
	for {
		n, err := server.Read(buffer)
		if err != nil || !p.through() {
			return
		}
		if script.Swap(false) {
			p.scripts.Add(1)
			f := p.fault()
			if f != (faults{}) {
				p.damaged.Add(1)
			}
			switch {
			case f.close:
				return
			case f.reset:
				_ = client.(*net.TCPConn).SetLinger(0)
				return
			case f.late > 0:
				time.Sleep(f.late)
			}
		}
		p.mu.Lock()
		due := time.Now().Add(p.faults.far)
		p.mu.Unlock()
		answers <- delayed{bytes.Clone(buffer[:n]), due}
	}
}

type delayed struct {
	text []byte
	due  time.Time
}

// behind returns a channel for bytes that are written to client when they are due. Bytes that follow each other closely
// are not delayed more than the first ones.
func (p *proxy) behind(client net.Conn) chan<- delayed {
	answers := make(chan delayed, 1000)
	p.done.Go(func() {
		for a := range answers {
			time.Sleep(time.Until(a.due))
			if _, err := client.Write(a.text); err != nil {
				client.Close()
			}
		}
	})
	return answers
}
