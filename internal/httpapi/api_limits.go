package httpapi

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// description has the exact numbers of a limit: rate units become available in each period of period_us microseconds.
type description struct {
	Domain      string `json:"domain"`
	Name        string `json:"name"`
	Algorithm   string `json:"algorithm"`
	Rate        int64  `json:"rate"`
	PeriodUS    int64  `json:"period_us"`
	Calendar    string `json:"calendar,omitempty"`
	TimeZone    string `json:"time_zone,omitempty"`
	Capacity    int64  `json:"capacity"`
	MaxReserved int64  `json:"max_reserved,omitempty"`
	Shards      int    `json:"shards,omitempty"`
	Shadow      bool   `json:"shadow,omitempty"`
	OnFailure   string `json:"on_backend_failure"`
	// Then is the limit that pays for requests that this one does not allow.
	Then string `json:"then,omitempty"`
}

type bucket struct {
	description
	Key       key   `json:"key,omitempty"`
	Remaining int64 `json:"remaining"`
	// Value is the remaining amount in units of 1/value_scale. A negative value is a debt.
	Value int64 `json:"value"`
	Scale int64 `json:"value_scale"`
	// InFlight is the number of units in flight, of a concurrency limit.
	InFlight *int64 `json:"in_flight,omitempty"`
	// At is the time of this state, by the clock of the store.
	At         int64 `json:"time_us"`
	ResetAfter int64 `json:"reset_after_ms"`
	// BlockedFor is how long the bucket will deny, whatever it holds. BlockedBy is the reason: penalty or
	// adjustment.
	BlockedFor int64  `json:"blocked_for_ms,omitempty"`
	BlockedBy  string `json:"blocked_by,omitempty"`
}

func describe(p *limiter.Policy) description {
	l := p.Limit
	d := description{
		Domain: p.Domain, Name: p.Name, Algorithm: l.Kind.String(), Rate: l.Rate,
		PeriodUS: int64(l.Period()), Capacity: l.Capacity,
		Shards: len(p.Extra().Shards), Shadow: p.Shadow, OnFailure: p.OnFailure.String(),
	}
	if l.Calendar != nil {
		d.Calendar, d.TimeZone = l.Calendar.Unit, l.Calendar.Zone
	}
	if then := p.Extra().Then; then != nil {
		d.Then = then.Name
	}
	if l.CanReserve() {
		d.MaxReserved = l.MaxReserved
	}
	return d
}

func (a *API) list(*http.Request, []byte) (any, error) {
	s := a.Limiter.Current()
	if s == nil {
		return nil, limiter.ErrNoConfig
	}
	all := []description{}
	for _, d := range s.Domains {
		for _, p := range d.Named {
			all = append(all, describe(p))
		}
	}
	slices.SortFunc(all, func(a, b description) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
	})
	return map[string]any{"limits": all}, nil
}

func (a *API) show(r *http.Request, _ []byte) (any, error) {
	q, err := query(r, "key", "domain")
	if err != nil {
		return nil, err
	}
	c := limiter.Inspection(q.Get("domain"), r.PathValue("name"), q["key"], nil, 0)
	if err := a.Limiter.Check(r.Context(), c); err != nil {
		return nil, err
	}
	result := &c.Results[0]
	d := &result.Decision
	if d.Err != nil || failed(result) {
		return nil, unavailable.of(result.Policy.Name, "the bucket could not be read; try again")
	}
	return bucketOf(c, result), nil
}

// bucketOf returns the bucket of result. c must be a dry run, because its decision then describes the present state.
func bucketOf(c *limiter.Call, result *limiter.Result) bucket {
	d := &result.Decision
	b := bucket{
		description: describe(result.Policy), Key: c.AppendValues(nil, result), Remaining: d.Remaining,
		Value: d.Value, Scale: max(1, result.Policy.Limit.Unit()), At: int64(d.At), ResetAfter: millis(d.ResetAfter),
		BlockedFor: millis(d.Blocked),
	}
	if l := result.Policy.Limit; l.Kind == algorithms.Concurrency {
		inFlight := l.Capacity - d.Value
		b.InFlight = &inFlight
	}
	switch adjusted := result.Policy.Adjusted; {
	case d.Blocked <= 0:
	case adjusted != nil && adjusted.Block:
		b.BlockedBy = "adjustment"
	default:
		b.BlockedBy = "penalty"
	}
	return b
}

// query parses the query of r, which may have the parameters with these names. The parameter "key" has a value of a key,
// and occurs once for each of them, in order. Others may occur only once.
func query(r *http.Request, names ...string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, malformed.because("the query cannot be parsed")
	}
	for name, list := range values {
		switch {
		case !slices.Contains(names, name):
			return nil, malformed.because("unknown parameter " + descriptors.Printable(name) + "; valid are " + strings.Join(names, ", "))
		case name != "key" && len(list) != 1:
			return nil, malformed.because(name + " occurs twice; send it once")
		}
	}
	return values, nil
}
