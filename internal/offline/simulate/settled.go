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

// SettledCosts summarizes the calls of a limit whose costs were known later, in units.
type SettledCosts struct {
	Calls    int64 `json:"calls"`   // with a real cost, and without one
	Unknown  int64 `json:"unknown"` // without one
	Late     int64 `json:"late"`
	Reserved int64 `json:"reserved"`
	Real     int64 `json:"real"`
	Lost     int64 `json:"lost"`
	// The following are of the calls whose costs are known. They are 0 if there are none.
	P50      int64 `json:"p50"`
	P90      int64 `json:"p90"`
	P99      int64 `json:"p99"`
	Most     int64 `json:"most"`
	Covered  int64 `json:"covered"`   // calls that cost at most what they had reserved
	MostOver int64 `json:"most_over"` // the most units above its reservations that one key had open

	costs *quantile.Stream
}

// overdrafts has, for each key of a limit, the units by which its open calls will exceed their reservations.
type overdrafts struct {
	open map[string]int64
	most int64 // the largest value in open at any time
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
		of := &t.byPolicy[r.Policy].over
		if of.open == nil {
			of.open = map[string]int64{}
		}
		e := excess{of, string(r.Key), real - r.Cost}
		of.open[e.key] += e.units
		of.most = max(of.most, of.open[e.key])
		list = append(list, e)
	}
	return list
}

func removeOpenExcess(list []excess) {
	for _, e := range list {
		if e.of.open[e.key] -= e.units; e.of.open[e.key] == 0 {
			delete(e.of.open, e.key)
		}
	}
}

func (t *tally) settled(c *limiter.Call) {
	for i := range c.Settlements {
		s := &c.Settlements[i]
		if s.Policy == nil || s.Failed() {
			continue
		}
		of := t.byPolicy[s.Policy]
		if of.Settled == nil {
			of.Settled = &SettledCosts{costs: quantile.NewTargeted(costRanks)}
		}
		o := of.Settled
		o.Calls++
		o.Reserved, o.Real, o.Lost = o.Reserved+s.Reserved, o.Real+s.Real, o.Lost+s.Decision.Lost
		if s.Late {
			o.Late++
		}
		if s.Unknown {
			o.Unknown++
			continue
		}
		o.Most = max(o.Most, s.Real)
		o.costs.Insert(float64(s.Real))
		if s.Real <= s.Reserved {
			o.Covered++
		}
	}
}

// finish computes the figures that need all calls.
func (o *SettledCosts) finish(over *overdrafts) {
	if o.Calls > o.Unknown {
		o.P50, o.P90, o.P99 = int64(o.costs.Query(0.5)), int64(o.costs.Query(0.9)), int64(o.costs.Query(0.99))
		o.MostOver = over.most
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

func (l *Limit) writeSettled(w io.Writer) {
	o := l.Settled
	if o == nil {
		return
	}
	fmt.Fprintf(w, "\n%s: costs known later\n", titleOf(l.policy))
	fmt.Fprintf(w, "  %d calls reserved %d units and cost %d; %d were settled without a real cost, %d after the ttl; %d units were lost beyond max_debt.\n",
		o.Calls, o.Reserved, o.Real, o.Unknown, o.Late, o.Lost)
	known := o.Calls - o.Unknown
	if known == 0 {
		return
	}
	fmt.Fprintf(w, "  Real costs: p50 %d, p90 %d, p99 %d, most %d. The reservation covered %s of the calls.\n", o.P50, o.P90, o.P99, o.Most, strings.Trim(percent(o.Covered, known), " ()"))
	fmt.Fprintf(w, "  Calls that one key had open at the same time cost up to %d units more than they had reserved. The key can exceed the limit by that number.\n", o.MostOver)
	if l.policy.Extra().Settle != nil {
		fmt.Fprintf(w, "  Suggestion: settle: {estimate: %d, most: %d}\n", max(1, o.P90), max(1, o.P99))
		fmt.Fprint(w, "    90 % of the calls cost at most the estimate. A lower one admits more calls at the same time, and exceeds the limit more.\n")
	}
}

// countPaid counts a request for r.For, a limit that did not allow it. The limit of r paid for the request; the caller
// counts the request for that limit too.
func (t *tally) countPaid(now algorithms.Micros, c *limiter.Call, r *limiter.Result) {
	plan := t.byPolicy[r.For]
	plan.Requests++
	plan.PaidBy, plan.Paid = t.byPolicy[r.Policy].Name, plan.Paid+1
	if plan.policy.Limit.Rate > 0 && !t.withoutHistory {
		own := *r
		own.Policy, own.For, own.Decision.Allowed = r.For, nil, true
		own.Key, _ = t.keyOf(c, &own)
		t.addToHistory(now, c, &own, plan)
	}
}
