package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

const (
	// maxSentinelReply is the largest size of a reply of a Sentinel. The largest one describes all other Sentinels, with
	// a kilobyte for each.
	maxSentinelReply = 1 << 20
	sentinelDepth    = 2 // of the arrays in such a reply
)

// sentinelConn is a connection to a Sentinel. The client of go-redis for Sentinels cannot be used: its goroutine for
// messages panics at a message of another form than it expects, and so ends the process.
type sentinelConn struct {
	net.Conn
	have []byte      // what has arrived and is not received
	stop func() bool // ends the wait for the end of the Store, which closes the connection
}

func (w *sentinels) dialSentinel(addr string) (*sentinelConn, error) {
	nc, err := w.dial(w.closing, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &sentinelConn{Conn: nc}
	c.stop = context.AfterFunc(w.closing, func() { nc.Close() })
	if w.password != "" {
		if _, err := c.call("AUTH", cmp.Or(w.username, "default"), w.password); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

func (c *sentinelConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// send sends a command, and sets the time by which its reply must have arrived.
func (c *sentinelConn) send(command ...string) error {
	_ = c.SetDeadline(time.Now().Add(sentinelPoll / 2))
	args := make([]any, len(command))
	for i, arg := range command {
		args[i] = arg
	}
	_, err := c.Write(appendCommand(nil, args))
	return err
}

// call sends a command and returns its reply. An error reply is a refusal.
func (c *sentinelConn) call(command ...string) (reply, error) {
	if err := c.send(command...); err != nil {
		return reply{}, err
	}
	return c.receive()
}

// receive waits for a reply and returns it.
func (c *sentinelConn) receive() (reply, error) {
	for {
		r, size, err := parseReply(c.have, sentinelDepth)
		c.have = c.have[size:] // r has the memory before it
		switch {
		case err != nil:
			return r, err
		case size > 0 && r.kind == '-':
			return r, refusal(r.text)
		case size > 0:
			return r, nil
		case len(c.have) > maxSentinelReply:
			return r, fmt.Errorf("redis: invalid reply: a Sentinel sent more than %d bytes", maxSentinelReply)
		}
		c.have = slices.Grow(c.have, max(4096, len(c.have)))
		n, err := c.Read(c.have[len(c.have):cap(c.have)])
		if c.have = c.have[:len(c.have)+n]; n == 0 && err != nil {
			return r, err
		}
	}
}

// at returns the text of element i of an array.
func (r *reply) at(i int) string {
	if i >= len(r.elements) {
		return ""
	}
	return r.elements[i].text
}

// field returns the value of a name in an array of names and values.
func (r *reply) field(name string) string {
	for i := 0; i+1 < len(r.elements); i += 2 {
		if r.elements[i].text == name {
			return r.elements[i+1].text
		}
	}
	return ""
}

// attend polls the Sentinel at addr and receives its messages, until a connection fails.
func (w *sentinels) attend(addr string) error {
	queries, err := w.dialSentinel(addr)
	if err != nil {
		return err
	}
	defer queries.Close()
	if err := w.query(queries, addr); err != nil {
		return err
	}
	messages, err := w.dialSentinel(addr)
	if err != nil {
		return err
	}
	defer messages.Close()
	first, err := messages.call("SUBSCRIBE", "+switch-master", "+failover-state-send-slaveof-noone", "+promoted-slave", "-failover-abort-slave-timeout")
	if err == nil && first.at(0) != "subscribe" {
		err = errors.New("redis: invalid reply to SUBSCRIBE")
	}
	if err != nil {
		return err
	}
	// Messages may have been missed until now.
	if err := errors.Join(w.query(queries, addr), w.discover(queries)); err != nil {
		return err
	}
	ended := make(chan error, 1)
	w.running.Go(func() { ended <- w.receive(messages) })
	poll := time.NewTicker(sentinelPoll)
	defer poll.Stop()
	for {
		select {
		case <-w.closing.Done():
			return nil
		case err := <-ended:
			return err
		case <-poll.C:
			if err := errors.Join(w.query(queries, addr), messages.send("PING")); err != nil {
				return err
			}
		}
	}
}

// receive handles messages, until none and no answer to a PING has arrived for a while.
func (w *sentinels) receive(messages *sentinelConn) error {
	for {
		m, err := messages.receive()
		if err != nil {
			return err
		}
		_ = messages.SetDeadline(time.Now().Add(3 * sentinelPoll))
		if m.at(0) == "message" {
			w.message(m.at(1), strings.Fields(m.at(2)))
		}
	}
}

// query asks a Sentinel for the master. An error means that the connection must not be used any more.
func (w *sentinels) query(c *sentinelConn, sentinel string) error {
	answer, err := c.call("SENTINEL", "get-master-addr-by-name", w.name)
	if _, refused := errors.AsType[refusal](err); refused {
		w.refused(err, sentinel)
		return nil
	}
	switch addr := net.JoinHostPort(answer.at(0), answer.at(1)); {
	case err != nil:
		return err
	case answer.null:
		w.refused(fmt.Errorf("%w: %s", errNoMaster, w.name), sentinel)
	case isAddress(addr):
		w.named(addr)
	default:
		return errors.New("redis: invalid reply: a Sentinel named a master without an address")
	}
	return nil
}

// discover watches the Sentinels that another Sentinel names. An error means that the connection must not be used any
// more.
func (w *sentinels) discover(c *sentinelConn) error {
	others, err := c.call("SENTINEL", "sentinels", w.name)
	if _, refused := errors.AsType[refusal](err); refused {
		return nil
	}
	for i := range others.elements {
		other := &others.elements[i]
		if addr := net.JoinHostPort(other.field("ip"), other.field("port")); isAddress(addr) {
			w.watch(addr)
		}
	}
	return err
}
