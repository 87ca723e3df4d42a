package simulate

import (
	"slices"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// reserved checks at the end how much v's own bucket was charged: the estimate or one of the real costs, once,
// or nothing if the request was not allowed.
func (j *judge) reserved(v *flight) {
	b := j.named[cost{limit: "own", value: v.request.id}]
	if b == nil || j.losses+j.failovers > 0 {
		return // a new bucket may settle a reservation whose record is lost
	}
	may := slices.Clone(v.sent)
	if !v.settled || v.late {
		may = append(may, estimate)
	}
	if !v.allowed && (v.unknown || v.parted) || !v.allowed && !v.unknown {
		may = append(may, 0)
	}
	if j.clockSteppedBack && b.charged >= 0 && b.charged <= realEnd {
		return // a refund may be smaller then
	}
	// An attempt in parts that was denied may have charged the estimate, and its refund may be lost.
	lost := func(want int64) bool {
		return v.parted && !j.w.faultless && b.charged > want && (b.charged-want)%estimate == 0
	}
	if !slices.Contains(may, b.charged) && !slices.ContainsFunc(may, lost) {
		j.fail("%s: its own bucket was charged %d, and may be charged %v: %s, settled %v", v.request.id, b.charged, may, v.request, v.settled)
	}
}

// drawn checks the buckets of reservations. Each may be charged its limit, plus the amounts by which real
// costs exceed their estimates.
func (j *judge) drawn(b *bucket) {
	capacity, beyond := int64(0), int64(0)
	for _, l := range b.numbers {
		capacity = max(capacity, l.Capacity)
	}
	for _, v := range j.flights {
		for i := range v.costs {
			if v.costs[i].limit == b.limit && v.costs[i].value == b.value && len(v.sent) > 0 {
				beyond += max(0, slices.Max(v.sent)-estimate)
			}
		}
	}
	capacity *= int64(1+j.resets[b.id()]) * max(1, b.windows())
	if b.kind == algorithms.TokenBucket {
		l := b.numbers[0] // all configurations have the same number
		capacity += int64(b.last-b.first)*l.Rate/(int64(l.Period())) + 1
	}
	if j.losses+j.failovers == 0 && !j.clockStepped && (b.charged > capacity+beyond || b.charged < 0) {
		j.fail("%s %s: %d charged, the limit is %d and settlements may add %d", b.limit, b.value, b.charged, capacity, beyond)
	}
}

// metered checks a bucket that settles reservations without ids. Once all reservations have expired that no request has
// settled, it was charged exactly the costs that the servers settled: at least those of all answers, and at most those of
// all requests. The method conserved checks the reservations.
func (j *judge) metered(b *bucket) {
	sent := int64(0)
	for _, r := range j.requests {
		for i := range r.costs {
			if k := &r.costs[i]; k.settles && *k.bucket() == b.id() {
				sent += k.units
			}
		}
	}
	if b.settled < b.confirmed || b.settled > sent {
		j.fail("%s %s: the servers settled %d, answers confirm %d, requests stated %d", b.limit, b.value, b.settled, b.confirmed, sent)
	}
	if j.losses+j.failovers > 0 || j.clockStepped || j.resets[b.id()] > 0 || b.name == "" {
		return
	}
	l, s := b.numbers[0], j.w.holder(b.server, b.name)
	end := s.now() + l.OpenFor + l.OpenFor/8
	if b.window(b.first) != b.window(end) {
		return
	}
	d := b.decide(l, s.state(b.name), end, 0)
	if want := l.Capacity - b.settled + b.lost; d.Value != want {
		j.fail("%s %s: %d left when all reservations have expired, want %d: %d of the costs %d were lost", b.limit, b.value, d.Value, want, b.lost, b.settled)
	}
}
