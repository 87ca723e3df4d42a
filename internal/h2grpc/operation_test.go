package h2grpc

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// pendingStore keeps batches until the test completes them.
type pendingStore struct {
	mu      sync.Mutex
	batches []*backend.Batch
}

func (s *pendingStore) Submit(b *backend.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches = append(s.batches, b)
}

func (s *pendingStore) requests() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.batches {
		n += len(b.Charges)
	}
	return n
}

// complete completes all batches as one reply of a server does: first Done of each batch, then Flush of
// each source.
func (s *pendingStore) complete() {
	s.mu.Lock()
	batches := s.batches
	s.batches = nil
	s.mu.Unlock()
	var sources []*backend.Source
	for _, b := range batches {
		sources = append(sources, b.Source)
		b.Done(b)
	}
	for _, source := range sources {
		source.Flush()
	}
}

// sendMany sends n equal requests, and returns the stream of the last one when the server has read them.
func sendMany(c *client, n int, message string, more ...string) (id uint32) {
	for range n {
		id = c.send(message, more...)
	}
	go func() { _ = c.write() }()
	synctest.Wait()
	return id
}

func TestOneReplyFlushesEachConnectionOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pendingStore{}
		s := New(Config{Path: path, Method: &echo{store: store}, Others: http.HandlerFunc(others)})
		var tapes []*tape
		for range 100 {
			nc, c := startTape(t, s)
			tapes = append(tapes, nc)
			for range 2 { // the server reads these requests in two parts
				for range 16 {
					c.send("m")
				}
				nc.in <- bytes.Clone(c.out.Bytes())
				c.out.Reset()
			}
		}
		synctest.Wait()
		for _, nc := range tapes {
			for len(nc.out) > 0 {
				<-nc.out // the server's SETTINGS
			}
		}
		if n := len(store.batches); n != 200 {
			t.Errorf("%d batches, want one for each read", n)
		}
		store.complete()
		synctest.Wait()
		for i, nc := range tapes {
			if n := len(nc.out); n != 1 {
				t.Errorf("connection %d: %d writes; want 1", i, n)
			}
			close(nc.in)
		}
		s.Stop(t.Context())
	})
}

// While the outstanding weight is at its bound, a connection with little weight must continue. Another
// connection must wait. The requests that it has read must be answered by their deadline without being
// charged. It must continue when there is room.
func TestWaitingForRoomEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * ms
		store := &pendingStore{}
		l := serve(t, &echo{store: inTime(store, time.Hour, 2*ms)}, func(c *Config) { c.SubmitTimeout = timeout })
		for range maxOutstanding / leastTurn { // no connection has more than its turn, so none gets the deadline of one that yields
			sendMany(dial(t, l), leastTurn, "first")
		}
		if n := store.requests(); n != maxOutstanding {
			t.Fatalf("%d requests are submitted; want %d", n, maxOutstanding)
		}
		sendMany(dial(t, l), ownOutstanding, "little")
		if n := store.requests(); n != maxOutstanding+ownOutstanding {
			t.Errorf("%d requests are submitted; want %d, because a connection with little weight does not wait", n, maxOutstanding+ownOutstanding)
		}
		much := dial(t, l)
		send := func(more ...string) uint32 {
			time.Sleep(ms) // waits until the server has read everything
			return sendMany(much, ownOutstanding+1, "much", more...)
		}
		for timeout, want := range map[string]time.Duration{"8m": 8 * ms, "1S": timeout} {
			id, began := send("grpc-timeout", timeout), time.Now()
			if r := much.answer(id); r.message() != "late" || time.Since(began) != want {
				t.Errorf("timeout %s: got %+v after %v; want the message \"late\" after %v", timeout, r, time.Since(began), want)
			}
		}
		id, began := send(), time.Now()
		if r := much.answer(id); r.message() != "late" || time.Since(began) != timeout {
			t.Errorf("no timeout: got %+v after %v; want the message \"late\" after %v", r, time.Since(began), timeout)
		}
		if n := store.requests(); n != maxOutstanding+ownOutstanding {
			t.Errorf("%d requests are submitted; want %d, because late requests are not", n, maxOutstanding+ownOutstanding)
		}
		id = send()
		store.complete()
		synctest.Wait()
		if n := store.requests(); n != ownOutstanding+1 {
			t.Errorf("%d requests are submitted when there is room; want %d", n, ownOutstanding+1)
		}
		store.complete()
		much.answered(id, "much")
	})
}

// While a connection is not read, requests may arrive at any time after the last read. So their deadlines must count
// from the last read.
func TestRequestsDuringAFailureAreAnsweredInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pendingStore{}
		l := serve(t, &echo{store: inTime(store, time.Hour, 0)}, func(c *Config) { c.SubmitTimeout = 10 * ms })
		first, second := dial(t, l), dial(t, l)
		sendMany(first, maxOutstanding, "first")
		began := time.Now()
		sendMany(second, ownOutstanding+1, "m", "grpc-timeout", "8m")
		var ids []uint32
		for range 3 { // several reads
			for range 500 {
				ids = append(ids, second.send("m", "grpc-timeout", "8m"))
			}
			time.Sleep(ms)
			second.flush()
		}
		for _, id := range ids {
			if r := second.answer(id); r.message() != "late" || time.Since(began) > 8*ms {
				t.Fatalf("%d: got %+v after %v; want the message \"late\" within 8 ms", id, r, time.Since(began))
			}
		}
		time.Sleep(ms) // requests that arrive from now on must not be late
		fresh := second.send("fresh")
		second.flush()
		synctest.Wait()
		store.complete()
		second.answered(fresh, "fresh")
	})
}

// A closed connection must not wait for room longer than its requests do, and must then charge nothing.
func TestAClosedConnectionDoesNotWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pendingStore{}
		s, l := start(t, &echo{store: store}, func(c *Config) { c.SubmitTimeout = 10 * ms })
		first, second := dial(t, l), dial(t, l)
		sendMany(first, maxOutstanding, "first")
		sendMany(second, ownOutstanding+1, "second")
		second.nc.Close()
		for _, c := range s.openConns() {
			c.fail(nil)
		}
		time.Sleep(20 * ms)
		if n := store.requests(); n != maxOutstanding {
			t.Errorf("%d requests are submitted; want %d, because the connection was closed", n, maxOutstanding)
		}
		store.complete()
		s.Stop(t.Context())
		if s.outstanding.weight != 0 || len(s.outstanding.waiting) != 0 {
			t.Errorf("left over: %+v", &s.outstanding)
		}
	})
}

// Connections must be admitted in the order of arrival. However, an operation with which the weight of its
// connection stays within ownOutstanding must be admitted before its turn. A heavier one must wait, even after another
// operation of its connection has ended.
func TestOperationsAreAdmittedInTurn(t *testing.T) {
	var all outstanding
	var ops []*operation
	for _, weight := range []int{maxOutstanding, 60, 100, 100, 30, ownOutstanding, ownOutstanding + 1} {
		c := &conn{}
		c.share.room = make(chan struct{}, 1)
		ops = append(ops, &operation{conn: c, weight: weight})
	}
	ops[4].conn, ops[6].conn = ops[1].conn, ops[5].conn
	full, little, third, fourth, more, own, heavy := ops[0], ops[1], ops[2], ops[3], ops[4], ops[5], ops[6]
	for i, want := range []bool{true, true, false, false, false, true, false} {
		if got := all.enter(ops[i], true); got != want {
			t.Fatalf("enter of operation %d: got %v; want %v", i, got, want)
		}
	}
	admitted := func(o *operation) bool {
		select {
		case <-o.conn.share.room:
			return true
		default:
			return false
		}
	}
	if all.leave(little); !admitted(more) || admitted(third) {
		t.Error("when the connection's own part became free, its operation was not admitted, or another one was")
	}
	if all.leave(own); admitted(heavy) {
		t.Error("an operation beyond the connection's own part was admitted when another one ended")
	}
	if !all.cancelWait(third) || all.cancelWait(more) {
		t.Error("cancelWait: want true for the waiting operation and false for the admitted one")
	}
	all.leave(full)
	if admitted(third) || !admitted(fourth) || !admitted(heavy) {
		t.Error("the operation whose wait was canceled was admitted, or one of the next was not")
	}
	weightless, late := &operation{conn: more.conn}, &operation{conn: full.conn} // no requests to charge; a deadline that passed before it entered
	all.enter(weightless, true)
	for _, o := range []*operation{fourth, more, heavy, weightless, late} {
		all.leave(o)
	}
	if all.weight != 0 || len(all.waiting) != 0 || all.sharers.Load() != 0 {
		t.Errorf("left over: %+v", &all)
	}
}

var errOther = errors.New("the decision of another request")

// lateStore decides each batch after a different time, for some batches after the deadline. Each decision
// identifies its charge. It reads the charges again when it decides, as a Store may until it calls Done.
type lateStore struct {
	mu sync.Mutex
	n  int
}

func (s *lateStore) Submit(b *backend.Batch) {
	s.mu.Lock()
	s.n++
	delay := time.Duration(s.n%8) * ms
	s.mu.Unlock()
	time.AfterFunc(delay, func() {
		for i := range b.Charges {
			c := &b.Charges[i]
			_ = c.Canceled.Load()
			b.Decisions[i].Remaining = nameOf(c.Key)
		}
		b.Finish()
	})
}

func nameOf(message []byte) int64 { return 1 + int64(crc32.ChecksumIEEE(message)) }

// If the Store decides after the deadline, its decision must not be written into another request that uses
// the same memory by then. The race detector would report it.
func TestALateDecisionReachesNoOtherRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serve(t, &echo{store: inTime(&lateStore{}, 4*ms, 0)}, func(c *Config) { c.SubmitTimeout = 4 * ms })
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				c, late := dial(t, l), 0
				for round := range 50 {
					want := map[uint32]string{}
					for n := range 5 {
						m := fmt.Sprint(i, "/", round, "/", n)
						want[c.send(m)] = m
					}
					gone := c.send("gone")
					_ = c.to.WriteRSTStream(gone, http2.ErrCodeCancel)
					c.flush()
					for id, m := range want {
						switch got := c.answer(id).message(); got {
						case "late":
							late++
						case m:
						default:
							t.Errorf("got %q; want %q or \"late\"", got, m)
						}
					}
				}
				if late == 0 || late == 250 {
					t.Errorf("%d of 250 answers were late; want some, and not all, or the test proves nothing", late)
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second) // waits until everything has ended
	})
}

func TestWithoutATimeoutARequestWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pendingStore{}
		l := serve(t, &echo{store: store})
		first, much := dial(t, l), dial(t, l)
		sendMany(first, maxOutstanding, "first")
		id := sendMany(much, ownOutstanding+1, "much")
		time.Sleep(time.Minute)
		if n := store.requests(); n != maxOutstanding || much.reply(id).ended {
			t.Errorf("after a minute: %d requests are submitted, the last one is answered: %t; want %d, and no answer", n, much.reply(id).ended, maxOutstanding)
		}
		store.complete()
		synctest.Wait()
		store.complete()
		much.answered(id, "much")
	})
}

// A request that has waited in the socket while the connection was not read may wait no longer than
// Config.SubmitTimeout in total, also for the Store.
func TestAWaitInTheSocketCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * ms
		store := &pendingStore{}
		l := serve(t, &echo{store: inTime(store, time.Hour, 2*ms)}, func(c *Config) { c.SubmitTimeout = timeout })
		first, much := dial(t, l), dial(t, l)
		sendMany(first, maxOutstanding, "first")
		began := time.Now()
		sendMany(much, ownOutstanding+1, "much")
		var ids []uint32
		for range 2 {
			ids = append(ids, much.send(strings.Repeat("x", backlog)))
		}
		much.flush()
		time.Sleep(timeout - 3*ms)
		store.complete()
		for _, id := range ids {
			if r := much.answer(id); r.message() != "late" || time.Since(began) > timeout {
				t.Errorf("got %+v after %v; want the message \"late\" after at most %v", r, time.Since(began), timeout)
			}
		}
	})
}
