package simulate

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Two Sentinels watch a master, r0, and its replica, r1; a further replica has no address. One of them leads a
// failover. The leader announces the promotion of the replica (+failover-state-send-slaveof-noone), promotes it,
// confirms the promotion (+promoted-slave), and later reports the switch (+switch-master). The other Sentinel reports
// only the switch, soon after the promotion. Each Sentinel names the old master until it has reported the switch. The
// old master may answer for a while, and then becomes the replica of the new one. Both servers have the same clock.

// watched is the present master and its replica.
type watched struct {
	master, replica *server
	named           [sentinelCount]string // the master's address according to each Sentinel
	moving          bool                  // a failover is in progress
	missesMessages  *process              // this process misses all messages of the failover
}

// watcher has the callbacks of a store that follows the Sentinels.
type watcher struct {
	named   func(master string)
	message func(channel, payload string)
}

// inbox has the messages of one Sentinel to one process that are on their way. They arrive in order.
type inbox []func()

const (
	sentinelName  = "themaster"
	sentinelCount = 2
)

func (w *world) newWatched() {
	w.servers = []*server{newServer(w, "r0"), newServer(w, "r1")}
	r0, r1 := w.servers[0], w.servers[1]
	r1.clock, r1.ppm, r1.isReplica = r0.clock, r0.ppm, true
	w.watched = &watched{master: r0, replica: r1, named: [...]string{r0.name + ":6379", r0.name + ":6379"}}
	w.addReplicas()
}

// watch implements redis.Machine.Watch: both Sentinels are polled each second.
func (p *process) watch(_ string, named func(master string), message func(channel, payload string)) {
	w := p.w
	p.watchers = append(p.watchers, watcher{named, message})
	var poll func()
	poll = func() {
		if p.crashed || w.lastPoll > 0 && w.now > w.lastPoll {
			return
		}
		for _, master := range w.watched.named {
			if link := w.linkOf(p); link.cutUntil <= w.now {
				w.after(link.delay(w), p, func() {
					if s := w.node(master); s.isReplica || w.watched.replica == s {
						w.seen(sawStaleName)
					}
					named(master)
				})
			}
		}
		w.after(time.Second, p, poll)
	}
	w.after(0, p, poll)
}

// publish sends a message of a Sentinel to all processes. For the duration ban, a process that gets it must not call the
// server at the address oldMaster, because its replica replaces it. oldMaster is "" if there is no such server.
func (w *world) publish(sentinel int, channel, payload, oldMaster string, ban time.Duration) {
	w.note("Sentinel %d: %s %s", sentinel, channel, payload)
	for _, p := range w.started {
		link := w.linkOf(p)
		if p.crashed || p == w.watched.missesMessages || link.cutUntil > w.now || link.faultsPerMille > 0 && !w.noMoreFaults && link.rng.IntN(4) == 0 {
			w.seen(faultLostMessage)
			continue
		}
		p.inboxes[sentinel] = append(p.inboxes[sentinel], func() {
			for _, to := range p.watchers {
				to.message(channel, payload)
			}
			p.avoids, p.avoidsUntil, p.failoverEnded, p.failoverEndedAt = oldMaster, w.now+int64(ban), ban != promotionBan, p.monotonic()
		})
		w.after(link.delay(w), p, func() {
			first := p.inboxes[sentinel][0]
			p.inboxes[sentinel] = p.inboxes[sentinel][1:]
			first()
		})
	}
}

// After the announcement of a failover, a process waits for the new master, at least for promotionBan. After the
// failover it ignores Sentinels that name the old master, at least for switchBan.
const (
	promotionBan = 2900 * time.Millisecond
	switchBan    = 4900 * time.Millisecond
)

// checkMaster checks that p does not call a server that the Sentinels replace.
func (j *judge) checkMaster(p *process, s *server, command string) {
	if w := j.w; command != "info" && p.avoids == s.name+":6379" && w.now < p.avoidsUntil {
		j.fail("%s calls %s, though the Sentinels have reported that it is replaced", p.name, s.name)
	}
}

func (t *watched) about(s *server) string {
	return fmt.Sprintf("slave %s:6379 %s 6379 @ %s %s 6379", s.name, s.name, sentinelName, t.master.name)
}

// fail makes the Sentinels replace the master after span. The master is dead, or only the Sentinels cannot
// reach it.
func (w *world) fail(rng *rand.Rand, span time.Duration) {
	t := w.watched
	if t.moving || !t.replica.up {
		return
	}
	t.moving, t.missesMessages = true, nil
	if rng.IntN(3) == 0 {
		t.missesMessages = w.processes[rng.IntN(len(w.processes))]
	}
	old, next, crashed := t.master, t.replica, rng.IntN(2) == 0
	w.note("the Sentinels replace %s in %v; it died: %v", old.name, span, crashed)
	if crashed {
		old.up = false
		w.afterPlain(span+time.Duration(rng.Int64N(int64(60*time.Millisecond))), nil, func() { old.up = true })
	}
	later := func(ms int64, f func()) {
		w.afterPlain(time.Duration(rng.Int64N(ms*int64(time.Millisecond))), nil, f)
	}
	leader, aborts := rng.IntN(sentinelCount), rng.IntN(5) == 0
	if rng.IntN(3) == 0 {
		w.stall(old, 2*span+20*time.Millisecond)
	}
	avoids, switched := old.name+":6379", fmt.Sprintf("%s %s 6379 %s 6379", sentinelName, old.name, next.name)
	w.afterPlain(span, nil, func() {
		w.publish(leader, "+failover-state-send-slaveof-noone", t.about(next), avoids, promotionBan)
		if aborts {
			later(30, func() {
				w.seen(faultAborted)
				w.publish(leader, "-failover-abort-slave-timeout", t.about(next), "", 0)
				t.moving = false
			})
			return
		}
		later(10, func() {
			w.promote(old, next)
			later(20, func() {
				w.publish(leader, "+promoted-slave", t.about(next), avoids, switchBan)
				later(20, func() {
					t.named[1-leader] = next.name + ":6379"
					w.publish(1-leader, "+switch-master", switched, avoids, switchBan)
					later(20, func() {
						t.master, t.replica, t.named[leader] = next, old, next.name+":6379"
						w.publish(leader, "+switch-master", switched, avoids, switchBan)
						later(60, func() { w.demote(old, next) })
					})
				})
			})
		})
	})
}

// promote makes the replica a master. The old master does not know this. It still answers, but has no
// replica.
func (w *world) promote(old, next *server) {
	w.seen(faultPromoted)
	w.note("%s is a master now", next.name)
	w.takeOver(old, next)
	next.isReplica, next.alone, old.alone = false, true, true
}

// demote makes the old master the replica of the new one, and closes its connections. It waits until the old
// master runs.
func (w *world) demote(old, next *server) {
	if !old.up {
		w.afterPlain(5*time.Millisecond, nil, func() { w.demote(old, next) })
		return
	}
	w.note("%s is the replica of %s now", old.name, next.name)
	old.isReplica, old.alone, next.alone = true, false, false
	old.epoch++
	old.keys = map[string]*value{}
	next.replicate(len(next.replicas))
	w.watched.moving = false
}
