package simulate

import (
	"fmt"
	"io"
	"strings"

	"github.com/beorn7/perks/quantile"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// costRanks maps the percentiles of real costs to the largest error of their ranks.
var costRanks = map[float64]float64{0.5: 0.005, 0.9: 0.002, 0.99: 0.0005}

// reservations summarizes the calls of a limit whose cost was known later.
type reservations struct {
	settled, unknown, late int64 // numbers of calls: settled with a real cost, without one, and of all these the late ones
	reserved, real, lost   int64 // units of these calls
	covered                int64 // calls that cost at most what they had reserved
	costs                  *quantile.Stream
	most                   int64            // the largest real cost
	over                   map[string]int64 // by key: units by which the open calls will exceed their reservations
	mostOver               int64            // the largest value in over at any time
}

// isReservation reports whether r, one of c's Results, belongs to a limit with settle, or to a limit that was
// reserved by name. The reservation may have been denied.
func isReservation(c *limiter.Call, r *limiter.Result) bool {
	if len(c.Limits) > 0 {
		return c.Limits[r.Descriptor].Reserve
	}
	return r.Policy.Extra().Settle != nil
}

// addOpenExcess increases the open excess of each key by the units by which c's real cost will exceed its reservation.
// real is -1 if the real cost is unknown, and then nothing is added. The caller passes the result to removeOpenExcess
// when the call is settled.
func (t *tally) addOpenExcess(c *limiter.Call, real int64) (list []excess) {
	for i := range c.Results {
		r := &c.Results[i]
		if real <= r.Cost || !isReservation(c, r) || len(c.Limits) == 0 && !c.Reserves(r) {
			continue
		}
		row := t.byPolicy[r.Policy]
		if row.open.over == nil {
			row.open.over = map[string]int64{}
		}
		e := excess{row, string(r.Key), real - r.Cost}
		row.open.over[e.key] += e.units
		row.open.mostOver = max(row.open.mostOver, row.open.over[e.key])
		list = append(list, e)
	}
	return list
}

func (t *tally) removeOpenExcess(list []excess) {
	for _, e := range list {
		if e.row.open.over[e.key] -= e.units; e.row.open.over[e.key] == 0 {
			delete(e.row.open.over, e.key)
		}
	}
}

func (t *tally) settled(c *limiter.Call) {
	for i := range c.Settlements {
		s := &c.Settlements[i]
		if s.Policy == nil || s.Failed() {
			continue
		}
		o := &t.byPolicy[s.Policy].open
		o.reserved, o.real, o.lost = o.reserved+s.Reserved, o.real+s.Real, o.lost+s.Decision.Lost
		if s.Late {
			o.late++
		}
		if s.Unknown {
			o.unknown++
			continue
		}
		if o.costs == nil {
			o.costs = quantile.NewTargeted(costRanks)
		}
		o.settled++
		o.most = max(o.most, s.Real)
		o.costs.Insert(float64(s.Real))
		if s.Real <= s.Reserved {
			o.covered++
		}
	}
}

// realOf returns the cost of a request with Result r: the real cost of a reservation if the trace has it, otherwise the
// cost of the request.
func realOf(c *limiter.Call, r *limiter.Result, end outcome) int64 {
	if end.later && end.real >= 0 && isReservation(c, r) {
		return end.real
	}
	return r.Cost
}

func (t *tally) settlements(w io.Writer) {
	for _, r := range t.rows {
		o := r.open.document()
		if o == nil {
			continue
		}
		fmt.Fprintf(w, "\n%s: costs known later\n", titleOf(r.policy))
		fmt.Fprintf(w, "  %d calls reserved %d units and cost %d; %d were settled without a real cost, %d after the ttl; %d units were lost beyond max_debt.\n",
			o.Calls, o.Reserved, o.Real, o.Unknown, o.Late, o.Lost)
		known := o.Calls - o.Unknown
		if known == 0 {
			continue
		}
		fmt.Fprintf(w, "  Real costs: p50 %d, p90 %d, p99 %d, most %d. The reservation covered %s of the calls.\n", o.P50, o.P90, o.P99, o.Most, strings.Trim(percent(o.Covered, known), " ()"))
		fmt.Fprintf(w, "  Calls that one key had open at the same time cost up to %d units more than they had reserved. The key can exceed the limit by that number.\n", o.MostOver)
		if r.policy.Extra().Settle != nil {
			fmt.Fprintf(w, "  Suggestion: settle: {estimate: %d, most: %d}\n", max(1, o.P90), max(1, o.P99))
			fmt.Fprint(w, "    90 % of the calls cost at most the estimate. A lower one admits more calls at the same time, and exceeds the limit more.\n")
		}
	}
}

// countPaid counts a request for r.For, a limit that did not allow it. The limit of r paid for the request; the caller
// counts the request for that limit too.
func (t *tally) countPaid(now algorithms.Micros, c *limiter.Call, r *limiter.Result) {
	plan := t.byPolicy[r.For]
	plan.requests++
	plan.paidBy, plan.paid = t.byPolicy[r.Policy], plan.paid+1
	if plan.policy.Limit.Rate > 0 && !t.withoutHistory {
		own := *r
		own.Policy, own.For, own.Decision.Allowed = r.For, nil, true
		own.Key, _ = t.keyOf(c, &own)
		t.addToHistory(now, c, &own, plan)
	}
}

func (t *tally) writePayers(w io.Writer) {
	for _, r := range t.rows {
		if r.paid > 0 {
			fmt.Fprintf(w, "%s paid for %d requests that %s did not allow\n", titleOf(r.paidBy.policy), r.paid, titleOf(r.policy))
		}
	}
}
