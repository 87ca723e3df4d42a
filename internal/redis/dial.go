package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/nonblock"
)

// access says how to connect to a server, and how to log in.
type access struct {
	network, addr      string
	sentinels          *sentinels // if not nil, they name the server
	db                 int
	username, password string
	passwordFile       string        // if not "", it is read for every connection
	tls                *tls.Config   // nil without TLS
	timeout            time.Duration // of a dial with its TLS handshake
	age                *atomic.Uint32
}

// connect makes a connection that is ready for commands. It becomes outdated when age changes.
func (a *access) connect() (net.Conn, error) {
	made, addr := a.age.Load(), a.addr
	ctx, cancel := context.WithTimeout(context.Background(), max(detachedTimeout, a.timeout))
	defer cancel()
	if a.sentinels != nil {
		master, err := a.sentinels.await(ctx)
		if err != nil {
			return nil, err
		}
		addr = master
	}
	nc, err := a.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := newConn(nc, a.age, made)
	end, _ := ctx.Deadline()
	if err = c.SetDeadline(end); err == nil {
		err = a.login(&dialogue{Conn: c})
	}
	if err = cmp.Or(err, c.SetDeadline(time.Time{})); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// login logs in, and checks that the server answers, and that it is the master.
func (a *access) login(c *dialogue) error {
	username, password := a.username, a.password
	if a.passwordFile != "" {
		name, word, err := credentials(a.passwordFile)
		if err != nil {
			return err
		}
		username, password = cmp.Or(name, username), word
	}
	commands := [][]any{{"ping"}}
	if a.db > 0 {
		commands = slices.Insert(commands, 0, []any{"select", a.db})
	}
	if password != "" {
		commands = slices.Insert(commands, 0, []any{"auth", cmp.Or(username, "default"), password})
	}
	for _, command := range commands {
		if _, err := c.call(command...); err != nil {
			return err
		}
	}
	if a.sentinels == nil {
		return nil
	}
	info, err := c.call("info", "replication")
	return checkMaster(info.text, err)
}

// credentials reads a file with "password" or "user:password".
func credentials(file string) (username, password string, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", "", fmt.Errorf("redis password file: %w; write the password, or user:password, into this file and let rlsidecar read it", err)
	}
	text := strings.TrimSpace(string(b))
	if text == "" {
		return "", "", errors.New("redis password file " + file + " is empty")
	}
	if name, word, ok := strings.Cut(text, ":"); ok {
		return name, word, nil
	}
	return "", text, nil
}

// dial connects to the server at addr, with TLS if the URL asks for it.
func (a *access) dial(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	nc, err := d.DialContext(ctx, a.network, addr)
	if err != nil || a.tls == nil {
		return nc, err
	}
	if n := nonblock.Wrap(nc); n != nil { // TLS reads and writes with nonblock
		nc = n
	}
	conf := a.tls
	if conf.ServerName == "" {
		conf = conf.Clone()
		conf.ServerName, _, _ = net.SplitHostPort(addr)
	}
	secure := tls.Client(nc, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return secure, nil
}

// notSent returns an error which means that the server has not received a byte of the call.
func notSent(text string) error { return &net.OpError{Op: "dial", Net: "tcp", Err: errors.New(text)} }

// dialogue is a connection on which one goroutine sends commands and waits for the replies: to log in, or to a Sentinel.
type dialogue struct {
	net.Conn
	have []byte // what has arrived and is not received
}

func (c *dialogue) send(command ...any) error {
	_, err := c.Write(appendCommand(nil, command))
	return err
}

// call sends a command and returns its reply. An error reply is a refusal.
func (c *dialogue) call(command ...any) (reply, error) {
	if err := c.send(command...); err != nil {
		return reply{}, err
	}
	return c.receive()
}

// receive waits for a reply and returns it.
func (c *dialogue) receive() (reply, error) {
	for {
		r, size, err := parseReply(c.have, maxReplyDepth)
		c.have = c.have[size:] // r has the memory before it
		switch {
		case err != nil:
			return r, err
		case size > 0 && r.kind == '-':
			return r, refusal(r.text)
		case size > 0:
			return r, nil
		case len(c.have) > maxTalk:
			return r, fmt.Errorf("redis: invalid reply: more than %d bytes", maxTalk)
		}
		c.have = slices.Grow(c.have, max(4096, len(c.have)))
		n, err := c.Read(c.have[len(c.have):cap(c.have)])
		if c.have = c.have[:len(c.have)+n]; n == 0 && err != nil {
			return r, err
		}
	}
}

// maxTalk is the largest size of a reply in a dialogue. The largest one describes all other Sentinels, with a kilobyte for
// each.
const maxTalk = 1 << 20
