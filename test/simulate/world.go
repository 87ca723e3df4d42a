package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// fault is a kind of fault, or of another rare event, that the runs together must have.
type fault int

const (
	none fault = iota
	faultSlow
	faultLostCall
	faultLostAnswer
	faultResetBefore
	faultResetAfter
	faultCut
	faultDown
	faultRestart
	faultDataLost
	faultStuck
	faultRefuses
	faultScriptsLost
	faultServerForward
	faultServerBack
	faultCrash
	faultGraceful
	faultPause
	faultSuspend
	faultWallStep
	faultReload
	faultFailover
	faultRepeat
	faultCancel
	faultMigrate
	faultReplaced
	faultSettledTwice
	faultForged
	faultPromoted
	faultAborted
	faultLostMessage
	// These are events that faults or the plan cause.
	sawBreakerOpen
	sawLease
	sawDenied
	sawFailed
	sawNotTaken
	sawReplayed
	sawPending
	sawParts
	sawUnconfirmed
	sawGroupDenied
	sawMoved
	sawAsk
	sawTryAgain
	sawForeign
	sawSharded
	sawOtherPolicy
	sawLocal
	sawReserved
	sawSettledBefore
	sawLate
	sawCredits
	sawCreditsForTwo
	sawCreditsReplayed
	sawCreditsDenied
	sawCreditsNamed
	sawAdjusted
	sawExpired
	sawRaced
	sawUnknownChange
	sawRestored
	sawRewritten
	sawReportedLost
	sawReadOnly
	sawKept
	sawStaleName
	sawRetry
	sawReset
	sawSlot
	sawMeter
	sawHeader
	sawOverdrawn
	sawBlocked
	sawShadowed
	faults
)

var faultNames = [faults]string{
	none: "none", faultSlow: "slow link", faultLostCall: "call lost", faultLostAnswer: "answer lost",
	faultResetBefore: "connection reset before execution", faultResetAfter: "connection reset after execution",
	faultCut: "link cut", faultDown: "call of a server that is down", faultRestart: "server restarted",
	faultDataLost: "server restarted empty", faultStuck: "server stuck", faultRefuses: "server refuses commands",
	faultScriptsLost: "scripts flushed", faultServerForward: "server's clock steps forward",
	faultServerBack: "server's clock steps back", faultCrash: "sidecar crashes", faultGraceful: "sidecar restarted in order",
	faultPause: "sidecar paused", faultSuspend: "sidecar's machine suspended", faultWallStep: "sidecar's wall clock steps",
	faultReload: "configuration reloaded", faultRepeat: "request repeated under its ID", faultCancel: "request canceled",
	sawBreakerOpen: "circuit breaker opened", sawLease: "answered from a lease", sawDenied: "request denied",
	sawFailed: "answered by on_backend_failure", sawNotTaken: "certainly not charged", sawReplayed: "answer repeated",
	sawPending: "outcome of an ID not known", sawUnconfirmed: "charge not confirmed by the replica", faultFailover: "replica takes over", sawParts: "group of limits on two servers",
	sawGroupDenied: "group denied by one of its limits", sawOtherPolicy: "store failed, and no policy denied",
	sawLocal: "allowed by the sidecar's own bucket", sawReserved: "units reserved", sawSettledBefore: "settled before",
	sawLate: "settled too late for a refund", faultSettledTwice: "one reservation settled by several requests",
	faultForged: "id forged", faultMigrate: "slots of a Cluster move", faultReplaced: "replica of a Cluster takes over",
	sawMoved: "MOVED", sawAsk: "ASK", sawTryAgain: "TRYAGAIN", sawForeign: "script met a key of another master",
	sawSharded: "shard charged", sawCredits: "paid by credits", sawCreditsForTwo: "credits pay for two limits",
	sawAdjusted: "decided by adjusted numbers", sawExpired: "adjustment expired", sawRaced: "operators race",
	sawUnknownChange: "outcome of a change not known", sawRestored: "adjustments restored into an empty server",
	faultPromoted: "Sentinels promote a replica", faultAborted: "failover of Sentinels aborted", faultLostMessage: "message of a Sentinel lost",
	sawReadOnly:  "command to an old master, now a replica",
	sawKept:      "confirmed charge checked after a failover",
	sawStaleName: "Sentinel names the old master after a failover",
	sawRetry:     "retry time compared with the server",
	sawReset:     "bucket reset",
	sawSlot:      "slot taken",
	sawMeter:     "settled by its bucket", sawHeader: "settled by a header", sawOverdrawn: "denied, and charged nevertheless",
	sawBlocked: "blocked by a penalty", sawShadowed: "denied only in shadow mode",
	sawRewritten: "changes made again that a failover lost", sawReportedLost: "adjustment reported as lost", sawCreditsReplayed: "answer repeated that names credits", sawCreditsDenied: "denied by a limit and its credits", sawCreditsNamed: "credits named beside their limit, or topped up",
}

type Counts [faults]int

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
	lastPoll         int64 // sidecars stop polling adjustments and Sentinels at this time; 0 means never
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

// limits is the configuration of all runs, in which some numbers differ. The limits witness, once and own
// have one bucket for each request. So the judge knows whether a request was charged.
const limits = `
domain: sim
limits:
  reserved: {algorithm: fixed_window, rate: 60, period: 24h}
  once: {algorithm: fixed_window, rate: 1000, period: 24h}
  tuned: {algorithm: fixed_window, rate: 30, period: 24h}
  quick: {algorithm: fixed_window, rate: 20, period: 100ms}
  own: {algorithm: fixed_window, rate: 1002, period: 24h, settle: {estimate: 20, ttl: 1m}}
  tokens: {algorithm: fixed_window, rate: 300, period: 24h, settle: {estimate: 20, ttl: 1s}}
  budget: {algorithm: token_bucket, rate: 300, period: 1s, capacity: 100, settle: {estimate: 20, max_debt: 40, ttl: 1m}}
  slots: {algorithm: concurrency, capacity: 3, ttl: 10m}
  meter: {algorithm: fixed_window, rate: 300, period: 24h, settle: {by: bucket, estimate: 20, max_debt: 40, ttl: 10m}}
  brief: {algorithm: fixed_window, rate: 300, period: 24h, settle: {by: bucket, estimate: 20, max_debt: 40, ttl: 1s}}
descriptors:
  - {key: meter, limit: meter}
  - {key: brief, limit: brief}
  - {key: slots, limit: slots}
  - {key: witness, rate_limit: {algorithm: fixed_window, rate: 1001, period: 24h}}
  - {key: day, rate_limit: {algorithm: fixed_window, rate: %[1]d, period: 24h}}
  - {key: window, rate_limit: {algorithm: fixed_window, rate: %[2]d, period: 100ms}}
  - {key: bucket, rate_limit: {algorithm: token_bucket, rate: %[3]d, period: 1s, capacity: %[2]d}}
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
  - {key: shardday, rate_limit: {algorithm: fixed_window, rate: %[2]d, period: 24h, shards: 3}}
  - {key: hotday, rate_limit: {algorithm: fixed_window, rate: %[4]d, period: 24h, lease: {max: 10%%, for: 100ms}}}
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
  plan: {algorithm: fixed_window, rate: %[2]d, period: 24h, then: credits}
  pace: {algorithm: token_bucket, rate: %[3]d, period: 1m, capacity: 6, then: credits}
  seen: {algorithm: fixed_window, rate: 1003, period: 24h}
descriptors:
  - {key: plan, limit: plan}
  - {key: pace, limit: pace}
  - {key: seen, limit: seen}
`

// variants are the numbers of limits and plans in each configuration.
var variants = [][4]int{{80, 12, 40, 300}, {200, 5, 100, 1000}, {60, 20, 300, 200}, {120, 8, 20, 600}}

var compiled = func() (all []*limiter.Snapshot) {
	for _, v := range variants {
		s, problems := config.Compile([]config.File{
			{Name: "sim.yaml", Data: fmt.Appendf(nil, limits, v[0], v[1], v[2], v[3])},
			{Name: "plans.yaml", Data: fmt.Appendf(nil, plans+"# %[1]d %[4]d", v[0], v[1], v[2], v[3])},
		}, config.Options{})
		if s == nil {
			panic(fmt.Sprint(problems))
		}
		all = append(all, s)
	}
	return all
}()

// limitNumbers identify a limit in all configurations by its numbers.
type limitNumbers [18]int64

func numbersOf(l *algorithms.Limit) limitNumbers {
	n, overdraws := scaled.Of(l), int64(0)
	if l.Overdraw {
		overdraws = 1
	}
	return limitNumbers{int64(l.Kind), l.Capacity, l.MaxReserved, l.Rate, n.Period, n.P, n.Q, n.V, n.Tick, l.Initial, n.P1, n.V1, l.MaxDebt, int64(l.OpenFor),
		l.Penalty.After, int64(l.Penalty.For), int64(l.Penalty.Max), overdraws}
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

func (w *world) limitsOf(all []*algorithms.Limit, text string) []*algorithms.Limit {
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
		l := knownLimits[n]
		if l == nil {
			panic(fmt.Sprintf("simulate: no configuration has the limit %v", n))
		}
		all = append(all, l)
	}
	return all
}

func newWorld(p Plan, log func(string, ...any)) *world {
	w := &world{loop: newLoop(p.Seed), plan: p, log: log}
	w.judge = &judge{w: w, buckets: map[string]*bucket{}, slots: map[string]*slotsOf{}, named: map[cost]*bucket{}, resets: map[cost]int{}, open: map[*sending]bool{}}
	w.faultless = w.rng.IntN(5) == 0
	w.noMoreFaults = w.faultless
	w.clockMayStepBack, w.mayLoseData = w.rng.IntN(4) == 0, w.rng.IntN(4) == 0
	w.hasOperators = w.rng.IntN(4) == 0
	w.length = time.Duration(50+w.rng.IntN(250)) * time.Millisecond
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
		w.waitReplicas = w.rng.IntN(2)
		for _, s := range w.servers {
			s.lag = time.Duration(1+w.rng.IntN(1500)) * time.Microsecond
		}
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

func (w *world) repair() {
	w.noMoreFaults = true
	for i := range w.links {
		w.links[i].cutUntil, w.links[i].slowUntil = 0, 0
	}
	for _, s := range w.servers {
		s.up, s.refuses, s.stuckUntil = true, "", 0
	}
	w.note("all faults end")
}

func (w *world) fault(rng *rand.Rand) {
	span := time.Duration(rng.Int64N(1 + rng.Int64N(int64(150*time.Millisecond))))
	if rng.IntN(4) == 0 { // long enough to open circuit breakers
		span += 150 * time.Millisecond
	}
	if w.noMoreFaults {
		return
	}
	s, i := w.servers[rng.IntN(len(w.servers))], rng.IntN(len(w.processes))
	kind := rng.IntN(18)
	switch {
	case w.layout != nil && kind >= 14:
		kind = 18
	case w.watched != nil && (kind == 3 || kind == 4 || kind >= 14):
		kind = 19
	}
	switch kind {
	case 0, 1:
		w.note("link of %s cut for %v", w.processes[i].name, span)
		w.links[i].cutUntil = w.now + int64(span)
	case 2:
		w.note("link of %s slow for %v", w.processes[i].name, span)
		w.links[i].slowUntil = w.now + int64(span)
	case 3, 4:
		w.restart(s, span)
	case 5:
		w.note("server stuck for %v", span)
		w.seen(faultStuck)
		s.stuckUntil = w.now + int64(span)
	case 6:
		s.refuses = []string{"LOADING Redis is loading the dataset in memory", "OOM command not allowed", "BUSY Redis is busy", "READONLY You can't write against a read only replica."}[rng.IntN(4)]
		w.note("server refuses for %v: %s", span, s.refuses)
		w.seen(faultRefuses)
		w.afterPlain(span, nil, func() { s.refuses = "" })
	case 7:
		w.note("scripts flushed")
		w.seen(faultScriptsLost)
		clear(s.scripts)
	case 8:
		w.step(s, span)
	case 9, 10:
		w.crash(i)
	case 11:
		w.graceful(i)
	case 12:
		w.pause(w.processes[i], span, rng.IntN(2) == 0)
	case 13:
		w.note("%s: wall clock steps by %v", w.processes[i].name, span)
		w.seen(faultWallStep)
		w.processes[i].wallAhead += 2*span - 200*time.Millisecond
	case 14:
		w.stall(s, span)
		if s.lag > 0 && rng.IntN(2) == 0 { // this failover may lose charges that no replica has confirmed
			w.afterPlain(span/2, nil, func() {
				if !w.noMoreFaults {
					w.restart(s, span/4)
				}
			})
		}
	case 18:
		for range 1 + rng.IntN(3) {
			w.migrate(rng, w.servers[rng.IntN(len(w.servers))])
		}
	case 19:
		w.fail(rng, span/2)
	default:
		w.snapshot = compiled[rng.IntN(len(compiled))]
		w.note("reload")
		w.seen(faultReload)
		for _, p := range w.processes {
			w.after(time.Duration(rng.Int64N(int64(10*time.Millisecond))), p, func() { p.reload(w.snapshot) })
		}
	}
}

// stall stops the replication of s for span.
func (w *world) stall(s *server, span time.Duration) {
	w.note("%s: replication stands still for %v", s.name, span)
	s.replicaCurrentAt = max(s.replicaCurrentAt, w.now+int64(span))
}

// restart stops a server for span. If it has a replica, the replica takes over. Charges that the replica does not have
// yet are lost. Otherwise the same server starts again, without its data if w.mayLoseData is set.
func (w *world) restart(s *server, span time.Duration) {
	if w.layout != nil && s.lag > 0 {
		w.replace(s, span)
		return
	}
	w.seen(faultRestart)
	s.up = false
	if s.lag > 0 { // if all replicas confirm each charge (--redis-wait-replicas), a failover loses no confirmed charge
		w.seen(faultFailover)
		w.note("%s: its replica takes over, after %v", s.name, span)
		s.failover()
		if w.judge.failovers++; w.waitReplicas == 0 {
			w.judge.lost()
		}
		w.afterPlain(span, nil, func() { s.up = true })
		return
	}
	clear(s.scripts)
	if w.mayLoseData {
		w.seen(faultDataLost)
		clear(s.keys)
		w.judge.lost()
	}
	w.note("server down for %v, data lost: %v", span, w.mayLoseData)
	w.afterPlain(span, nil, func() { s.up = true })
}

func (w *world) step(s *server, by time.Duration) {
	f := faultServerForward
	if w.clockMayStepBack {
		f, by = faultServerBack, -by
		w.judge.clockSteppedBack = true
	}
	w.judge.clockStepped = true
	w.seen(f)
	w.note("server's clock steps by %v", by)
	for _, other := range w.servers {
		if other == s || w.layout != nil || w.watched != nil {
			other.clock += algorithms.Micros(by.Microseconds())
		}
	}
}

func (w *world) crash(i int) {
	w.seen(faultCrash)
	p := w.processes[i]
	w.note("%s crashes", p.name)
	p.crashed = true
	w.judge.crashed()
	w.boots++
	w.processes[i] = w.start(p.name[:1] + strings.Repeat("'", w.boots))
}

func (w *world) graceful(i int) {
	w.seen(faultGraceful)
	p := w.processes[i]
	w.note("%s ends", p.name)
	p.closing = true
	w.after(1500*time.Millisecond, p, p.cache.Close)
	w.boots++
	w.processes[i] = w.start(p.name[:1] + strings.Repeat("'", w.boots))
}

// pause stops a process for span. runs reports whether its machine, and so its monotonic clock, runs meanwhile.
func (w *world) pause(p *process, span time.Duration, runs bool) {
	if p.pausedUntil > w.now {
		return
	}
	p.pausedUntil = w.now + int64(span)
	if runs {
		w.seen(faultPause)
		w.note("%s paused for %v", p.name, span)
		return
	}
	w.seen(faultSuspend)
	w.note("%s suspended for %v", p.name, span)
	p.suspended += span // a paused process reads no clock, so the whole span can be added now
	p.wallAhead += span
}
