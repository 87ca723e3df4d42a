package simulate

import (
	"github.com/rlsidecar/rlsidecar/internal/offline/advise"
)

// Document is the Report as JSON. It has no text that WriteText has not, except that keys are not escaped and that times
// are in microseconds since 1970.
type Document struct {
	Requests int64           `json:"requests"`
	Denied   int64           `json:"denied"`
	From     int64           `json:"from_us"`
	To       int64           `json:"to_us"`
	Notes    []Note          `json:"notes"`
	Limits   []LimitDocument `json:"limits"`
	// NotAdvised is the number of limits with fewer requests than those with Advice.
	NotAdvised int         `json:"not_advised"`
	Keys       []DeniedKey `json:"denied_most"`
}

// Note counts requests that are no ordinary ones, such as those that match no limit.
type Note struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
	Text  string `json:"text"`
}

// LimitDocument describes one limit. Denied is the number of requests that it alone would have denied.
type LimitDocument struct {
	Domain   string `json:"domain"`
	Name     string `json:"name"`
	Shadow   bool   `json:"shadow,omitempty"`
	Quota    bool   `json:"quota,omitempty"`
	Requests int64  `json:"requests"`
	Denied   int64  `json:"denied"`
	// PaidBy is the limit that paid for Paid requests that this limit did not allow (then).
	PaidBy   string          `json:"paid_by,omitempty"`
	Paid     int64           `json:"paid,omitempty"`
	Settled  *SettledCosts   `json:"settled,omitempty"`
	InFlight []Peak          `json:"in_flight,omitempty"`
	Outlived int64           `json:"outlived,omitempty"` // requests that lasted longer than the ttl
	Advice   *AdviceDocument `json:"advice,omitempty"`
}

// SettledCosts summarizes calls whose costs were known later, in units.
type SettledCosts struct {
	Calls    int64 `json:"calls"`
	Unknown  int64 `json:"unknown"`
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
}

// Peak is the most units that a key had in flight.
type Peak struct {
	Key   string `json:"key"`
	Units int64  `json:"units"`
	At    int64  `json:"at_us"`
}

// AdviceDocument is an advise.Advice. Clients are those of the sample: one of each Every.
type AdviceDocument struct {
	Clients    int64              `json:"clients"`
	Every      int64              `json:"every"`
	Denied     int64              `json:"clients_denied"`
	Missed     int64              `json:"missed"`
	Period     string             `json:"period"`
	Busiest    Percentiles        `json:"busiest"`
	Field      string             `json:"field"` // the key of the configuration whose number the candidates have
	Configured advise.Outcome     `json:"configured"`
	Candidates []advise.Candidate `json:"candidates"`
	Suggested  *advise.Candidate  `json:"suggested,omitempty"`
	Smallest   *advise.Candidate  `json:"smallest,omitempty"`
}

// Percentiles are units of each client in its busiest period.
type Percentiles struct {
	P50  int64  `json:"p50"`
	P90  int64  `json:"p90"`
	P95  int64  `json:"p95"`
	P99  int64  `json:"p99"`
	Most int64  `json:"most"`
	By   string `json:"by,omitempty"`
	At   int64  `json:"at_us"`
}

// DeniedKey is a key that a limit denied. Denied is a lower bound unless Exact is true.
type DeniedKey struct {
	Domain string `json:"domain"`
	Limit  string `json:"limit"`
	Key    string `json:"key"`
	Denied int64  `json:"denied"`
	Exact  bool   `json:"exact"`
}

// Document returns the Report as JSON.
func (r *Report) Document() Document {
	t := r.tally
	d := Document{
		Requests: t.requests, Denied: t.denied, From: int64(t.first), To: int64(t.last), NotAdvised: r.others,
		Notes: t.notes(), Limits: []LimitDocument{}, Keys: []DeniedKey{},
	}
	for _, r := range t.rows {
		d.Limits = append(d.Limits, r.document())
	}
	for _, c := range t.topDenied.Top(topKeys) {
		p := c.Value.row.policy
		d.Keys = append(d.Keys, DeniedKey{p.Domain, p.Name, c.Value.shown, c.Least(), c.Over == 0})
	}
	return d
}

func (r *row) document() LimitDocument {
	d := LimitDocument{
		Domain: r.policy.Domain, Name: r.policy.Name, Shadow: r.shadow, Quota: r.quota, Requests: r.requests, Denied: r.denied,
		Paid: r.paid, Settled: r.open.document(), Outlived: r.outlived,
	}
	if r.paid > 0 {
		d.PaidBy = r.paidBy.policy.Name
	}
	for _, f := range r.busiest {
		d.InFlight = append(d.InFlight, Peak{f.shown, f.peak, int64(f.at)})
	}
	if a := r.advice; a != nil {
		b := &a.Busiest
		d.Advice = &AdviceDocument{
			Clients: a.Clients, Every: a.Every, Denied: a.Denied, Missed: a.Missed, Period: a.Period(), Field: a.Field(),
			Busiest:    Percentiles{b.P50, b.P90, b.P95, b.P99, b.Most, b.By.Shown, int64(b.At)},
			Configured: a.Configured, Candidates: a.Candidates, Suggested: a.Suggested, Smallest: a.Smallest,
		}
	}
	return d
}

// document returns nil if no call was settled.
func (o *reservations) document() *SettledCosts {
	if o.settled+o.unknown == 0 {
		return nil
	}
	s := &SettledCosts{Calls: o.settled + o.unknown, Unknown: o.unknown, Late: o.late, Reserved: o.reserved, Real: o.real, Lost: o.lost}
	if o.settled > 0 {
		s.P50, s.P90, s.P99 = int64(o.costs.Query(0.5)), int64(o.costs.Query(0.9)), int64(o.costs.Query(0.99))
		s.Most, s.Covered, s.MostOver = o.most, o.covered, o.mostOver
	}
	return s
}
