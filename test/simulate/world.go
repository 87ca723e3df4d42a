package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Plan describes a run. Each client and each fault has its own random numbers. So the others do not change if
// one is left out.
type Plan struct {
	Seed    uint64
	Without []string      // clients and faults to leave out, such as c0 and f1
	Until   time.Duration // the time at which clients and faults stop; 0 means that the seed decides
}

type world struct {
	*loop

	plan             Plan
	noMoreFaults     bool
	faultless        bool
	clockMayStepBack bool
	waitReplicas     int
	mayLoseData      bool
	hasOperators     bool
	untilEdge        time.Duration // the longest time that the clocks of servers are before the edge at first
	isSlow           bool          // clients and faults take ten times as long, so slots expire
	lastPoll         int64         // sidecars stop polling adjustments and Sentinels at this time; 0 means never
	counts           Counts
	log              func(format string, args ...any) // nil if there is no log
	judge            *judge
	servers          []*server
	layout           *layout  // nil if Redis is not a Cluster
	watched          *watched // nil if there are no Sentinels
	processes        []*process
	started          []*process // all processes, including those that have ended
	links            [8]link
	snapshot         *limiter.Snapshot
	length           time.Duration
	clients          int
	plannedFaults    int
	requests         int
	boots            int
	taking           batchCharging
}

func (w *world) seen(f fault) {
	w.counts[f]++
	w.mix(uint64(f))
}

func (w *world) note(format string, args ...any) {
	if w.log != nil {
		w.log("%10.3f ms  "+format, append([]any{float64(w.now) / 1e6}, args...)...)
	}
}

func (w *world) breaker(p *process, open bool) {
	if open {
		w.seen(sawBreakerOpen)
	}
	w.note("%s: circuit breaker open: %v", p.name, open)
}

// limits is the configuration of all runs, in which some numbers and windows differ. The limits witness, once and
// own have one bucket for each request. So the judge knows whether a request was charged.
const limits = `
domain: sim
limits:
  reserved: {algorithm: fixed_window, rate: 60, %[5]s}
  once: {algorithm: fixed_window, rate: 1000, period: 24h}
  tuned: {algorithm: fixed_window, rate: 30, period: 24h}
  quota: {algorithm: fixed_window, rate: %[2]d, %[5]s, quota_mode: true}
  burst: {algorithm: token_bucket, rate: %[3]d, period: 1s, capacity: %[2]d, quota_mode: true}
  quick: {algorithm: fixed_window, rate: 20, period: 100ms}
  own: {algorithm: fixed_window, rate: 1002, period: 24h, settle: {estimate: 20, ttl: 1m}}
  tokens: {algorithm: fixed_window, rate: 300, %[5]s, settle: {estimate: 20, ttl: 1s}}
  budget: {algorithm: token_bucket, rate: 300, period: 1s, capacity: 100, settle: {estimate: 20, max_debt: 40, ttl: 1m}}
  slots: {algorithm: concurrency, capacity: 3, ttl: 10m}
  rooms: {algorithm: concurrency, capacity: 3, ttl: 1s}
  meter: {algorithm: fixed_window, rate: 300, period: 24h, settle: {by: bucket, estimate: 20, max_debt: 40, ttl: 10m}}
  brief: {algorithm: fixed_window, rate: 300, period: 24h, settle: {by: bucket, estimate: 20, max_debt: 40, ttl: 1s}}
descriptors:
  - {key: quota, limit: quota}
  - {key: burst, limit: burst}
  - {key: meter, limit: meter}
  - {key: brief, limit: brief}
  - {key: slots, limit: slots}
  - {key: rooms, limit: rooms}
  - {key: witness, rate_limit: {algorithm: fixed_window, rate: 1001, period: 24h}}
  - {key: day, rate_limit: {algorithm: fixed_window, rate: %[2]d, %[5]s}}
  - {key: window, rate_limit: {algorithm: fixed_window, rate: %[2]d, period: 100ms}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, rate: %[3]d, period: 1s, capacity: %[2]d}}
  - {key: sure, rate_limit: {algorithm: token_bucket, rate: %[3]d, period: 1s, capacity: %[2]d, guaranteed: {rate: 3, period: 100ms}}}
  - {key: slide, rate_limit: {algorithm: sliding_window, rate: %[2]d, period: 200ms}}
  - {key: log, rate_limit: {algorithm: sliding_log, rate: %[2]d, period: 150ms}}
  - {key: queue, rate_limit: {algorithm: leaky_bucket, rate: %[3]d, period: 1s, capacity: %[2]d}}
  - {key: tuned, limit: tuned}
  - {key: own, limit: own}
  - {key: tokens, limit: tokens}
  - {key: budget, limit: budget}
  - {key: shade, shadow_mode: true, rate_limit: {algorithm: fixed_window, rate: %[2]d, period: 24h}}
  - {key: debtor, rate_limit: {algorithm: fixed_window, rate: %[2]d, period: 24h, overdraw: true}}
  - {key: guarded, rate_limit: {algorithm: fixed_window, rate: %[2]d, period: 24h, penalty: {after: 2, for: 1s, max: 2s}}}
  - {key: lenient, rate_limit: {algorithm: fixed_window, rate: %[1]d, period: 24h, on_backend_failure: allow}}
  - {key: strict, rate_limit: {algorithm: fixed_window, rate: %[1]d, period: 24h, on_backend_failure: error}}
  - {key: share, rate_limit: {algorithm: fixed_window, rate: %[2]d, period: 24h, on_backend_failure: local, local_share: 25%%}}
  - {key: sharded, rate_limit: {algorithm: token_bucket, rate: %[3]d, period: 1s, capacity: %[2]d, shards: 3}}
  - {key: shardday, rate_limit: {algorithm: fixed_window, rate: %[2]d, %[5]s, shards: 3}}
  - {key: hotday, rate_limit: {algorithm: fixed_window, rate: %[4]d, %[5]s, lease: {max: 10%%, for: 100ms}}}
  - {key: hotwindow, rate_limit: {algorithm: fixed_window, rate: %[3]d, period: 40ms, lease: {max: 50%%, for: 30ms}}}
  - {key: hotbucket, rate_limit: {algorithm: token_bucket, rate: %[4]d, period: 1s, capacity: %[1]d, lease: {max: 10%%, for: 50ms}}}
`

// plans configures limits whose credits pay for requests that they deny. The limit "seen" is the witness of
// these requests.
const plans = `
domain: plans
hash_tag: domain
limits:
  credits: {algorithm: token_bucket, rate: 100, period: 1m, capacity: %[2]d}
  plan: {algorithm: fixed_window, rate: %[2]d, %[5]s, then: credits}
  pace: {algorithm: token_bucket, rate: %[3]d, period: 1m, capacity: 6, then: credits}
  seen: {algorithm: fixed_window, rate: 1003, period: 24h}
descriptors:
  - {key: plan, limit: plan}
  - {key: pace, limit: pace}
  - {key: seen, limit: seen}
`

// variants are the numbers and the windows of limits and plans in each configuration. All these windows end at the
// edge or soon after it.
var variants = [][]any{
	{80, 12, 40, 300, "period: day, time_zone: Europe/Berlin"},
	{200, 5, 100, 1000, "period: week, time_zone: Europe/Berlin"},
	{60, 20, 300, 200, "period: month, time_zone: Europe/Berlin"},
	{120, 8, 20, 600, "period: 23h, start: 2148-03-31T22:00:00.02Z"},
}

var compiled = func() (all []*limiter.Snapshot) {
	for _, v := range variants {
		s, problems := config.Compile([]config.File{
			{Name: "sim.yaml", Data: fmt.Appendf(nil, limits, v...)},
			{Name: "plans.yaml", Data: fmt.Appendf(nil, plans+"# %[1]d %[4]d", v...)},
		}, config.Options{})
		if s == nil {
			panic(fmt.Sprint(problems))
		}
		all = append(all, s)
	}
	return all
}()

// limitNumbers identify a limit in all configurations by its numbers.
type limitNumbers [19]int64

func numbersOf(l *algorithms.Limit) limitNumbers {
	n, overdraws, calendar := l.Numbers(), int64(0), int64(0)
	if l.Overdraw {
		overdraws = 1
	}
	if c := l.Calendar; c != nil {
		calendar = int64(xxhash.Sum64String(c.Unit+" "+c.Zone) >> 11)
	}
	return limitNumbers{int64(l.Kind), l.Capacity, l.MaxReserved, l.Rate, n.Period, n.P, n.Q, n.V, n.Tick, l.Initial, n.P1, n.V1, l.MaxDebt, int64(l.OpenFor),
		l.Penalty.After, int64(l.Penalty.For), int64(l.Penalty.Max), overdraws, calendar}
}

var knownLimits = func() map[limitNumbers]*algorithms.Limit {
	all := map[limitNumbers]*algorithms.Limit{}
	for _, s := range compiled {
		for _, p := range s.Policies {
			for _, l := range slices.Concat(shardsOf(p), tunedLimits(p), []*algorithms.Limit{p.Limit}) {
				all[numbersOf(l)] = l
			}
		}
	}
	all[numbersOf(resetMark)], all[numbersOf(slotLimit)] = resetMark, slotLimit
	return all
}()

func shardsOf(p *limiter.Policy) (all []*algorithms.Limit) {
	for i := range p.Extra().Shards {
		all = append(all, &p.Extra().Shards[i])
	}
	return all
}

// limitsOf appends the limits that text describes to all, and checks the windows of their calendars. now must be in the
// four last ones of those that text has, and not near the end of the last one, or known is false.
func (w *world) limitsOf(all []*algorithms.Limit, text string, now algorithms.Micros) (_ []*algorithms.Limit, known bool) {
	for r := (reader{text: text}); r.at < len(text); {
		var n limitNumbers
		n[0] = r.number()
		flags := r.number()
		read := func(from, to int) {
			for i := from; i < to; i++ {
				n[i] = r.number()
			}
		}
		n[17] = flags & 1
		read(1, 12)
		if flags&64 != 0 {
			read(12, 14)
		}
		if flags&16 != 0 {
			read(14, 17)
		}
		var first int64
		if flags&8 != 0 {
			read(18, 19)
			first = r.number()
			r.number() // the length of the longest window
		}
		l := knownLimits[n]
		if l == nil {
			panic(fmt.Sprintf("simulate: no configuration has the limit %v", n))
		}
		for i := int64(0); l.Calendar != nil && i < 5; i++ {
			start := l.Calendar.Start(first + i)
			if is := r.number(); is != int64(start) {
				w.judge.fail("a sidecar states that %s %d starts at %d, want %d", l.Calendar.Unit, first+i, is, start)
			}
			if i == 1 && now < start || i == 4 && now+60*algorithms.Second >= start {
				w.seen(sawOutside)
				return nil, false
			}
		}
		all = append(all, l)
	}
	return all, true
}

func newWorld(p Plan, log func(string, ...any)) *world {
	w := &world{loop: newLoop(p.Seed), plan: p, log: log, counts: make(Counts, len(faultNames))}
	w.judge = &judge{w: w, buckets: map[string]*bucket{}, slots: map[string]*slotsOf{}, rooms: map[string][]*stay{}, named: map[cost]*bucket{}, resets: map[cost]int{}, open: map[*sending]bool{}}
	w.faultless = w.rng.IntN(5) == 0
	w.noMoreFaults = w.faultless
	w.clockMayStepBack, w.mayLoseData = w.rng.IntN(4) == 0, w.rng.IntN(4) == 0
	w.hasOperators = w.rng.IntN(4) == 0
	w.length = time.Duration(50+w.rng.IntN(250)) * time.Millisecond
	if w.isSlow = w.rng.IntN(6) == 0; w.isSlow {
		w.length *= 10
	}
	w.untilEdge = []time.Duration{w.length, w.length, 12 * time.Hour, clocksApart}[w.rng.IntN(4)]
	w.snapshot = compiled[w.rng.IntN(len(compiled))]
	switch w.rng.IntN(7) {
	case 0, 1:
		w.newCluster()
	case 3:
		w.newWatched()
	case 2:
		w.servers = []*server{newServer(w, "r0"), newServer(w, "r1")}
	default:
		w.servers = []*server{newServer(w, "r0")}
	}
	if w.watched == nil && w.rng.IntN(4) == 0 {
		w.addReplicas()
	}
	for i := range 1 + w.rng.IntN(3) {
		least := time.Duration(50+w.rng.IntN(500)) * time.Microsecond
		w.links[i] = link{least: least, most: least + time.Duration(1+w.rng.IntN(1500))*time.Microsecond}
		if w.rng.IntN(2) == 0 {
			w.links[i].faultsPerMille = w.rng.IntN(100)
		}
		w.links[i].rng = w.stream('l', i)
		w.processes = append(w.processes, w.start(string(rune('a'+i))))
	}
	return w
}

// addReplicas gives each server one or two replicas, of which none, some or all must confirm charges.
func (w *world) addReplicas() {
	n := 1 + w.rng.IntN(2)
	w.waitReplicas = w.rng.IntN(n + 1)
	for _, s := range w.servers {
		s.lag = time.Duration(1+w.rng.IntN(1500)) * time.Microsecond
		s.replicate(n)
	}
}

// stream returns the random numbers of item n of a kind: c (clients), f (faults), p (processes), l (links) or a (operators).
func (w *world) stream(kind rune, n int) *rand.Rand {
	return rand.New(rand.NewPCG(w.plan.Seed, uint64(kind)<<32|uint64(n)))
}

// parts returns the names of the clients (c0…) and faults (f0…) of the world, and "a" if it has operators.
func (w *world) parts() (names []string) {
	for n := range w.clients {
		names = append(names, fmt.Sprintf("c%d", n))
	}
	if w.hasOperators {
		names = append(names, "a")
	}
	for n := range w.plannedFaults {
		names = append(names, fmt.Sprintf("f%d", n))
	}
	return names
}

func (w *world) omits(part string) bool { return slices.Contains(w.plan.Without, part) }

// runPlan runs the world to its end: the requests and the faults, the repair, and the last checks. judge.problems then
// has the problems of the whole run.
func (w *world) runPlan() {
	w.clients = 1 + w.rng.IntN(2)
	if !w.noMoreFaults {
		w.plannedFaults = 1 + w.rng.IntN(3)
	}
	whole := w.length
	if w.plan.Until > 0 {
		w.length = min(w.length, w.plan.Until)
	}
	for n := range w.clients {
		if rng := w.stream('c', n); !w.omits(fmt.Sprintf("c%d", n)) {
			w.client(n, rng, whole)
		}
	}
	for n := range w.plannedFaults {
		if rng := w.stream('f', n); !w.omits(fmt.Sprintf("f%d", n)) {
			w.after(time.Duration(rng.Int64N(int64(whole))), nil, func() { w.fault(rng) })
		}
	}
	if w.hasOperators && !w.omits("a") {
		w.operate(w.stream('a', 0))
	}
	w.run(int64(w.length))
	w.repair()
	w.run(w.now + int64(400*time.Millisecond)) // circuit breakers probe at least every 200 ms
	switch {
	case w.watched != nil: // for 5 s after a switch, sidecars ignore polls that name an old master; a lost poll is repeated after 1 s
		w.lastPoll = w.now + int64(6200*time.Millisecond)
	case w.hasOperators: // a lost call of the ledger ends after 1 s
		w.lastPoll = w.now + int64(1200*time.Millisecond)
	}
	w.run(max(w.now, w.lastPoll))
	w.judge.converged()
	w.judge.startProbes()
	w.run(w.now + int64(50*time.Millisecond))
	w.judge.checkProbes()
	if !w.run(w.now + int64(20*time.Second)) {
		w.judge.fail("20 s after the end there are still events")
	}
	for _, p := range w.processes {
		w.do(p.cache.Close)
	}
	w.run(w.now + int64(5*time.Second))
	w.judge.finish()
	if len(w.events) > 0 {
		return
	}
	for _, p := range w.started {
		p.close()
	}
}

// releaseEnded clears w and its processes. Pools of the code under test still refer to them until the next
// garbage collection. Unless they are cleared, all memory of the run stays in use until then.
func (w *world) releaseEnded() {
	for _, p := range w.started {
		*p = process{}
	}
	*w = world{}
}
