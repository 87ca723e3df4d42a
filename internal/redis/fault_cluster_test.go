package redis

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

type underCluster struct {
	*load
	t       *testing.T
	cluster *redistest.Cluster
	store   *Store
}

func startCluster(t *testing.T, args ...string) underCluster {
	t.Helper()
	faulty(t)
	c := redistest.StartCluster(t, 3, args...)
	s := open(t, Config{URL: c.URL(), Timeout: deadline})
	l := startLoad(t, 4, s)
	l.normal(l.began, generous)
	time.Sleep(300 * ms)
	return underCluster{l, t, c, s}
}

// master returns the number of the master that has q's buckets at the start.
func (c underCluster) master(q *loadRequest) int {
	slot := c.store.keys.slot(&q.charges[0])
	n := len(c.cluster.Masters)
	for i := range n {
		if slot < (i+1)*slots/n {
			return i
		}
	}
	return n - 1
}

func (c underCluster) not(master int) func(q *loadRequest) bool {
	return func(q *loadRequest) bool { return c.master(q) != master }
}

func (c underCluster) promoted(i int, begin time.Time, others ...*redistest.Server) time.Duration {
	c.t.Helper()
	for _, s := range others {
		redistest.Eventually(c.t, "the cluster has failed over", func() bool {
			return strings.Contains(c.cluster.Replicas[i].Do("INFO", "replication"), "role:master") &&
				strings.Contains(s.Do("CLUSTER", "INFO"), "cluster_state:ok")
		})
	}
	return time.Since(begin)
}

// failoverOfMaster1 disables master 1 with hit, waits until service is normal, and enables it again with repair. It returns which part
// of the requests to the other masters was answered until then.
func (c underCluster) failoverOfMaster1(hit, repair func(s *redistest.Server)) (others float64) {
	c.t.Helper()
	at := time.Now()
	hit(c.cluster.Masters[1])
	var failover time.Duration
	var watch sync.WaitGroup
	watch.Go(func() {
		failover = c.promoted(1, at, c.cluster.Masters[0], c.cluster.Masters[2], c.cluster.Replicas[1])
	})
	recovered := c.normal(at, 30*time.Second)
	watch.Wait()
	others = c.share(at, at.Add(max(recovered, failover)), c.not(1))
	c.t.Logf("the cluster's own failover took %v; until then %.1f %% of the requests to the other masters were answered", failover.Round(10*ms), 100*others)
	if most := failover*3/2 + 3*time.Second; recovered > most {
		c.t.Errorf("normal service after %v, the cluster's failover took %v; want at most %v", recovered, failover, most)
	}
	repair(c.cluster.Masters[1])
	time.Sleep(1500 * ms) // until it has started again as a replica
	c.normal(time.Now(), generous)
	c.check(c.store, 1)
	return others
}

// By default the whole cluster fails until a replica has taken over the slots. So requests to the other masters may fail
// too.
func TestFaultClusterMasterKilled(t *testing.T) {
	startCluster(t).failoverOfMaster1((*redistest.Server).Kill, func(s *redistest.Server) { s.Restart() })
}

// If the cluster may serve a part of its slots, a failed master hardly affects requests to the other masters.
func TestFaultClusterMasterStopped(t *testing.T) {
	c := startCluster(t, "--cluster-require-full-coverage", "no")
	if others := c.failoverOfMaster1((*redistest.Server).Pause, (*redistest.Server).Resume); others < 0.9 {
		t.Errorf("%.1f %% of the requests to the other masters were answered; want at least 90 %%", 100*others)
	}
}

func TestFaultClusterTwoMastersDead(t *testing.T) {
	c := startCluster(t)
	for i := range 2 { // so that no replica takes their place
		c.cluster.Replicas[i].Kill()
	}
	for i := range 2 {
		c.cluster.Masters[i].Kill()
	}
	time.Sleep(3 * time.Second)
	if share := c.share(time.Now().Add(-500*ms), time.Now(), nil); share > 0.1 {
		t.Errorf("%.1f %% were answered while the cluster is down; want at most 10 %%", 100*share)
	}
	if !strings.Contains(c.failures(), "CLUSTERDOWN") {
		t.Errorf("no error says that the cluster is down: %s; want a text that contains %q", c.failures(), "CLUSTERDOWN")
	}
	for i := range 2 {
		c.cluster.Masters[i].Restart()
	}
	for _, s := range c.cluster.Masters {
		s.Wait()
		redistest.Eventually(t, "the cluster is ok", func() bool {
			return strings.Contains(s.Do("CLUSTER", "INFO"), "cluster_state:ok")
		})
	}
	c.normal(time.Now(), generous)
	c.check(c.store, 1)
}

func TestFaultClusterReshard(t *testing.T) {
	c := startCluster(t)
	c.cluster.Steady()
	at := time.Now()
	moved := map[int]bool{}
	for _, q := range c.requests {
		slot := c.store.keys.slot(&q.charges[0])
		if moved[slot] {
			continue
		}
		moved[slot] = true
		from := c.master(q)
		c.move(slot, c.cluster.Masters[from], c.cluster.Masters[(from+1)%3])
	}
	t.Logf("%d slots moved in %v", len(moved), time.Since(at).Round(ms))
	if share := c.share(at, time.Now(), nil); share < 0.9 {
		t.Errorf("%.1f %% were answered, want at least 90 %%: %s", 100*share, c.failures())
	} else {
		t.Logf("%.1f %% were answered meanwhile", 100*share)
	}
	c.normal(at, generous)
	c.check(c.store, 0)
}

func (c underCluster) move(slot int, from, to *redistest.Server) {
	c.t.Helper()
	source, target := from.Do("CLUSTER", "MYID"), to.Do("CLUSTER", "MYID")
	to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
	from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
	time.Sleep(50 * ms) // meanwhile, new keys are charged at the other node
	host, port, _ := net.SplitHostPort(to.Addr)
	for {
		keys, err := from.Client().ClusterGetKeysInSlot(context.Background(), slot, 1).Result()
		if err != nil {
			c.t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		from.Do("MIGRATE", host, port, keys[0], 0, 5000)
		time.Sleep(20 * ms) // some keys of the slot are charged on one node, some on the other
	}
	to.Do("CLUSTER", "SETSLOT", slot, "NODE", target)
	from.Do("CLUSTER", "SETSLOT", slot, "NODE", target)
	for _, s := range c.cluster.Masters {
		if s != from && s != to {
			s.Do("CLUSTER", "SETSLOT", slot, "NODE", target)
		}
	}
}
