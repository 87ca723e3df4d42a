package simulate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// judge checks a run. It compares the requests and answers of clients with the charges of servers. It computes
// with package algorithms what the servers would decide, and does not use the limiter, the wrappers or the
// Redis store for that.
type judge struct {
	w                *world
	problems         []string
	requests         []*request
	flights          []*flight // those that reserve units for an id
	open             map[*sending]bool
	probes           []*probe
	buckets          map[string]*bucket // by key
	slots            map[string]*slotsOf
	rooms            map[string][]*stay // by key
	named            map[cost]*bucket   // by limit and value
	resets           map[cost]int       // how often operators reset a bucket, or tried to
	failovers        int
	losses           int  // how often a server lost its data, or may have lost unconfirmed charges in a failover
	unclean          bool // a process crashed, or a call had no answer, so leased units may be lost
	clockStepped     bool
	clockSteppedBack bool

	changes      map[string]string     // the answer to each change of an operator, by the ID of its operation
	begun, ended int                   // how many changes have begun and ended
	newest       map[string]madeChange // by the ID of the adjustment
	reportedLost map[string]bool       // the IDs of adjustments that a sidecar reported as lost
}

type bucket struct {
	limit         string
	name          string // its key in Redis; "" if it was never charged
	value         string
	kind          algorithms.Kind
	leaseDuration algorithms.Micros
	numbers       []*algorithms.Limit
	charged       int64 // units that the servers charged, less refunds
	returned      int64 // units that the servers refunded to a bucket of the domain plans
	admitted      []admission
	hash          uint64 // windows start at a phase that depends on it
	server        *server
	slot          int // the slot in a Cluster; otherwise 0
	sharded       bool
	parted        bool              // a request that charged it was parted (request.parted)
	first         algorithms.Micros // when the servers first charged it; 0 means never
	last          algorithms.Micros
	local         map[*process]int64 // units that each sidecar allowed without the servers
	turns         int64              // grows with each refund, and with each denial by a server; judge.peek adds it to the epoch
	refunds       int64
	executed      int64       // how often a server executed a charge of the bucket, allowed or not
	settled, lost int64       // by bucket: the costs that servers settled, and what they lost of them
	confirmed     int64       // by bucket: the costs that answers confirm
	payments      [][]payment // in the witness of a request with credits: what a server charged, each time it executed the request
}

// admission is a number of admitted units, and the time of the admission by the server's clock. It is a range
// of time for shards, because their units are first read and then consumed.
type admission struct {
	at, until algorithms.Micros
	units     int64
}

func (b *bucket) id() cost { return cost{limit: b.limit, value: b.value} }

// window identifies the fixed window at a time. If configurations have different windows, each of their ends counts.
func (b *bucket) window(at algorithms.Micros) (n int64) {
	for _, l := range b.numbers {
		if l.Calendar != nil {
			n += l.Calendar.Window(at)
		} else {
			n += (int64(at) - b.phaseOf(l)) / int64(l.Period())
		}
	}
	return n
}

func (b *bucket) phaseOf(l *algorithms.Limit) int64 {
	n := l.Numbers()
	return n.PhaseOf(b.hash)
}

// windows returns in how many windows the servers charged b. It returns 0 if b has no fixed windows.
func (b *bucket) windows() int64 {
	if b.kind != algorithms.FixedWindow {
		return 0
	}
	return b.window(b.last) - b.window(b.first) + 1
}

// decide returns the answer to a charge, which changes nothing, by a server where b has a state.
func (b *bucket) decide(l *algorithms.Limit, state algorithms.State, at algorithms.Micros, cost int64) algorithms.Decision {
	_, d := l.Take(state, at, algorithms.Charge{Cost: cost, Hash: b.hash, DryRun: true})
	return d
}

// sum returns the admitted units.
func (b *bucket) sum() (units int64) {
	for _, a := range b.admitted {
		units += a.units
	}
	return units
}

const mostProblems = 10

func (j *judge) fail(format string, args ...any) {
	if len(j.problems) < mostProblems {
		j.problems = append(j.problems, fmt.Sprintf(format, args...))
	}
	j.w.note("WRONG: "+format, args...)
}

func (j *judge) bucket(key string) *bucket {
	b := j.buckets[key]
	if b == nil {
		b = &bucket{}
		j.buckets[key] = b
	}
	return b
}

// bucketOf returns the key of a bucket, without the prefix of its name in Redis.
func bucketOf(name string) string {
	_, key, _ := strings.Cut(name, "}")
	return key
}

func (j *judge) charged(s *server, c *charge, before *algorithms.State, b *algorithms.Bucket, took bool) {
	key := bucketOf(c.key)
	j.w.mix(uint64(b.Decision.Value))
	if j.w.log != nil {
		j.w.note("%s: %q cost %d: charged %v, value %d", s.name, key, c.terms.Cost, took, b.Decision.Value)
	}
	units, of := c.terms.Cost, j.bucket(key)
	if !b.Decision.Allowed {
		of.turns++
	}
	if !c.terms.DryRun && units > 0 {
		of.executed++
	}
	if !took && !c.limit.Overdraw {
		return
	}
	of.name = c.key
	if of.last = s.now(); of.first == 0 {
		of.first = of.last
	}
	if c.terms.Open && c.terms.Settle {
		of.settled, of.lost = of.settled+units, of.lost+b.Decision.Lost
		of.refunds++
		return
	}
	if units < 0 || c.terms.Settle || !took { // a refund never fills a bucket beyond its capacity
		of.turns++
		of.refunds++
		_, was := c.limit.Take(*before, s.now(), algorithms.Charge{Hash: c.terms.Hash, DryRun: true})
		units = -(b.Decision.Value - was.Value) / c.limit.Unit()
	}
	if of.charged += units; of.sharded {
		j.w.seen(sawSharded)
	}
}

func (j *judge) sent(s *sending) {
	if s.attempts == 1 {
		j.requests = append(j.requests, s.request)
	}
	j.open[s] = true
	if j.w.log != nil {
		j.w.note("%s: request %s: %v", s.process.name, s.id, s.costs)
	}
}

func (j *judge) answered(s *sending, c *limiter.Call, err error) {
	if s.answered {
		j.fail("request %s was answered twice", s.id)
		return
	}
	s.answered = true
	delete(j.open, s)
	j.planned(nil, s.request, c)
	if s.flight != nil {
		s.flight.taken(s.process, c, err)
	}
	if s.process.crashed { // the process has died, so the answer is lost
		s.unknown = true
		return
	}
	if took := s.process.monotonic() - s.at; took > s.within+10*time.Microsecond && s.pause == s.process.pausedUntil {
		j.fail("request %s was answered after %v, not within %v", s.id, took, s.within)
	}
	switch {
	case errors.Is(err, backend.ErrPending):
		j.w.seen(sawPending)
		s.unknown = true
		return
	case err != nil:
		j.fail("request %s: %v", s.id, err)
		return
	}
	j.w.mix(uint64(len(c.Results)))
	failed, untouched := c.Failed, true
	for i := range c.Results {
		r := &c.Results[i]
		failed = failed || r.Decision.Err != nil
		untouched = untouched && errors.Is(r.Decision.Err, backend.ErrNotTaken)
		j.result(s, r)
	}
	if j.w.log != nil {
		j.w.note("%s: answer to %s: denied %v, error %v", s.process.name, s.id, c.Denied, firstErr(c))
	}
	if s.end != nil {
		s.end.answered(s, c)
		// A settlement denies the request if it fails, or if an id in a header was settled before. The rest is charged.
		s.unknown = s.unknown || c.Denied && slices.ContainsFunc(c.Settlements, func(is limiter.Settlement) bool { return is.Repeated || is.Failed() })
	}
	byQuotas := j.verdict(s, c)
	switch {
	case failed:
		j.w.seen(sawFailed)
		// At first the process learns the layout, loads scripts, and may reset a bucket, each in a call of its own.
		// With an ID, limits in quota mode need a second call in the same time.
		hasQuotas := slices.ContainsFunc(s.costs, func(k cost) bool { return isQuota(k.limit) })
		warm := j.w.layout == nil && j.w.watched == nil && len(j.resets) == 0 || s.at > time.Hour+150*time.Millisecond && !j.w.isSlow
		if j.w.faultless && warm && j.w.untilEdge < clocksApart && j.w.waitReplicas == 0 && s.within == timeout && !s.parted && !(s.underID && hasQuotas) && !s.canceled.Load() {
			j.fail("request %s: %v, though nothing is wrong", s.id, firstErr(c))
		}
		afterFailover := s.process.failoverEnded && s.at > s.process.failoverEndedAt
		if err := firstErr(c); afterFailover && s.pause == s.process.pausedUntil && err != nil && strings.Contains(err.Error(), "are replacing the master") {
			j.fail("request %s: %v, though the Sentinels have reported the end of the failover", s.id, err)
		}
		if !c.Denied || c.Err != nil {
			j.w.seen(sawOtherPolicy)
		}
		if untouched {
			j.w.seen(sawNotTaken)
			s.untouched++
		} else {
			s.unknown, j.unclean = true, true
		}
	case c.Denied:
		j.w.seen(sawDenied)
		if slices.ContainsFunc(c.Results, func(r limiter.Result) bool { return r.Outcome == limiter.Allowed }) {
			j.w.seen(sawGroupDenied)
		}
		if s.denied = true; byQuotas {
			j.consumed(s, c)
		}
		if s.end == nil || !s.unknown {
			j.falseDenial(s, c)
			j.retryTimes(s, c)
			if !c.Never && !c.Busy && c.RetryAfter <= 0 {
				j.fail("request %s is denied without a time to retry", s.id)
			}
		}
	default:
		j.admitted(s, c)
	}
}

// policies has the on_backend_failure of limits. Limits that are not in it deny.
var policies = map[string]limiter.OnFailure{
	"lenient": limiter.Allow, "strict": limiter.Error, "share": limiter.Local,
	"shade": limiter.Allow, // because of shadow mode
}

// verdict checks an answer by those of the limits. A limit that the store could not decide must answer by its
// on_backend_failure. All limits in quota mode together deny a request, and so does each other limit. verdict reports
// whether only those in quota mode deny. It also counts the units that each sidecar allows because of "local". The method
// judge.shared compares them with the sidecar's share.
func (j *judge) verdict(s *sending, c *limiter.Call) (byQuotas bool) {
	mustDeny, mustErr, quotas, full := false, false, 0, 0
	for i := range c.Results {
		r := &c.Results[i]
		k := &s.costs[r.Descriptor]
		policy, denies := policies[k.limit], r.Outcome.Denies()
		switch {
		case r.Decision.Err != nil:
			denies = policy == limiter.Deny || policy == limiter.Local
			mustErr = mustErr || policy == limiter.Error
		case r.Outcome == limiter.FailedAllowed && policy == limiter.Local:
			b := j.bucket(string(r.Key))
			if b.local == nil {
				b.local = map[*process]int64{}
			}
			j.w.seen(sawLocal)
			b.local[s.process] += r.Cost
		}
		switch a := r.Policy.Adjusted; {
		case !isQuota(k.limit), a != nil && a.Block:
			mustDeny = mustDeny || denies
		case denies:
			full++
			fallthrough
		default:
			quotas++
		}
	}
	switch byQuotas = !mustDeny && full > 0 && full == quotas; {
	case byQuotas:
		mustDeny = true
		j.w.seen(sawQuotasDeny)
	case full > 0 && !c.Denied:
		j.w.seen(sawQuotaSpared)
	}
	switch {
	case mustDeny && !c.Denied:
		j.fail("request %s is allowed, though a limit, or all in quota mode, deny it", s.id)
	case mustErr && !mustDeny && c.Err == nil:
		j.fail("request %s is answered without the error that its limit demands", s.id)
	case s.end == nil && !mustDeny && !mustErr && (c.Denied || c.Err != nil):
		j.fail("request %s is denied (%v) or fails (%v), though no limit denies", s.id, c.Denied, c.Err)
	}
	return byQuotas
}

func (j *judge) planned(p *process, r *request, c *limiter.Call) {
	var first *bucket
	for i := range c.Results {
		is, k := &c.Results[i], &r.costs[c.Results[i].Descriptor]
		b, l := j.bucket(string(is.Key)), is.Policy.Limit
		if is.Outcome == limiter.Shadowed {
			j.w.seen(sawShadowed)
		}
		if is.Decision.Blocked > 0 {
			j.w.seen(sawBlocked)
		}
		j.adjusted(p, is, k)
		if b.limit == "" {
			b.limit, b.value, b.kind, b.server = k.limit, k.value, l.Kind, j.w.serverOf(l)
			if is.For != nil {
				b.limit = "credits"
			}
			if r.domain == "" && j.w.layout != nil {
				b.slot = slotOf("rl:{}" + string(is.Key))
			}
			j.named[cost{limit: b.limit, value: b.value}] = b
			b.hash = xxhash.Sum64String(k.value)
			if lease := is.Policy.Extra().Lease; lease != nil {
				b.leaseDuration = lease.For
			}
		}
		if !slices.Contains(b.numbers, l) {
			b.numbers = append(b.numbers, l)
		}
		b.sharded = b.sharded || j.w.layout != nil && len(is.Policy.Extra().Shards) > 0
		if i == 0 {
			first = b
		}
		if (first.server != b.server || b.sharded || first.slot != b.slot) && !r.parted {
			r.parted = true
			j.w.seen(sawParts)
		}
	}
	for i := range c.Results {
		if r.parted {
			j.buckets[string(c.Results[i].Key)].parted = true
		}
	}
}

// decidedBy records the numbers by which a server decided. After a reload they can differ from those of the
// answer.
func (b *bucket) decidedBy(l *algorithms.Limit) {
	if !slices.ContainsFunc(b.numbers, func(n *algorithms.Limit) bool {
		return n.Capacity == l.Capacity && n.Rate == l.Rate && n.Period() == l.Period()
	}) {
		b.numbers = append(b.numbers, l)
	}
}

func (j *judge) result(s *sending, r *limiter.Result) {
	if d := &r.Decision; d.Err == nil {
		j.w.mix(uint64(d.Remaining) ^ uint64(d.RetryAfter))
		if d.Allowed && d.Remaining < 0 {
			j.fail("request %s: %d remain of %s", s.id, d.Remaining, s.costs[r.Descriptor].limit)
		}
	}
}

// falseDenial reports a denial as false if the servers had plenty of units when the request was sent, and
// have plenty now, in the same epoch. Cached denials remain after a loss of data, and while the clock of the
// sidecar stands still, so these cases are not checked.
func (j *judge) falseDenial(s *sending, c *limiter.Call) {
	if !s.unitsSufficed || j.clockStepped || j.losses > 0 || s.process.suspended > 0 ||
		j.failovers > 0 && (s.witness == "" || slices.ContainsFunc(s.costs, func(k cost) bool { return isQuota(k.limit) })) {
		return
	}
	if passes, epochs := j.peeks(s, c); passes && epochs == s.epochs && s.snapshot == c.Snapshot {
		j.fail("request %s is denied, though each of its buckets has more units than it costs", s.id)
	}
}

func (j *judge) admitted(s *sending, c *limiter.Call) {
	if c.Replayed {
		j.w.seen(sawReplayed)
	}
	if s.witness == "seen" {
		j.namesPayer(s.request, c)
	}
	first := !s.underID || !s.allowed
	if s.allowed = true; first && s.allowedWith != nil {
		s.allowedWith(c)
	}
	j.consumed(s, c)
}

// consumed records what the limits that allow a request have admitted.
func (j *judge) consumed(s *sending, c *limiter.Call) {
	if s.underID && s.charged {
		return // an earlier answer was counted
	}
	s.charged = true
	sums := sumsOf(c)
	for i := range c.Results {
		r := &c.Results[i]
		b := j.bucket(string(r.Key))
		if r.Outcome == limiter.Shadowed || r.Outcome.Denies() || s.costs[r.Descriptor].settles {
			continue
		}
		if s.witness == "seen" { // the sum is admitted once; refunds are known from the servers, because an answer may be lost
			at := slices.IndexFunc(sums, func(p payment) bool { return p.key == string(r.Key) })
			if sums[at].units > 0 {
				b.admitted = append(b.admitted, admission{r.Decision.At, r.Decision.At, sums[at].units})
			}
			sums[at].units = 0
			continue
		}
		at, now := r.Decision.At, b.server.now()
		// A lease answers at once, with a time by the clock of the process.
		if b.leaseDuration != 0 && (now-at > 20_000 || s.moment == j.w.now) && s.pause == s.process.pausedUntil {
			at = now
		}
		until := at
		if b.sharded {
			for _, server := range j.w.servers {
				until = max(until, server.now())
			}
		}
		b.admitted = append(b.admitted, admission{at, until, r.Cost})
	}
}

func firstErr(c *limiter.Call) error {
	for i := range c.Results {
		if err := c.Results[i].Decision.Err; err != nil {
			return err
		}
	}
	return nil
}
