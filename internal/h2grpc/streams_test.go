package h2grpc

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// Streams need memory even if their requests have no bytes. All connections together must hold a bounded number of
// them, and a client with few streams must be answered.
func TestTheMemoryOfStreamsIsBounded(t *testing.T) {
	const inAll, connections, streams = 1 << 20, 30, 2000
	waiting := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	text := []string{":method", "POST", ":scheme", "http", ":path", path, ":authority", "a", "content-type", "text/plain"}
	for name, open := range map[string]func(c *client){
		"requests without a body":           func(c *client) { c.open(c.fields()) },
		"requests that are refused":         func(c *client) { c.open(c.encode(text...)) },
		"requests for the other handler":    func(c *client) { c.open(c.fields(":path", "/other")) },
		"answers that wait for the windows": func(c *client) { c.send("m") },
		"requests with a byte of the body": func(c *client) {
			_ = c.to.WriteData(c.open(c.fields()), false, []byte{0})
		},
		"requests with long incomplete bodies": func(c *client) {
			if c.next > 16 { // eight requests are enough
				return
			}
			id := c.open(c.fields())
			_ = c.to.WriteData(id, false, []byte{0, 0, 0x3f, 0xff, 0xff}) // the prefix announces nearly 4 MiB
			for range 7 {
				_ = c.to.WriteData(id, false, make([]byte, maxFrame))
			}
		},
		"long header blocks without an end": func(c *client) {
			if c.next == 1 {
				_ = c.to.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields("x-long", strings.Repeat("x", 15_000))})
				for range 12 {
					_ = c.to.WriteContinuation(1, false, make([]byte, 16_000))
				}
				c.next = 3
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := serve(t, &echo{}, func(c *Config) { c.BufferedBytes = inAll }, withOthers(waiting))
				s := serverOf(l)
				quiet := dial(t, l)
				for range connections {
					c := dial(t, l, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
					c.discard()
					for i := range streams {
						if open(c); i%100 == 0 && c.write() != nil {
							break // the server has closed the connection
						}
					}
					_ = c.write()
					synctest.Wait()
					quiet.must("m", "m")
				}
				// The last turn of each connection is counted when it ends.
				if held := s.bufferedBytes.Load(); held > 2*inAll+connections*(ownBuffered+otherBytes) || held < inAll/2 {
					t.Errorf("%d bytes are held; want %d to %d", held, inAll/2, 2*inAll+connections*(ownBuffered+otherBytes))
				}
				time.Sleep(2 * wholeTimeout)
				synctest.Wait()
				if held := s.bufferedBytes.Load(); held > 0 && !strings.Contains(name, "other handler") {
					t.Errorf("%d bytes are held after %v; want none", held, 2*wholeTimeout)
				}
			})
		})
	}
}

// A connection ends if its client does not read an answer for windowTimeout, whichever handler has written the answer.
// A client that reads slowly stays connected.
func TestAClientThatGivesNoWindowIsDisconnected(t *testing.T) {
	for name, more := range map[string][]string{"the method": nil, "another handler": {":path", "/another.Service/Method"}} {
		for _, slow := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				l := serve(t, &echo{})
				c := dial(t, l, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
				id := c.send("long 1000", more...)
				c.flush()
				if slow {
					go func() {
						for range 5 {
							time.Sleep(windowTimeout * 9 / 10)
							_ = c.to.WriteWindowUpdate(id, 3)
							_ = c.write()
						}
					}()
				}
				began, want := time.Now(), windowTimeout
				if slow {
					want += 5 * windowTimeout * 9 / 10
				}
				if code := c.readToEnd(); code != http2.ErrCodeEnhanceYourCalm {
					t.Errorf("%s: got %v; want ENHANCE_YOUR_CALM", name, code)
				}
				if took := time.Since(began); took < want || took > want+3*time.Second {
					t.Errorf("%s: the connection ended after %v; want about %v", name, took, want)
				}
			})
		}
	}
}

// A client that reads many long answers slowly stays connected, although the last of them waits for the window of the
// connection for longer than windowTimeout, and so does the answer of another handler.
func TestManyLongAnswersMayTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const answers, length = 12, 65_000
		c := dial(t, serve(t, &echo{}), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2 * length})
		var ids []uint32
		for range answers {
			ids = append(ids, c.send("long "+strconv.Itoa(length)))
		}
		c.flush()
		time.Sleep(time.Second)
		ids = append(ids, c.send("short", ":path", "/another.Service/Method"))
		c.flush()
		go func() {
			for range answers - 1 { // the window has room for one answer at first
				time.Sleep(windowTimeout / 2)
				_ = c.to.WriteWindowUpdate(0, length+prefixLen)
				_ = c.write()
			}
		}()
		for _, id := range ids {
			if r := c.answer(id); r.reset != nil || r.message() == "" {
				t.Fatalf("stream %d: got %+v; want an answer", id, r)
			}
		}
	})
}

// After a flood of streams, connections must not keep the memory that it needed, whether or not they are idle.
func TestTheMemoryOfAFloodIsReleased(t *testing.T) {
	const connections, busyBytes, idleBytes = 50, 96 << 10, 8 << 10
	s, connect := serveTCP(t, &echo{}, 10*ms, plain)
	begin, flood, request := recordFlood(t)
	clients := make([]net.Conn, connections)
	for i := range clients {
		clients[i] = connect()
		go func() { _, _ = io.Copy(io.Discard, clients[i]) }()
		send(t, clients[i], begin)
	}
	before := heap()
	for _, nc := range clients {
		send(t, nc, flood)
	}
	for _, c := range s.openConns() {
		for received := false; !received; time.Sleep(ms) {
			c.mu.Lock()
			received = c.last > 2*8000 && c.open.count == 0
			c.mu.Unlock()
		}
	}
	kept := func(most int, meanwhile func()) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; meanwhile() {
			if n := (heap() - before) / connections; n <= most {
				return
			} else if time.Now().After(end) {
				t.Fatalf("each connection keeps %d bytes; want at most %d", n, most)
			}
		}
	}
	kept(busyBytes, func() { // with requests between the checks, so that the connections are not idle
		for next, i := request(), 0; i < connections; i++ {
			send(t, clients[i], next)
		}
		time.Sleep(ms)
	})
	kept(idleBytes, func() { time.Sleep(20 * ms) })
}

// recordFlood returns the bytes of a client: the beginning of a connection with a request, then a flood of requests that
// stay incomplete until they are reset, and the bytes of further requests.
func recordFlood(t *testing.T) (begin, flood []byte, request func() []byte) {
	t.Helper()
	c := newClient(t, nil)
	part := func() []byte {
		b := bytes.Clone(c.out.Bytes())
		c.out.Reset()
		return b
	}
	c.send("m")
	begin = part()
	c.open(c.fields("grpc-timeout", "100m", "x-long", strings.Repeat("x", maxHeaders-1000)))
	for range 8000 {
		c.open(c.fields("grpc-timeout", "100m"))
	}
	flood = part()
	return begin, flood, func() []byte {
		c.send("m")
		return part()
	}
}

func send(t *testing.T, nc net.Conn, b []byte) {
	t.Helper()
	if _, err := nc.Write(b); err != nil {
		t.Fatal(err)
	}
}

func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // empties the pools
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
