package redis

import (
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// lost is the number of failovers that may lose charges, because the promoted replica did not have them. Each may lose
// at most one capacity of each bucket.
func underSentinels(t *testing.T, lost int64, hit func(s *redistest.Sentinels) (repair func())) {
	t.Helper()
	faulty(t)
	servers := redistest.StartSentinels(t)
	s := open(t, Config{URL: servers.URL(), Timeout: deadline})
	l := startLoad(t, 4, s)
	l.normal(l.began, generous)
	time.Sleep(300 * ms)
	at := time.Now()
	repair := hit(servers)
	l.normal(at, 20*time.Second)
	if repair != nil {
		repair()
		time.Sleep(2 * time.Second) // until the old master has started again as a replica
		l.normal(time.Now(), generous)
	}
	l.check(s, lost)
}

func TestFaultSentinelMasterKilled(t *testing.T) {
	underSentinels(t, 1, func(s *redistest.Sentinels) func() {
		s.Master.Kill()
		return func() { s.Master.Restart() }
	})
}

func TestFaultSentinelMasterStopped(t *testing.T) {
	underSentinels(t, 1, func(s *redistest.Sentinels) func() {
		s.Master.Pause()
		return s.Master.Resume
	})
}

// The master is known, so the Sentinels are not needed until it fails, not even for new connections.
func TestFaultSentinelsKilled(t *testing.T) {
	underSentinels(t, 0, func(s *redistest.Sentinels) func() {
		for _, one := range s.Sentinels {
			one.Kill()
		}
		s.Master.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") // so that the Store needs new connections
		return func() {}
	})
}

// The server reports in time that replicas have not confirmed a charge, even if it does not have the
// script. A call that ended without an answer would cost its connection.
func TestAMissingReplicaCostsNoConnection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t) // without replicas
	s := open(t, Config{URL: "redis://" + server.Addr, Timeout: 4 * time.Second, WaitReplicas: 1})
	for _, when := range []string{"at first", "then", "without the script", "again"} {
		if when == "without the script" {
			server.Do("SCRIPT", "FLUSH")
		}
		d := takeAll(s, []backend.Charge{{Key: []byte("k"), Limit: limitOf(5), Terms: algorithms.Charge{Cost: 1}}})
		if d[0].Err == nil || !strings.Contains(d[0].Err.Error(), "0 of 1 replicas have confirmed it in time") {
			t.Errorf("%s: got %v; want an error that contains %q", when, d[0].Err, "0 of 1 replicas have confirmed it in time")
		}
	}
}
