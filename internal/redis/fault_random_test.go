package redis

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

type temporaryFault struct {
	name       string
	start, end func()
}

// Each fault of the network coincides with a fault of the server.
func TestFaultRandomSchedule(t *testing.T) {
	faulty(t)
	rng := rand.New(rand.NewPCG(seed(t), 7))
	server := redistest.Start(t)
	admin := server.Client()
	p := startProxy(t, server.Addr, rng.Uint64())
	s := open(t, Config{URL: "redis://" + p.Addr, Timeout: deadline})
	l := startLoad(t, 4, s)
	l.normal(l.began, generous)

	network := func(name string, f faults) temporaryFault {
		return temporaryFault{name, func() { p.do(f) }, func() { p.do(faults{}) }}
	}
	command := func(start, end string) temporaryFault {
		run := func(text string) {
			var args []any
			for word := range strings.FieldsSeq(text) {
				args = append(args, word)
			}
			if len(args) > 0 {
				do(t, admin, args...)
			}
		}
		return temporaryFault{start, func() { run(start) }, func() { run(end) }}
	}
	inTheNetwork := []temporaryFault{
		network("nothing", faults{}),
		network("three answers in ten are 200 ms late", faults{share: 0.3, late: 200 * ms}),
		network("each answer is late", faults{share: 1, late: deadline / 2}),
		network("each answer is too late", faults{share: 1, late: 2 * deadline}),
		network("connections are closed", faults{share: 0.2, close: true}),
		network("connections are reset", faults{share: 0.2, reset: true}),
		network("a black hole", faults{hole: true}),
	}
	atTheServer := []temporaryFault{
		{"stopped", server.Pause, server.Resume},
		command("CLIENT PAUSE 200 ALL", ""),
		command("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
		command("CONFIG SET maxclients 1", "CONFIG SET maxclients 10000"),
		command("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
		command("SCRIPT FLUSH", "SCRIPT FLUSH"),
		command("CLIENT KILL TYPE normal SKIPME yes", ""),
		command("ACL SETUSER default -evalsha", "ACL SETUSER default +@all"),
	}
	for range 12 {
		a, b := inTheNetwork[rng.IntN(len(inTheNetwork))], atTheServer[rng.IntN(len(atTheServer))]
		length, pause := 100*ms+time.Duration(rng.Int64N(int64(500*ms))), time.Duration(rng.Int64N(int64(300*ms)))
		t.Logf("for %v: %s; %s", length.Round(ms), a.name, b.name)
		a.start()
		b.start()
		time.Sleep(length)
		b.end()
		a.end()
		time.Sleep(pause)
	}
	l.normal(time.Now(), generous)
	l.check(s, 0)
}
