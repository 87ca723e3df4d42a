package simulate

import (
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// The judge compares a denial with what the servers would have answered: whether the units were available, and when.

// peek reports whether a server would now allow a charge of this bucket alone, with a few units to spare.
// cost is the number of units that the whole request charges to the bucket. The epoch grows with each new window, each
// refund, and each denial by the server. If peek returns true twice with the same epoch, the units were available all
// the time in between.
//
// If the request has no witness, or the limit is in quota mode (remembered), a sidecar may remember the denial. It does
// so by its own clock, and it does not know the refunds of others. So the units must have been available for a
// millisecond, and there must have been no refund.
func (j *judge) peek(r *limiter.Result, cost int64, remembered bool) (allowed bool, epoch int64) {
	b, l := j.bucket(string(r.Key)), r.Policy.Limit
	state, now := j.stateOf(r), b.server.now()
	if j.adjustable(b) {
		return false, 0
	}
	if remembered {
		if now -= 1000; b.refunds > 0 || state.At > now {
			return false, 0
		}
	}
	if b.leaseDuration != 0 || b.sharded || l.Kind == algorithms.SlidingLog || l.Kind == algorithms.SlidingWindow || l.Kind == algorithms.Concurrency {
		return false, 0 // another sidecar may have leased the units; a sliding window can be full between two times at which it is not
	}
	spare := int64(6)
	if l.Kind == algorithms.FixedWindow && j.w.waitReplicas == 0 {
		spare = 0 // in one window units only become fewer
	}
	return b.decide(l, state, now, cost+spare).Allowed, b.window(now) + b.turns
}

func (j *judge) stateOf(r *limiter.Result) algorithms.State {
	name := "rl:{}" + string(r.Key)
	return j.w.holder(j.bucket(string(r.Key)).server, name).state(name)
}

// holder returns the server that has a key. Without a Cluster or Sentinels it is s.
func (w *world) holder(s *server, key string) *server {
	switch {
	case w.layout != nil:
		return w.masterOf(key)
	case w.watched != nil:
		return w.watched.master
	default:
		return s
	}
}

func (s *server) state(key string) (state algorithms.State) {
	if v := s.get(key); v != nil {
		state = v.state
	}
	return state
}

// adjustable reports whether the configured numbers alone do not decide about b: credits may pay for "plan" and
// "pace", a request may name "credits" as well, and operators may adjust others.
func (j *judge) adjustable(b *bucket) bool {
	return b.limit == "pace" || b.limit == "credits" || j.w.hasOperators && isTuned(b.limit) || b.limit == "plan"
}

func costOf(c *limiter.Call, r *limiter.Result) (cost int64) {
	for i := range c.Results {
		if string(c.Results[i].Key) == string(r.Key) {
			cost += c.Results[i].Cost
		}
	}
	return cost
}

func (j *judge) peeks(s *sending, c *limiter.Call) (passes bool, epochs int64) {
	passes = true
	for i := range c.Results {
		r := &c.Results[i]
		if s.costs[r.Descriptor].settles || r.Policy.Shadow {
			continue
		}
		is, epoch := j.peek(r, costOf(c, r), s.witness == "" || isQuota(s.costs[r.Descriptor].limit))
		passes, epochs = passes && is, epochs+epoch
	}
	return passes, epochs
}

type retry struct {
	after algorithms.Micros // -1: unknown, or the servers would allow the request
	at    algorithms.Micros // the time of the bucket's server
	changes
}

// changes differ between two times if the bucket was charged, refunded or blocked by a penalty between them.
type changes struct {
	charged, refunds int64 // units, and the number of refunds
	blocked          algorithms.Micros
}

func (j *judge) retriesOf(all []retry, c *limiter.Call) []retry {
	for i := range c.Results {
		r := &c.Results[i]
		b := j.bucket(string(r.Key))
		state := j.stateOf(r)
		is := retry{-1, b.server.now(), changes{charged: b.charged, refunds: b.refunds}}
		if state.Denials != nil {
			is.blocked = state.Denials.Until
		}
		if !j.adjustable(b) && b.leaseDuration == 0 && !b.sharded && len(b.numbers) == 1 && costOf(c, r) == r.Cost {
			if d := b.decide(r.Policy.Limit, state, b.server.now(), r.Cost); !d.Allowed {
				is.after = d.RetryAfter
			}
		}
		all = append(all, is)
	}
	return all
}

// retryTimes checks the retry times of a denial. If a bucket did not change between the request and its answer, its
// retry time is at most that at the time of the request, and at least that at the time of the answer. Clocks differ, so
// a millisecond is allowed. A remembered denial counts from the moment at which it arrived. It does not know what other
// sidecars have charged or refunded since, nor charges whose answers have not arrived.
func (j *judge) retryTimes(s *sending, c *limiter.Call) {
	if j.clockStepped || j.losses > 0 || j.failovers > 0 || s.process.suspended > 0 || s.snapshot != c.Snapshot {
		return
	}
	const slack = 1000
	for i, now := range j.retriesOf(nil, c) {
		r, was := &c.Results[i], s.retries[i]
		d := &r.Decision
		b := j.bucket(string(r.Key))
		remembered := s.witness == "" || r.Policy.Shadow || isQuota(b.limit) // these are decided alone
		if d.Err != nil || d.Allowed || d.Never || r.Outcome == limiter.Replaced || was.after < 0 || was.changes != now.changes || remembered && now.refunds > 0 {
			continue
		}
		j.w.seen(sawRetry)
		late := algorithms.Micros(slack)
		if remembered && j.w.faultless { // the denial arrives with its batch, which waits for room, and then for its slowest server
			late += 2 * algorithms.Micros(timeout/time.Microsecond)
		} else if remembered {
			late += 250_000 // the longest timeout of a call
		}
		if d.RetryAfter > was.after+late && (!remembered || s.process.pausedUntil == 0) { // an answer arrives late at a paused process
			j.fail("request %s: retry %s after %d us, want at most the %d us that the server would have returned before", s.id, b.limit, d.RetryAfter, was.after)
		}
		current := !remembered || len(j.w.started) == 1 && !j.unclean && was.at-b.last > algorithms.Micros(timeout/time.Microsecond)+slack
		if current && now.after >= 0 && d.RetryAfter < now.after-slack {
			j.fail("request %s: retry %s after %d us, want at least the %d us that the server would return now", s.id, b.limit, d.RetryAfter, now.after)
		}
	}
}
