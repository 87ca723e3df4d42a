package h2grpc

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// A client that resets a call does not use its answer, whenever it resets it. The end of a connection says nothing
// about the answers before it: the requests of the client's clients may go on.
func TestSlotsOfResetCallsAreReported(t *testing.T) {
	reset := func(c *client, id uint32) {
		_ = c.to.WriteRSTStream(id, http2.ErrCodeCancel)
		c.flush()
		synctest.Wait()
	}
	ask := func(c *client, message string) (id uint32) {
		id = c.send(message)
		c.flush()
		synctest.Wait()
		return id
	}
	answered := func(c *client, message string) (id uint32) {
		id = ask(c, message)
		c.answer(id)
		return id
	}
	for _, test := range []struct {
		name string
		run  func(c *client, store *pendingStore)
		want string // the ids that are reported, in order
	}{
		{"undecided", func(c *client, store *pendingStore) { reset(c, ask(c, "slot a")); store.complete() }, "slot a"},
		{"undecided, and the connection ends", func(c *client, store *pendingStore) {
			ask(c, "slot a")
			c.nc.Close()
			synctest.Wait()
			store.complete()
		}, "slot a"},
		{"in one read with the request", func(c *client, _ *pendingStore) { reset(c, c.send("now slot a")) }, "now slot a"},
		{"decided, and delayed", func(c *client, _ *pendingStore) { reset(c, ask(c, "now slot hold")) }, "now slot hold"},
		{"decided, and delayed for long", func(c *client, _ *pendingStore) {
			id := ask(c, "now slot long hold")
			time.Sleep(9 * time.Second)
			reset(c, id)
		}, "now slot long hold"},
		{"decided, delayed for long, and answered", func(c *client, _ *pendingStore) { reset(c, answered(c, "now slot long hold")) }, "now slot long hold"},
		{"decided, and delayed, and the connection ends", func(c *client, _ *pendingStore) { ask(c, "now slot hold") }, "now slot hold"},
		{"decided, and waiting for the client's window", func(c *client, _ *pendingStore) {
			_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			reset(c, ask(c, "now slot a"))
		}, "now slot a"},
		{"this side resets a call whose answer waits", func(c *client, _ *pendingStore) {
			_ = c.to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			_ = c.to.WriteWindowUpdate(ask(c, "now slot a"), 0)
			c.flush()
		}, "now slot a"},
		{"answered", func(c *client, _ *pendingStore) { reset(c, answered(c, "now slot a")) }, "now slot a"},
		{"answered by the store", func(c *client, store *pendingStore) {
			id := ask(c, "slot a")
			store.complete()
			c.answer(id)
			reset(c, id)
		}, "slot a"},
		{"answered, and reset twice", func(c *client, _ *pendingStore) { id := answered(c, "now slot a"); reset(c, id); reset(c, id) }, "now slot a"},
		{"only one of two", func(c *client, _ *pendingStore) { answered(c, "now slot a"); reset(c, answered(c, "now slot b")) }, "now slot b"},
		{"answered, and reset after 4.9 s", func(c *client, _ *pendingStore) {
			id := answered(c, "now slot a")
			time.Sleep(4900 * time.Millisecond)
			reset(c, id)
		}, "now slot a"},
		{"answered, and reset after 5 s", func(c *client, _ *pendingStore) {
			id := answered(c, "now slot a")
			time.Sleep(5 * time.Second)
			reset(c, id)
		}, ""},
		{"answered, and the connection ends", func(c *client, _ *pendingStore) { answered(c, "now slot a"); c.nc.Close() }, ""},
		{"answered, and the connection ends between Done and Flush of the store", func(c *client, store *pendingStore) {
			answered(c, "now slot a")
			ask(c, "b")
			c.nc.Close()
			synctest.Wait()
			source := store.batches[0].Source
			store.complete()
			synctest.Wait()
			source.Flush()
		}, ""},
		{"no slots", func(c *client, store *pendingStore) {
			reset(c, ask(c, "a"))
			reset(c, answered(c, "now b"))
			store.complete()
		}, ""},
		{"the last 4,096 answers", func(c *client, _ *pendingStore) {
			first, second := answered(c, "now slot a"), answered(c, "now slot b")
			for i := range slotAnswersKept - 1 {
				answered(c, "now slot "+strconv.Itoa(i))
			}
			reset(c, first)
			reset(c, second)
		}, "now slot b"},
		{"1 MiB of ids", func(c *client, _ *pendingStore) {
			long := "now slot " + strings.Repeat("x", 8<<10)
			first := answered(c, "now slot a")
			for range slotBytesKept/len(long) + 1 {
				answered(c, long)
			}
			reset(c, first)
			reset(c, answered(c, "now slot b"))
		}, "now slot b"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &pendingStore{}
				method := &echo{store: store}
				l := serve(t, method)
				c := dial(t, l)
				_ = c.to.WriteWindowUpdate(0, 1<<30)
				test.run(c, store)
				c.nc.Close()
				synctest.Wait()
				store.complete()
				serverOf(l).Stop(t.Context())
				method.mu.Lock()
				defer method.mu.Unlock()
				if got := strings.Join(slices.Clone(method.unused), ","); got != test.want {
					t.Errorf("unused slots: got %q, want %q", got, test.want)
				}
				if n := serverOf(l).bufferedBytes.Load(); n != 0 {
					t.Errorf("without connections: %d bytes are counted; want 0", n)
				}
			})
		})
	}
}

// Connections remember together about as much as Config.BufferedBytes, however many they are.
func TestRememberedAnswersOfAllConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const connections, inAll = 64, 1 << 20
		l := serve(t, &echo{store: &pendingStore{}}, func(c *Config) { c.BufferedBytes = inAll })
		id := "now slot " + strings.Repeat("x", 1<<10)
		for range connections {
			c := dial(t, l)
			_ = c.to.WriteWindowUpdate(0, 1<<30)
			for range 200 {
				message := c.send(id)
				c.flush()
				c.answer(message)
			}
		}
		if n, most := int(serverOf(l).bufferedBytes.Load()), 2*inAll+connections*ownBuffered; n > most || n < inAll {
			t.Errorf("%d connections remember %d bytes; want from %d to %d", connections, n, inAll, most)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := serverOf(l).bufferedBytes.Load(); n != 0 {
			t.Errorf("after a minute: %d bytes are still counted; want 0", n)
		}
	})
}

// What is remembered of a connection is released when it is too old.
func TestSlotAnswersAreForgotten(t *testing.T) {
	var a slotAnswers
	a.ids = map[uint32]string{1: "a", 3: "b"}
	now := time.Now()
	a.order, a.bytes = []slotAnswer{{1, 1, now}, {3, 1, now.Add(time.Second)}}, 2
	if a.forget(now.Add(answerAge), maxBuffered); len(a.ids) != 1 || len(a.order) != 1 || a.bytes != 1 {
		t.Errorf("got %+v; want the second answer only", a)
	}
	if a.forget(now.Add(answerAge+time.Second), maxBuffered); a.ids != nil || a.order != nil || a.bytes != 0 {
		t.Errorf("got %+v; want an empty value", a)
	}
}
