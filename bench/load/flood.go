package load

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FloodConfig describes an open loop: it does not slow down when the server does, like many proxies together.
// Each request has a deadline, after which its answer is worthless.
type FloodConfig struct {
	Target      string
	Connections int
	Domain      string   // the default is "bench"
	Descriptors []string // as in Config.Descriptors
	Keys        int

	Rate     float64 // requests a second, of all connections together
	Deadline time.Duration
	Resets   bool // resets a request whose deadline has passed, as Envoy does
	Duration time.Duration
	// InFlight bounds the requests that wait for an answer, of all connections together. Further requests are
	// not sent, as with Envoy's circuit breaker. 0 means no bound.
	InFlight int
}

// FloodResult counts the outcomes of the requests that were due.
type FloodResult struct {
	Seconds float64 `json:"seconds"`
	Due     int64   `json:"due"`
	// Unsent is the number of requests that could not be sent before their deadline, because the server did
	// not read, this process was too slow or the connection failed, or that were not sent because of InFlight.
	Unsent int64  `json:"unsent"`
	OK     int64  `json:"ok"`               // answered OK before the deadline
	Denied int64  `json:"denied"`           // answered OVER_LIMIT before the deadline
	Late   int64  `json:"late"`             // sent, and not answered before the deadline
	Failed int64  `json:"failed"`           // answered with an error
	Broken int64  `json:"broken"`           // connections that failed, most often because the server closed them
	Reason string `json:"reason,omitempty"` // why the server closed one of them
}

// Goodput returns the number of requests per second that were answered OK in time.
func (r *FloodResult) Goodput() float64 { return float64(r.OK) / r.Seconds }

// Answered returns the number of requests per second that were answered OK or OVER_LIMIT in time.
func (r *FloodResult) Answered() float64 { return float64(r.OK+r.Denied) / r.Seconds }

func Flood(ctx context.Context, c FloodConfig) (FloodResult, error) {
	if c.Domain == "" {
		c.Domain = "bench"
	}
	req, err := newRequest(c.Domain, c.Descriptors)
	if err != nil {
		return FloodResult{}, err
	}
	f := &flood{FloodConfig: c, headers: floodHeaders(c.Deadline)}
	connections := make([]*floodConnection, c.Connections)
	for i := range connections {
		if connections[i], err = f.connect(ctx, req, i); err != nil {
			return FloodResult{}, fmt.Errorf("connect to %s: %w", c.Target, err)
		}
		defer connections[i].conn.Close()
	}
	f.start = time.Now()
	var all sync.WaitGroup
	for _, conn := range connections {
		all.Go(conn.read)
		all.Go(conn.write)
	}
	all.Wait()
	r := FloodResult{Seconds: c.Duration.Seconds(), Due: f.due.Load(), Unsent: f.unsent.Load(), OK: f.ok.Load(), Denied: f.denied.Load(), Late: f.late.Load(), Failed: f.failed.Load()}
	for _, conn := range connections {
		if conn.broken.Load() {
			r.Broken++
			if reason := conn.reason.Load(); reason != nil {
				r.Reason = *reason
			}
		}
	}
	return r, nil
}

type flood struct {
	FloodConfig
	headers [2][]byte // header blocks: [0] for the first request of a connection, [1] for the others
	start   time.Time

	due, unsent, ok, denied, late, failed atomic.Int64
	pending                               atomic.Int64 // requests that wait for an answer
}

func (f *flood) now() time.Duration { return time.Since(f.start) }

// floodHeaders encodes the headers of requests. The first block adds the fields to the server's table. The
// second block refers to the table.
func floodHeaders(deadline time.Duration) (blocks [2][]byte) {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := range blocks {
		b.Reset()
		for _, h := range [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "rlbench"},
			{"te", "trailers"}, {"content-type", "application/grpc"}, {"grpc-timeout", fmt.Sprintf("%du", deadline.Microseconds())},
		} {
			_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // cannot fail, because it writes to memory
		}
		blocks[i] = bytes.Clone(b.Bytes())
	}
	return blocks
}

// floodConnection sends requests even if the server does not answer, as far as the socket and the server's
// window permit. One goroutine writes, and another reads.
type floodConnection struct {
	*flood
	conn    net.Conn
	request request // the message, after the five bytes with which gRPC starts a message

	keys     keys
	every    time.Duration
	nextDue  time.Duration
	interval time.Duration // how long the writer sleeps between two checks

	out    []byte
	head   uint32   // half of the number of the next stream; used by the writer only
	tail   uint32   // half of the number of the oldest stream whose deadline has not passed; used by the writer only
	slots  []uint64 // at index n modulo the length: slotOf(n, due) if the request of stream 2n+1 is pending, otherwise 0; accessed atomically
	window atomic.Int64
	acks   atomic.Int64 // number of SETTINGS frames to acknowledge
	broken atomic.Bool
	reason atomic.Pointer[string] // the reason in the server's GOAWAY
	over   atomic.Bool
}

const (
	dueBits   = 40
	frameHead = 9
)

// slotOf encodes n, half of the number of a stream, and the time at which its request was due.
func slotOf(n uint32, due time.Duration) uint64 {
	return uint64(n+1)<<dueBits | uint64(max(1, due.Microseconds()))
}

func (f *flood) connect(ctx context.Context, req request, i int) (*floodConnection, error) {
	conn, err := Dial(ctx, f.Target)
	if err != nil {
		return nil, err
	}
	size := 1024
	for float64(size) < 4*f.Rate/float64(f.Connections)*f.Deadline.Seconds() {
		size *= 2
	}
	c := &floodConnection{
		flood: f, conn: conn, slots: make([]uint64, size), interval: time.Millisecond,
		keys:  newKeys(&run{Config: Config{Keys: f.Keys}}),
		every: time.Duration(float64(f.Connections) / f.Rate * float64(time.Second)),
	}
	if f.Connections > 16 {
		c.interval = f.Deadline / 4
	}
	c.nextDue = c.every * time.Duration(i) / time.Duration(f.Connections)
	n := len(req.message)
	c.request = req.clone(0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	c.window.Store(firstWindow)
	var b bytes.Buffer
	to := http2.NewFramer(&b, nil)
	b.WriteString(http2.ClientPreface)
	_ = to.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	_ = to.WriteWindowUpdate(0, 1<<30)
	_, err = conn.Write(b.Bytes())
	return c, err
}

// write sends the requests when they are due. After the last request, it waits for the last deadline.
func (c *floodConnection) write() {
	defer c.conn.Close()
	for {
		time.Sleep(c.interval)
		now := c.now()
		c.out = c.out[:0]
		for range c.acks.Swap(0) {
			c.frame(0, http2.FrameSettings, http2.FlagSettingsAck, 0)
		}
		c.expire(now)
		c.send(min(now, c.Duration))
		if len(c.out) > 0 && !c.broken.Load() {
			if _, err := c.conn.Write(c.out); err != nil {
				c.broken.Store(true)
			}
		}
		if now > c.Duration+c.Deadline && c.tail == c.head {
			c.over.Store(true)
			return
		}
	}
}

func (c *floodConnection) send(now time.Duration) {
	for ; c.nextDue < now; c.nextDue += c.every {
		c.due.Add(1)
		if c.InFlight > 0 && c.pending.Load() >= int64(c.InFlight) {
			c.unsent.Add(1)
			continue
		}
		full := c.head-c.tail >= uint32(len(c.slots)) || c.window.Load() < int64(len(c.request.message)) || len(c.out) > 4<<20
		if full && now-c.nextDue <= c.Deadline && !c.broken.Load() && now < c.Duration {
			c.due.Add(-1) // counted again at the next check, when there may be room
			return
		}
		if full || now-c.nextDue > c.Deadline || c.broken.Load() {
			c.unsent.Add(1)
			continue
		}
		n := c.head
		c.head++
		c.pending.Add(1)
		c.window.Add(-int64(len(c.request.message)))
		atomic.StoreUint64(&c.slots[n%uint32(len(c.slots))], slotOf(n, c.nextDue))
		block := c.headers[min(n, 1)]
		c.frame(len(block), http2.FrameHeaders, http2.FlagHeadersEndHeaders, 2*n+1)
		c.out = append(c.out, block...)
		c.request.setKey(c.keys.next())
		c.frame(len(c.request.message), http2.FrameData, http2.FlagDataEndStream, 2*n+1)
		c.out = append(c.out, c.request.message...)
	}
}

func (c *floodConnection) frame(n int, kind http2.FrameType, flags http2.Flags, stream uint32) {
	c.out = append(c.out, byte(n>>16), byte(n>>8), byte(n), byte(kind), byte(flags))
	c.out = binary.BigEndian.AppendUint32(c.out, stream)
}

func (c *floodConnection) expire(now time.Duration) {
	for ; c.tail != c.head; c.tail++ {
		slot := &c.slots[c.tail%uint32(len(c.slots))]
		v := atomic.LoadUint64(slot)
		if v == 0 {
			continue
		}
		if due := time.Duration(v&(1<<dueBits-1)) * time.Microsecond; now-due <= c.Deadline && !c.broken.Load() {
			return
		}
		if atomic.CompareAndSwapUint64(slot, v, 0) {
			c.pending.Add(-1)
			c.late.Add(1)
			if c.Resets {
				c.frame(4, http2.FrameRSTStream, 0, 2*c.tail+1)
				c.out = binary.BigEndian.AppendUint32(c.out, uint32(http2.ErrCodeCancel))
			}
		}
	}
}

func (c *floodConnection) read() {
	b, have := make([]byte, 64<<10), 0
	for {
		n, err := c.conn.Read(b[have:])
		if err != nil {
			if !c.over.Load() {
				c.broken.Store(true)
			}
			return
		}
		have += n
		used, now := 0, c.now()
		for have-used >= frameHead {
			length := int(b[used])<<16 | int(b[used+1])<<8 | int(b[used+2])
			end := used + frameHead + length
			if frameHead+length > len(b) {
				c.broken.Store(true) // the frame is longer than a server may send
				_, _ = io.Copy(io.Discard, c.conn)
				return
			}
			if end > have {
				break
			}
			c.handle(http2.FrameType(b[used+3]), http2.Flags(b[used+4]), binary.BigEndian.Uint32(b[used+5:]), b[used+frameHead:end], now)
			used = end
		}
		have = copy(b, b[used:have])
	}
}

func (c *floodConnection) handle(kind http2.FrameType, flags http2.Flags, stream uint32, payload []byte, now time.Duration) {
	switch kind { //nolint:exhaustive // other frames are not needed here
	case http2.FrameData:
		v := invalid
		if len(payload) >= prefixLen {
			v = verdictOf(payload[prefixLen:])
		}
		c.answered(stream, v, now)
	case http2.FrameHeaders:
		if flags.Has(http2.FlagHeadersEndStream) {
			c.answered(stream, invalid, now) // has no effect if DATA has already arrived
		}
	case http2.FrameRSTStream:
		c.answered(stream, invalid, now)
	case http2.FrameWindowUpdate:
		if stream == 0 {
			c.window.Add(int64(binary.BigEndian.Uint32(payload)))
		}
	case http2.FrameGoAway:
		reason := fmt.Sprintf("%v %q", http2.ErrCode(binary.BigEndian.Uint32(payload[4:])), payload[8:])
		c.reason.Store(&reason)
	case http2.FrameSettings:
		if !flags.Has(http2.FlagSettingsAck) {
			c.acks.Add(1)
		}
	}
}

func (c *floodConnection) answered(stream uint32, v verdict, now time.Duration) {
	n := stream / 2
	slot := &c.slots[n%uint32(len(c.slots))]
	was := atomic.LoadUint64(slot)
	if was>>dueBits != uint64(n+1)&(1<<(64-dueBits)-1) || !atomic.CompareAndSwapUint64(slot, was, 0) {
		return
	}
	c.pending.Add(-1)
	due := time.Duration(was&(1<<dueBits-1)) * time.Microsecond
	switch {
	case v == invalid:
		c.failed.Add(1)
	case now-due > c.Deadline:
		c.late.Add(1)
	case v == ok:
		c.ok.Add(1)
	default:
		c.denied.Add(1)
	}
}
