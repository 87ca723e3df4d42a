package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// sentinelConn is a connection to a Sentinel.
type sentinelConn struct {
	dialogue

	stop func() bool // ends the wait for the end of the Store, which closes the connection
}

func (w *sentinels) dialSentinel(addr string) (*sentinelConn, error) {
	nc, err := w.access.dial(w.closing, addr)
	if err != nil {
		return nil, err
	}
	c := &sentinelConn{dialogue: dialogue{Conn: nc}}
	c.stop = context.AfterFunc(w.closing, func() { nc.Close() })
	if w.password != "" {
		if _, err := c.call("auth", cmp.Or(w.username, "default"), w.password); err != nil {
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
func (c *sentinelConn) send(command ...any) error {
	_ = c.SetDeadline(time.Now().Add(sentinelPoll / 2))
	return c.dialogue.send(command...)
}

func (c *sentinelConn) call(command ...any) (reply, error) {
	if err := c.send(command...); err != nil {
		return reply{}, err
	}
	return c.receive()
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
