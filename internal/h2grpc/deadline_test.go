package h2grpc

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

func TestKnownAnswersAreSentAtOnce(t *testing.T) {
	slow(t, func(t *testing.T, m *echo, _ *slowStore, c *client) {
		start := time.Now()
		var slow, now []uint32
		for i := range 3 { // in one write
			slow = append(slow, c.send(fmt.Sprint("slow ", i)))
			now = append(now, c.send(fmt.Sprint("now ", i)))
		}
		c.flush()
		for i, id := range now {
			if r := c.answer(id); r.message() != fmt.Sprint("now ", i) || time.Since(start) > 0 {
				t.Errorf("now %d: got %+v after %v; want the message, at once", i, r, time.Since(start))
			}
		}
		for i, id := range slow {
			if r := c.answer(id); r.message() != fmt.Sprint("slow ", i) || time.Since(start) != 3*ms {
				t.Errorf("slow %d: got %+v after %v; want the message after 3 ms", i, r, time.Since(start))
			}
		}
		// A client that resets a request just before its answer must get neither that answer nor the answer to
		// another request.
		id := c.send("now gone")
		_ = c.to.WriteRSTStream(id, http2.ErrCodeCancel)
		c.must("now after it", "now after it")
		c.must("then", "then")
		if n := m.batchSizes(); !slices.Equal(n, []int{3, 1}) {
			t.Errorf("batches of %v requests were submitted; want [3 1]", n)
		}
	})
}

// The requests of one read that have the same deadline must form one batch, up to a bound.
func TestOneReadIsOneBatch(t *testing.T) {
	slow(t, func(t *testing.T, m *echo, _ *slowStore, c *client) {
		var ids []uint32
		want := map[uint32]string{}
		for i := range 20 {
			timeout := []string{"20m", "30m"}[i%2]
			id := c.send(fmt.Sprint(i), "grpc-timeout", timeout)
			ids, want[id] = append(ids, id), fmt.Sprint(i)
		}
		c.flush()
		for _, id := range ids {
			c.answered(id, want[id])
		}
		if n := m.batchSizes(); !slices.Equal(n, []int{10, 10}) {
			t.Errorf("batches of %v requests were submitted; want [10 10]", n)
		}
		for range 3 * maxBatch {
			c.send("m")
		}
		done := make(chan error)
		go func() { done <- c.write() }()
		defer func() {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		for id := c.next - 2; !c.reply(id).ended; {
			if _, err := c.read(); err != nil {
				t.Fatal(err)
			}
		}
		if most := slices.Max(m.batchSizes()); most != maxBatch {
			t.Errorf("the largest batch has %d requests; want %d", most, maxBatch)
		}
	})
}

// Answers must arrive by the timeout, or by the caller's deadline, whether the request was sent to the Store
// or waits.
func TestAnswersAreInTime(t *testing.T) {
	slow(t, func(t *testing.T, _ *echo, s *slowStore, c *client) {
		s.delay.Store(int64(time.Hour))
		for _, test := range []struct {
			timeout string
			want    time.Duration
		}{{"1H", 10 * ms}, {"8m", 6 * ms}, {"2m", 0}, {"12m", 10 * ms}, {"11m", 9 * ms}} { // the store is busy from the third request on
			id := c.send("m", "grpc-timeout", test.timeout)
			c.flush()
			began := time.Now()
			if r := c.answer(id); r.message() != "late" {
				t.Errorf("%s: got %+v; want the message \"late\"", test.timeout, r)
			}
			if took := time.Since(began); took != test.want {
				t.Errorf("%s: answered after %v; want %v", test.timeout, took, test.want)
			}
		}
		if !slices.Equal(s.batchSizes(), []int{1, 1}) {
			t.Errorf("got %v; want two batches of one request", s.batchSizes())
		}
		s.delay.Store(0)
		gone := c.send("m", "grpc-timeout", "1n")
		c.flush()
		if r := c.answer(gone); r.message() != "late" && r.fields["grpc-status"] != "4" {
			t.Errorf("got %+v; want the message \"late\" or grpc-status 4", r)
		}
	})
}

func TestADeadlineCountsFromTheHeaders(t *testing.T) {
	send := func(c *client, timeout string, slowly time.Duration) *reply {
		id := c.open(c.fields("grpc-timeout", timeout))
		_ = c.to.WriteData(id, false, framed("m")[:3])
		c.flush()
		time.Sleep(slowly)
		_ = c.to.WriteData(id, true, framed("m")[3:])
		c.flush()
		return c.answer(id)
	}
	slow(t, func(t *testing.T, _ *echo, s *slowStore, c *client) {
		s.delay.Store(int64(time.Second))
		began := time.Now()
		if r := send(c, "9m", 4*ms); r.message() != "late" || time.Since(began) != 7*ms { // 2 ms are reserved for the answer
			t.Errorf("got %+v after %v; want the message \"late\" after 7 ms", r, time.Since(began))
		}
		if n := len(s.batchSizes()); n != 1 {
			t.Errorf("%d requests reached the store; want 1", n)
		}
		if r := send(c, "9m", 8*ms); r.message() != "late" || len(s.batchSizes()) != 1 {
			t.Errorf("no time is left: got %+v, and batches of %v requests; want the message \"late\" and [1]", r, s.batchSizes())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, serve(t, &echo{}))
		if r := send(c, "50m", 49*ms); r.message() != "m" {
			t.Errorf("in time: got %+v; want the message \"m\"", r)
		}
		if r := send(c, "50m", 51*ms); r.fields["grpc-status"] != "4" {
			t.Errorf("late: got %+v; want grpc-status 4", r)
		}
	})
}

func TestResetsOfSubmittedRequests(t *testing.T) {
	slow(t, func(t *testing.T, _ *echo, _ *slowStore, c *client) {
		for range 5 * maxStreams / 1000 { // in total five times as many requests as may be in flight
			for range 1000 {
				_ = c.to.WriteRSTStream(c.send("m"), http2.ErrCodeCancel)
			}
			done := make(chan error)
			go func() { done <- c.write() }()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		c.must("still", "still")
		for id, r := range c.answers {
			if id != c.next-2 && (r.ended || r.reset != nil) {
				t.Errorf("%d: got %+v; want an open stream", id, r)
			}
		}
		c.send("m")
		c.flush()
		c.nc.Close() // the client no longer waits for the answer
	})
}

// A request whose deadline leaves no time for an answer of the store must not be charged, whatever arrives
// together with it.
func TestARequestWithoutTimeForTheStoreIsNotCharged(t *testing.T) {
	slow(t, func(t *testing.T, _ *echo, s *slowStore, c *client) {
		for _, timeout := range []string{"2m", "1m", "1u", "1n"} {
			alone := c.send("m", "grpc-timeout", timeout)
			c.flush()
			if r := c.answer(alone); r.message() != "late" {
				t.Errorf("%s: got %+v; want the message \"late\"", timeout, r)
			}
		}
		if n := s.batchSizes(); len(n) > 0 {
			t.Errorf("the store decided batches of %v charges; want none", n)
		}
		short, long := c.send("short", "grpc-timeout", "1m"), c.send("long", "grpc-timeout", "1S")
		c.flush()
		c.answered(short, "late")
		c.answered(long, "long")
		if n := s.batchSizes(); !slices.Equal(n, []int{1}) {
			t.Errorf("batches of the sizes %v; want one batch of one charge", n)
		}
	})
}

// What the Batch does after the deadline of a request, it does without a deadline.
func TestARequestThatSettlesReachesTheStoreAfterItsDeadline(t *testing.T) {
	slow(t, func(t *testing.T, _ *echo, s *slowStore, c *client) {
		id := c.open(c.fields("grpc-timeout", "1m"))
		c.flush()
		time.Sleep(5 * ms)
		_ = c.to.WriteData(id, true, framed("settles"))
		late := c.open(c.fields("grpc-timeout", "1n"))
		_ = c.to.WriteData(late, true, framed("m"))
		c.flush()
		if r := c.answer(id); r.message() != "settles" || !slices.Equal(s.batchSizes(), []int{1}) {
			t.Errorf("got %+v, and batches of %v requests; want the message \"settles\", and [1]", r, s.batchSizes())
		}
		c.answer(late)
	})
}

func TestAbandonedRequestsAreNotCharged(t *testing.T) {
	for name, leave := range map[string]func(c *client, ids []uint32){
		"reset": func(c *client, ids []uint32) {
			for _, id := range ids {
				_ = c.to.WriteRSTStream(id, http2.ErrCodeCancel)
			}
			c.flush()
		},
		"connection ended": func(c *client, _ []uint32) { c.nc.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			slow(t, func(t *testing.T, _ *echo, s *slowStore, c *client) {
				send := func() (id uint32) {
					id = c.send("m")
					c.flush()
					synctest.Wait()
					return id
				}
				sent := []uint32{send(), send()}
				var waiting []uint32
				for range 2*maxBatch + 1 { // three batches
					waiting = append(waiting, c.send(fmt.Sprint("waits ", len(waiting))))
				}
				c.flush()
				synctest.Wait()
				leave(c, waiting)
				synctest.Wait()
				if name == "reset" {
					for _, id := range sent {
						c.answer(id)
					}
					c.must("m", "m")
				}
				want := map[string][]int{"reset": {1, 1, 1}, "connection ended": {1, 1}}[name]
				time.Sleep(time.Second) // waits until everything has ended
				if n := s.batchSizes(); !slices.Equal(n, want) {
					t.Errorf("the store decided batches of %v charges; want %v", n, want)
				}
			})
		})
	}
}
