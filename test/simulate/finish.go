package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// The judge makes these checks at the end of a run, after the last fault.

// startProbes sends each process a request, checks that it is allowed, and schedules repetitions of it. The method
// checkProbes checks the answers to the repetitions.
func (j *judge) startProbes() {
	w := j.w
	for _, p := range w.processes {
		l := &probe{request: &request{id: "live " + p.name, witness: "witness", costs: []cost{{limit: "witness", value: "live " + p.name, units: 1}}}, process: p}
		r := l.request
		r.allowedWith = func(*limiter.Call) { l.answers++ }
		w.after(0, p, func() {
			p.deliver(w.rng, []*request{r}, 0, nil)
		})
		// The first charge at another master may fail, because the process must examine the master's role and
		// load the script there. After a redirection (MOVED) no replica confirms the charge, because WAIT ran at
		// the former master.
		if w.layout != nil || w.watched != nil {
			w.after(20*time.Millisecond, p, func() { p.deliver(w.rng, []*request{r}, 0, nil) })
		}
		j.probes = append(j.probes, l)
	}
	w.run(w.now + int64(layoutTime))
	for _, l := range j.probes {
		if !l.request.allowed {
			j.fail("%s: a request is not allowed, though no fault is left", l.process.name)
		}
		l.answers, l.process.settled = 0, true
		for n := range repeats {
			w.after(time.Duration(n)*(timeout+2*time.Millisecond), l.process, func() { l.process.deliver(w.rng, []*request{l.request}, 0, nil) })
		}
	}
}

const (
	// repeats is the number of further requests that a process must allow after the first that it allowed.
	repeats = 3
	// layoutTime is longer than it takes a process to learn the layout of a Cluster after it was redirected: it reads the
	// layout at most every 200 ms.
	layoutTime = 250 * time.Millisecond
)

// probe is the request that the method startProbes sends to one process.
type probe struct {
	request *request
	process *process
	answers int // the number of answers that allowed it
}

func (j *judge) checkProbes() {
	for _, l := range j.probes {
		if l.answers < repeats {
			j.fail("%s: of %d requests only %d are allowed, though no fault is left", l.process.name, repeats, l.answers)
		}
	}
}

// redirected checks the reply of a server to p. Once no slot moves any more, a process that was redirected reads the
// layout again, and then calls the right masters. The flights of slow worlds may redirect it later for the first time.
func (j *judge) redirected(p *process, err error) {
	if p.settled && !j.w.isSlow && err != nil && strings.HasPrefix(err.Error(), "MOVED") {
		j.fail("%s is redirected, though it had the time to read the layout: %v", p.name, err)
	}
}

func (j *judge) finish() {
	w := j.w
	for s := range j.open {
		if !s.process.crashed {
			j.fail("request %s has no answer", s.id)
		}
		s.unknown = true
	}
	for _, p := range w.processes {
		if stats := p.cache.Stats(); stats.Leased != 0 || stats.Keys != 0 {
			j.fail("%s: leases are left: %+v", p.name, stats)
		}
		if stats := p.cache.Stats(); stats.Served > 0 {
			w.seen(sawLease)
		}
	}
	for _, s := range w.servers {
		for key, v := range s.keys {
			if v.until == 0 && v.fields == nil && v.list == nil {
				j.fail("%s: %q has no lifetime", s.name, key)
			}
		}
	}
	j.audited()
	j.slotsEnd()
	charged, executed := map[cost]int64{}, map[cost]int64{}
	for _, r := range j.requests {
		j.request(r, charged, executed)
	}
	keys := make([]string, 0, len(j.buckets))
	for key := range j.buckets {
		keys = append(keys, key)
	}
	for _, v := range j.flights {
		j.reserved(v)
	}
	slices.Sort(keys)
	for _, key := range keys {
		switch b := j.buckets[key]; b.limit {
		case "":
		case "slots", "rooms":
		case "own", "tokens", "budget":
			j.drawn(b)
		case "meter", "brief":
			j.conserved(key, b, charged)
			j.metered(b)
		case "debtor":
			if j.bounded(b); b.value != hotKey && !b.parted {
				j.conserved(key, b, executed)
			}
		case "shade":
			j.shared(b)
			j.bounded(b)
		case "plan", "pace", "credits":
			j.bounded(b)
		case "lenient", "strict", "share", "sharded", "quota", "burst":
			j.shared(b)
			j.bounded(b)
		case "shardday":
			j.shared(b)
			j.bounded(b)
			j.refunded(b)
		default:
			if b.value == hotKey && b.leaseDuration == 0 {
				j.shared(b)
				j.bounded(b)
				break
			}
			j.conserved(key, b, charged)
			j.bounded(b)
		}
	}
}

func (r *request) String() string {
	return fmt.Sprintf("%d attempts, charged %v, allowed %v, denied %v, untouched %d, unknown %v", r.attempts, r.charged, r.allowed, r.denied, r.untouched, r.unknown)
}

// request compares the answers to a request with the number of times that it was charged.
func (j *judge) request(r *request, charged, executed map[cost]int64) {
	if r.witness == "" {
		return
	}
	times, tries := int64(0), int64(0)
	if b := j.named[cost{limit: r.witness, value: r.id}]; b != nil {
		times, tries = b.charged, b.executed
	}
	for i := range r.costs {
		if k := &r.costs[i]; !k.settles {
			charged[*k.bucket()] += times * k.units
			executed[*k.bucket()] += tries * k.units
		}
	}
	if tries > times {
		j.w.seen(sawOverdrawn)
	}
	if r.witness == "seen" {
		j.paid(r)
	}
	j.kept(r)
	switch {
	case r.parted && (!j.w.faultless || r.unknown) && times > 0: // a request on two servers: its refunds may be lost, or a part may arrive late
	case times < 0 || times > int64(r.attempts) || r.underID && times > int64(1+j.losses+j.failovers): // a loss of data may include the record of the request's ID
		j.fail("request %s was charged %d times: %s", r.id, times, r)
	case r.charged && times == 0:
		j.fail("request %s was allowed, or denied in quota mode, but not charged: %s", r.id, r)
	case !r.charged && !r.unknown && times > 0:
		j.fail("request %s was charged, but denied: %s", r.id, r)
	}
}

// kept checks that no failover lost the charge of an allowed request, if the replicas had to confirm it
// (--redis-wait-replicas).
func (j *judge) kept(r *request) {
	w := j.w
	b := j.named[cost{limit: r.witness, value: r.id}]
	if w.waitReplicas == 0 || j.losses > 0 || j.clockSteppedBack || !r.allowed || b == nil || b.name == "" {
		return
	}
	s := w.holder(b.server, b.name)
	if b.window(b.first) != b.window(s.now()) {
		return // the window has ended, so the bucket may be gone
	}
	if j.failovers > 0 {
		w.seen(sawKept)
	}
	if s.get(b.name) == nil {
		j.fail("request %s was allowed after the replica had confirmed its charge, and a failover lost it: %s", r.id, r)
	}
}

// conserved checks that a bucket was charged exactly the costs of the requests whose witness was charged. A fixed
// window with leases must be charged at least the admitted units.
func (j *judge) conserved(key string, b *bucket, charged map[cost]int64) {
	admitted := b.sum()
	if b.leaseDuration == 0 {
		want := charged[cost{limit: b.limit, value: b.value}]
		// If a group over two servers is denied, a refund may be lost, or smaller because the bucket has
		// refilled meanwhile. But no refund may happen twice.
		if b.parted && (!j.w.faultless || j.unclean || b.windows() != 1 || j.resets[b.id()] > 0) {
			if b.charged < admitted {
				j.fail("%s %q: %d admitted, only %d charged", b.limit, key, admitted, b.charged)
			}
			return
		}
		if b.charged != want {
			j.fail("%s %q: %d charged, want %d, the costs of the requests whose witness was charged", b.limit, key, b.charged, want)
		}
		return
	}
	// After an adjustment of all keys, a lease whose grant is in flight is lost.
	if b.limit == "hotday" && j.w.faultless && !j.unclean && !j.w.hasOperators && b.windows() == 1 && b.charged != admitted {
		j.fail("%s %q: %d admitted, but %d charged, and no lease was lost", b.limit, key, admitted, b.charged)
	}
	if b.charged < admitted && b.kind == algorithms.FixedWindow {
		j.fail("%s %q: %d admitted, only %d charged", b.limit, key, admitted, b.charged)
	}
}

// shared checks a bucket whose requests may have no witness. The servers must have charged at least the units
// that they allowed. If on_backend_failure is local, each sidecar may allow a quarter of the limit without them.
func (j *judge) shared(b *bucket) {
	admitted, share := b.sum(), int64(0)
	if b.charged < admitted {
		j.fail("%s: %d admitted, only %d charged", b.limit, admitted, b.charged)
	}
	for _, l := range b.numbers {
		share = max(share, l.Rate/4)
	}
	for p, units := range b.local {
		if units > share {
			j.fail("%s: %s allowed %d without the store, its share is %d", b.limit, p.name, units, share)
		}
	}
}

// refunded checks that shards got a refund of the units that denied requests had charged. It checks only runs
// in which no refund can be lost.
func (j *judge) refunded(b *bucket) {
	if admitted := b.sum(); j.w.faultless && !j.unclean && b.windows() == 1 && b.charged != admitted {
		j.fail("%s: %d admitted, but %d charged, and no refund was lost", b.limit, admitted, b.charged)
	}
}

// bounded checks that no window, and no other span of time, admitted more than the limit.
func (j *judge) bounded(b *bucket) {
	if j.clockSteppedBack || j.clockStepped && b.leaseDuration != 0 { // a lease ends by the clock of its sidecar
		return
	}
	capacity, rate, period := int64(0), int64(0), int64(0)
	for _, l := range b.numbers {
		capacity, rate, period = max(capacity, l.Capacity), max(rate, l.Rate), int64(l.Period())
	}
	// After a loss of data the bucket is full again. A replaced master that still answers has a bucket of its own.
	capacity, rate = capacity*int64(1+j.losses+j.resets[b.id()])+b.returned, rate*int64(1+j.losses)
	slices.SortStableFunc(b.admitted, func(x, y admission) int { return cmp.Compare(x.at, y.at) })
	switch b.kind {
	case algorithms.FixedWindow:
		sums := map[int64]int64{}
		for _, a := range b.admitted {
			n := b.window(a.at)
			if b.window(a.until) != n {
				continue // it is not known which window a shard was charged in
			}
			if sums[n] += a.units; sums[n] > capacity {
				j.fail("%s: %d admitted in one window, the limit is %d", b.limit, sums[n], capacity)
				return
			}
		}
		if len(sums) > 1 && period > int64(algorithms.Second) {
			j.w.seen(sawEdge)
		}
	case algorithms.SlidingLog:
		j.spans(b, func(d int64) (int64, bool) { return rate, d < period })
	case algorithms.SlidingWindow:
		j.spans(b, func(d int64) (int64, bool) { return 2 * rate, d < period })
	default:
		j.spans(b, func(d int64) (int64, bool) {
			return capacity + b.inflow((d+int64(b.leaseDuration))*int64(1+j.losses)), true
		})
	}
}

// inflow returns the most units that flow into b in d microseconds.
func (b *bucket) inflow(d int64) (units int64) {
	for _, l := range b.numbers {
		n := l.Numbers()
		flow := n.Inflow()
		units = max(units, d*flow.Units/flow.Span)
	}
	return units
}

// spans checks each span of time from one admission to another. bound returns the number of units that a span of d
// microseconds may admit, and false if there is no bound.
func (j *judge) spans(b *bucket, bound func(d int64) (int64, bool)) {
	for i := range b.admitted {
		sum, within := int64(0), b.admitted[i:]
		if b.sharded {
			within = slices.SortedFunc(slices.Values(within), func(x, y admission) int { return cmp.Compare(x.until, y.until) })
		}
		for _, a := range within {
			sum += a.units
			d := int64(a.until - b.admitted[i].at)
			if n, bounded := bound(d); bounded && sum > n {
				j.fail("%s: %d admitted in %d us, the most is %s", b.limit, sum, d, strconv.FormatInt(n, 10))
				return
			}
		}
	}
}
