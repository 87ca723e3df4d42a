// Package bare calls Redis as directly as possible. Run sends pipelines of a token bucket script with one key,
// over separate connections. Benchmarks compare the cost of a limiter on Redis with the cost of this package.
package bare

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// script is a token bucket in the usual form for Redis: a hash of two fields, which expires.
const script = `
local s = redis.call('HMGET', KEYS[1], 'v', 't')
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local rate, capacity, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local v, at = tonumber(s[1]) or capacity, tonumber(s[2]) or now
v = math.min(capacity, v + (now - at) * rate / 1000000)
local ok = 0
if v >= cost then v, ok = v - cost, 1 end
redis.call('HSET', KEYS[1], 'v', v, 't', now)
redis.call('PEXPIRE', KEYS[1], 60000)
return ok`

// Config describes a run.
type Config struct {
	Address     string // host:port
	Connections int
	Pipeline    int // number of scripts in one write
	Keys        int
	Duration    time.Duration
}

// Run sends charges as fast as possible for c.Duration. It returns the number of decisions, and the time in which they
// were made.
func Run(ctx context.Context, c Config) (decisions int64, took time.Duration, err error) {
	var count atomic.Int64
	var over atomic.Bool
	errs := make([]error, c.Connections)
	var working sync.WaitGroup
	defer working.Wait()
	defer over.Store(true)
	for i := range c.Connections {
		r, err := dial(ctx, c.Address)
		if err != nil {
			return 0, 0, err
		}
		if err := r.load(); err != nil {
			return 0, 0, err
		}
		working.Go(func() {
			defer r.close()
			for errs[i] == nil && !over.Load() {
				if errs[i] = r.request(c.Pipeline, c.Keys); errs[i] == nil {
					count.Add(int64(c.Pipeline))
				}
			}
		})
	}
	start := time.Now()
	select {
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	case <-time.After(c.Duration):
	}
	decisions, took = count.Load(), time.Since(start)
	over.Store(true)
	working.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, 0, err
		}
	}
	return decisions, took, nil
}

type conn struct {
	nc  net.Conn
	in  *bufio.Reader
	out []byte
	sha string
}

func dial(ctx context.Context, address string) (*conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to redis: %w", err)
	}
	return &conn{nc: nc, in: bufio.NewReaderSize(nc, 64<<10)}, nil
}

func (c *conn) close() { _ = c.nc.Close() }

func (c *conn) command(words ...string) {
	c.out = append(c.out, '*')
	c.out = strconv.AppendInt(c.out, int64(len(words)), 10)
	for _, w := range words {
		c.out = append(c.out, "\r\n$"...)
		c.out = strconv.AppendInt(c.out, int64(len(w)), 10)
		c.out = append(c.out, "\r\n"...)
		c.out = append(c.out, w...)
	}
	c.out = append(c.out, "\r\n"...)
}

func (c *conn) send() error {
	_, err := c.nc.Write(c.out)
	c.out = c.out[:0]
	return err
}

// line reads one line. The result is valid until the next read. An error of Redis is returned as an error.
func (c *conn) line() ([]byte, error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	line = line[:len(line)-2]
	if line[0] == '-' {
		return nil, fmt.Errorf("redis: %s", line[1:])
	}
	return line, nil
}

func (c *conn) load() error {
	c.command("SCRIPT", "LOAD", script)
	if err := c.send(); err != nil {
		return err
	}
	if _, err := c.line(); err != nil { // the length of the reply
		return err
	}
	sha, err := c.line()
	c.sha = string(sha)
	return err
}

func (c *conn) request(pipeline, keys int) error {
	for range pipeline {
		c.command("EVALSHA", c.sha, "1", "bare:"+strconv.Itoa(rand.IntN(keys)), "1000", "1000", "1")
	}
	if err := c.send(); err != nil {
		return err
	}
	for range pipeline {
		if line, err := c.line(); err != nil {
			return err
		} else if line[0] != ':' {
			return fmt.Errorf("redis answers %q, not with a number", line)
		}
	}
	return nil
}
