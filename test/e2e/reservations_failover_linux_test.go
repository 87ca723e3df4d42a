package e2e

import (
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

type ended struct {
	id              string
	cost            int
	started, closed time.Time
}

// TestSidecarsSettleThroughAFailover sends requests through two sidecars on a master with replicas. The
// replicas lose their connection, so that they miss the writes after that. Then the master is killed, and a
// replica becomes master.
//
// The new master must lack only those writes. Both sidecars settle each reservation again: a lost settlement
// takes effect once, and no refund is repeated. In the end the charged units are those of all recorded
// reservations, less at most the estimates of lost starts, plus at most the estimates of starts without an
// answer.
func TestSidecarsSettleThroughAFailover(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinels(t)
	keys := fileOf(t, "keys", keyLine(firstKey))
	var sidecars [2]*settler
	for i := range sidecars {
		sidecars[i] = startSettler(t, "--redis-url", servers.URL(), "--backend-timeout", "200ms", "--settle-key-file", keys)
	}
	var mu sync.Mutex
	var all []ended
	unknown := 0 // starts without an answer or without a reservation; mu guards unknown and the slice all
	var made atomic.Int64
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for caller := range 4 {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(caller), 7))
			for {
				select {
				case <-stop:
					return
				default:
				}
				one := ended{cost: random.IntN(300)}
				var err error
				if one.id, err = sidecars[random.IntN(2)].start("user=bob"); err != nil || one.id == "none" {
					mu.Lock()
					unknown++
					mu.Unlock()
					time.Sleep(20 * time.Millisecond) // a client waits before it tries again
					continue
				}
				one.started = time.Now()
				eventually(t, "a reservation is settled", func() bool { return sidecars[random.IntN(2)].done(one.id, one.cost) == nil })
				one.closed = time.Now()
				mu.Lock()
				all = append(all, one)
				mu.Unlock()
				made.Add(1)
			}
		})
	}
	more := func(n int64) {
		t.Helper()
		from := made.Load()
		eventually(t, "reservations are made and settled", func() bool { return made.Load() >= from+n })
	}
	more(30)
	var cut time.Time
	eventually(t, "the replicas have all writes until now", func() bool {
		cut = time.Now()
		return servers.Master.Do("WAIT", "2", "1000") == "2"
	})
	servers.Master.Do("ACL", "SETUSER", "default", "-psync", "-sync")
	servers.Master.Do("CLIENT", "KILL", "TYPE", "replica")
	more(30)
	servers.Master.Kill()
	killed := time.Now()
	eventually(t, "a replica is the master", func() bool {
		for _, replica := range servers.Replicas {
			if strings.Contains(replica.Do("INFO", "replication"), "role:master") {
				return true
			}
		}
		return false
	})
	more(30)
	close(stop)
	callers.Wait()

	again := func() {
		t.Helper()
		var both sync.WaitGroup
		for side, s := range sidecars {
			both.Go(func() {
				for i := side; i < 2*len(all); i++ {
					one := all[i%len(all)]
					eventually(t, "it is settled again", func() bool {
						if i%2 == 0 {
							return s.done(one.id, one.cost) == nil
						}
						code, _ := s.settle(one.id, one.cost)
						return code == 200
					})
				}
			})
		}
		both.Wait()
	}
	again()
	used := 1_000_000 - sidecars[0].left("tokens", "bob")
	again()
	sidecars[1].want("tokens", "bob", 1_000_000-used)

	real, lost := 0, 0
	for _, one := range all {
		real += one.cost
		if one.started.After(cut) && one.started.Before(killed.Add(time.Second)) {
			lost++
		}
	}
	t.Logf("%d reservations of %d units; the start of up to %d was lost; %d starts without an answer; %d used", len(all), real, lost, unknown, used)
	if used < real-100*lost || used > real+100*unknown {
		t.Errorf("used %d, want at least %d less 100 for each of %d lost starts, and at most 100 more for each of %d starts without an answer", used, real, lost, unknown)
	}
	if lost < 30 {
		t.Errorf("only %d starts could have been lost, too few for a test", lost)
	}
}
