package redis

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

func TestSentinelMessagesChangeTheMaster(t *testing.T) {
	const s = time.Second
	type step struct {
		at     time.Duration
		event  func(v view, addr string, now time.Time) view // handles an answer or a message of a Sentinel
		addr   string
		master string // the master that the Store uses after the event; "" means none
	}
	named, promotes, replaces, switched := view.named, view.promotes, view.replaces, view.switched
	aborted := func(v view, _ string, _ time.Time) view { return v.aborted() }
	for name, steps := range map[string][]step{
		"the master is named": {{0, named, "a", "a"}, {1 * s, named, "b", "b"}, {10 * s, named, "a", "a"}},
		"a planned failover": {
			{0, named, "a", "a"}, {10 * s, promotes, "b", ""}, {10 * s, named, "a", ""}, {11 * s, switched, "b", "b"},
			{12 * s, named, "a", "b"}, // the answer of a Sentinel that does not know the new master yet
			{12 * s, switched, "b", "b"}, {14 * s, named, "b", "b"},
		},
		"the first message is the switch": {{0, replaces, "a", "a"}, {0, switched, "b", "b"}, {1 * s, named, "a", "b"}, {7 * s, named, "a", "a"}},
		"the first message is a promotion": {
			{0, replaces, "a", "a"}, {0, promotes, "b", ""}, {1 * s, switched, "b", "b"}, {2 * s, replaces, "a", "a"}, {2 * s, switched, "b", "b"}, {2 * s, named, "a", "b"},
		},
		"the end of a failover was missed": {
			{0, named, "a", "a"}, {1 * s, promotes, "b", ""}, {2 * s, replaces, "b", "b"}, {2 * s, promotes, "a", ""}, {3 * s, named, "b", ""},
		},
		"a failover was missed, and the old master is promoted again": {
			{0, named, "a", "a"}, {1 * s, replaces, "b", "b"}, {1 * s, promotes, "a", ""}, {2 * s, named, "b", ""}, {2 * s, switched, "a", "a"}, {3 * s, named, "b", "a"},
		},
		"the promoted replica was the master before its Sentinel said so": {
			{0, named, "a", "a"}, {1 * s, promotes, "b", ""}, {1 * s, switched, "b", "b"}, {2 * s, replaces, "a", "a"}, {2 * s, switched, "b", "b"}, {3 * s, named, "a", "b"},
		},
		"the failover is aborted":            {{0, named, "a", "a"}, {1 * s, promotes, "b", ""}, {2 * s, aborted, "", "a"}},
		"the promotion does not end":         {{0, named, "a", "a"}, {1 * s, promotes, "b", ""}, {3 * s, named, "a", ""}, {5 * s, named, "a", "a"}},
		"the first master is promoted again": {{0, named, "a", "a"}, {1 * s, switched, "b", "b"}, {2 * s, promotes, "a", ""}, {2 * s, switched, "a", "a"}, {3 * s, named, "b", "a"}},
		"the messages were missed":           {{0, named, "a", "a"}, {1 * s, named, "b", "b"}, {2 * s, named, "a", "b"}, {3 * s, named, "b", "b"}},
		"the new master fails soon after":    {{0, named, "a", "a"}, {1 * s, switched, "b", "b"}, {7 * s, named, "a", "a"}},
		"the current master is promoted":     {{0, named, "a", "a"}, {1 * s, promotes, "a", "a"}},
	} {
		var v view
		start := time.Now()
		for i, step := range steps {
			now := start.Add(step.at)
			v = step.event(v, step.addr, now)
			master := v.master
			if v.moving(now) {
				master = ""
			}
			if master != step.master {
				t.Errorf("%s, step %d: the master is %q, want %q", name, i, master, step.master)
			}
		}
	}
}

// Sentinels may watch several masters. Messages about the others change nothing.
func TestMessagesOfSentinels(t *testing.T) {
	const promotion, abort = "+failover-state-send-slaveof-noone", "-failover-abort-slave-timeout"
	for name, test := range map[string]struct{ channel, text, master, next string }{
		"a switch":                            {"+switch-master", "main 10.0.0.1 1 10.0.0.2 2", "10.0.0.2:2", ""},
		"a switch of another master":          {"+switch-master", "other 10.0.0.1 1 10.0.0.2 2", "10.0.0.1:1", "10.0.0.3:3"},
		"the promotion starts":                {promotion, "slave r 10.0.0.2 2 @ main 10.0.0.1 1", "10.0.0.1:1", "10.0.0.2:2"},
		"a promotion for another master":      {promotion, "slave r 10.0.0.2 2 @ other 10.0.0.1 1", "10.0.0.1:1", "10.0.0.3:3"},
		"the promotion has ended":             {"+promoted-slave", "slave r 10.0.0.3 3 @ main 10.0.0.1 1", "10.0.0.3:3", ""},
		"the failover is aborted":             {abort, "slave r 10.0.0.3 3 @ main 10.0.0.1 1", "10.0.0.1:1", ""},
		"another failover is aborted":         {abort, "slave r 10.0.0.3 3 @ other 10.0.0.1 1", "10.0.0.1:1", "10.0.0.3:3"},
		"an earlier failover was not noticed": {promotion, "slave r 10.0.0.5 5 @ main 10.0.0.4 4", "10.0.0.4:4", "10.0.0.5:5"},
		"a text of another form":              {"+switch-master", "main 10.0.0.1 1", "10.0.0.1:1", "10.0.0.3:3"},
	} {
		now := time.Now()
		w := &sentinels{name: "main", now: func() time.Time { return now }, closed: true} // closed: no connection is made
		w.view = view{master: "10.0.0.1:1", next: "10.0.0.3:3", nextAt: now}
		w.message(test.channel, strings.Fields(test.text))
		if w.view.master != test.master || w.view.next != test.next {
			t.Errorf("%s: the master is %s, and %q is promoted; want %s and %q", name, w.view.master, w.view.next, test.master, test.next)
		}
	}
}

func TestAPromotionEndsConnections(t *testing.T) {
	ends := 0
	w := &sentinels{name: "main", now: time.Now, moved: func() { ends++ }, known: make(chan struct{}), machine: &Machine{Go: func(func()) {}}}
	for i, step := range []struct {
		channel, text string
		ends          int // how often connections have ended until then
	}{
		{"+switch-master", "main 10.0.0.9 9 10.0.0.1 1", 0}, // the Store knew no master before
		{"+failover-state-send-slaveof-noone", "slave r 10.0.0.2 2 @ main 10.0.0.1 1", 1},
		{"+promoted-slave", "slave r 10.0.0.2 2 @ main 10.0.0.1 1", 2},
		{"+switch-master", "main 10.0.0.1 1 10.0.0.2 2", 2}, // the promotion has reported this already
		{"+failover-state-send-slaveof-noone", "slave r 10.0.0.1 1 @ main 10.0.0.2 2", 3},
		{"-failover-abort-slave-timeout", "slave r 10.0.0.1 1 @ main 10.0.0.2 2", 3},
	} {
		w.message(step.channel, strings.Fields(step.text))
		if ends != step.ends {
			t.Errorf("message %d: connections have ended %d times, want %d", i, ends, step.ends)
		}
	}
}

// While the Store polls the replica that a Sentinel promotes, the Sentinel may promote another replica instead. The
// answer of the first replica then changes nothing.
func TestAPromotionThatWasReplacedChangesNothing(t *testing.T) {
	w := &sentinels{name: "main", now: time.Now, closing: t.Context(), closed: true} // closed: no connection is made
	w.view = view{master: "a:1", next: "b:1", nextAt: time.Now()}
	w.machine = &Machine{Connect: func(client *goredis.Client, _ func(context.Context, string) (string, error)) {
		client.AddHook(answers(func(cmd goredis.Cmder) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.view = w.view.promotes("c:1", time.Now())
			cmd.(*goredis.StringCmd).SetVal("role:master")
		}))
	}}
	w.follow("b:1")
	if w.view.master != "a:1" || w.view.next != "c:1" {
		t.Errorf("the master is %s, and %s is promoted; want a:1 and c:1", w.view.master, w.view.next)
	}
}

// When a Sentinel reports that it is about to promote a replica, the Store stops charging the old master. So less
// than half a second of traffic is lost. If only +switch-master were used, one to two seconds would be lost.
func TestFaultSentinelFailover(t *testing.T) {
	faulty(t)
	servers := redistest.StartSentinels(t)
	s := open(t, Config{URL: servers.URL(), Timeout: deadline})
	redistest.Eventually(t, "the four channels about the start and the end of a failover have a subscriber", func() bool {
		return strings.Contains(fmt.Sprint(servers.Sentinels[0].Do("CLIENT", "LIST")), " sub=4 ")
	})
	l := startLoad(t, 4, s)
	l.normal(l.began, generous)
	from, before := time.Now(), l.acked()
	time.Sleep(time.Second)
	rate := float64(l.acked()-before) / time.Since(from).Seconds()
	at := time.Now()
	servers.Sentinels[0].Do("SENTINEL", "FAILOVER", "main")
	redistest.Eventually(t, "a replica is the master", func() bool {
		return servers.Sentinels[0].Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main") != masterAddr(servers)
	})
	l.normal(at, generous)
	l.stop()
	var lost int64
	for _, q := range l.requests {
		if q.limit == 0 {
			lost += max(0, q.acked.Load()-l.charged(s, q)[0])
		}
	}
	t.Logf("%d lost at %.0f a second", lost, rate)
	if float64(lost) > rate/2 {
		t.Errorf("a failover lost %d units at %.0f requests a second; want at most %.0f", lost, rate, rate/2)
	}
}

// masterAddr returns what the Sentinels answer to GET-MASTER-ADDR-BY-NAME while the first master is the master.
func masterAddr(s *redistest.Sentinels) string {
	host, port, _ := net.SplitHostPort(s.Master.Addr)
	return fmt.Sprint([]any{host, port})
}
