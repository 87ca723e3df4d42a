package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/unmatched"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Operator serves operators, with the paths below /api/ of the admin port. It shows buckets, the keys denied most,
// unmatched requests and conditions, and it resets buckets and serves Adjustments. Its caller checks the
// authorization.
type Operator struct {
	Limiter *limiter.Limiter
	// Denied returns the keys denied most, and what they have in common. Shadowed does so for denials that shadow mode
	// prevented. Used returns the keys that consumed most. All are the method Top of a topkeys.Recorder.
	Denied, Shadowed, Used func(n int) topkeys.Top
	// Status returns the state of the sidecar.
	Status func(context.Context) status.Status
	// Unmatched is the method Top of an unmatched.Recorder.
	Unmatched func(n int) (since time.Time, top []unmatched.Shape)
	// Conditions is the method List of a conditions.Registry.
	Conditions func() []conditions.Condition
	// Log records resets of buckets.
	Log *zap.Logger
	// Settling returns the reservations of a limit with settle. It is Metrics.SettleTally.
	Settling func(*limiter.Policy) metrics.SettleTally
	// Adjustments is nil if limits cannot be adjusted.
	Adjustments *Adjustments
}

// /api/top and /api/unmatched list defaultTop items, or the number that the request states, up to maxTop.
const defaultTop, maxTop = 20, 1000

// Handler serves all paths below /api/.
func (o *Operator) Handler() http.Handler {
	mux := http.NewServeMux()
	(&gate{}).register(mux, "/api/", o.paths())
	return mux
}

// paths lists the paths and methods that openapi-operators.json describes.
func (o *Operator) paths() map[string]operations {
	all := map[string]operations{
		"/api/buckets":      {http.MethodGet: o.buckets},
		"/api/reset":        {http.MethodPost: o.reset},
		"/api/top":          {http.MethodGet: o.top},
		"/api/unmatched":    {http.MethodGet: o.unmatched},
		"/api/conditions":   {http.MethodGet: o.conditions},
		"/api/status":       {http.MethodGet: o.status},
		"/api/openapi.json": {http.MethodGet: func(*http.Request, []byte) (any, error) { return operatorsOpenAPI, nil }},
	}
	if o.Adjustments != nil {
		maps.Copy(all, o.Adjustments.paths())
	}
	return all
}

func (o *Operator) buckets(r *http.Request, _ []byte) (any, error) {
	c, err := o.inspected(r, 0)
	if err != nil {
		return nil, err
	}
	next, err := o.inspected(r, 1) // the decision on 0 units has no retry time
	if err != nil {
		return nil, err
	}
	all := []OperatorBucket{}
	for i := range c.Results {
		result := &c.Results[i]
		switch {
		case result.Key == nil: // the limit is unlimited
			continue
		case result.Decision.Err != nil || failed(result):
			return nil, unavailable.of(result.Policy.Name, "the bucket could not be read, because the store did not answer in time; rlsidecar doctor finds the cause")
		}
		b := OperatorBucket{bucket: bucketOf(c, result), Settle: o.settling(result.Policy)}
		if i < len(next.Results) && next.Results[i].Decision.Err == nil {
			b.RetryAfter = millis(next.Results[i].Decision.RetryAfter)
		}
		all = append(all, b)
	}
	return map[string]any{"buckets": all}, nil
}

// inspected makes a dry run of cost units at the limits that the query selects, and returns the Call.
func (o *Operator) inspected(r *http.Request, cost int64) (*limiter.Call, error) {
	c, err := selectedBuckets(r, cost)
	if err != nil {
		return nil, err
	}
	if err := o.Limiter.Check(r.Context(), c); err != nil {
		return nil, err
	}
	return c, nil
}

// OperatorBucket is a bucket in an answer for operators.
type OperatorBucket struct {
	bucket
	// RetryAfter is the time for which a request of one unit is denied. If the limit has "then", it takes the
	// limit that pays into account.
	RetryAfter int64     `json:"retry_after_ms,omitempty"`
	Settle     *Settling `json:"settle,omitempty"`
}

// Settling describes the reservations of a limit with settle, for all of its buckets and since this sidecar started.
type Settling struct {
	// Estimate is the number of units that a request reserves now if it declares no cost. Learned means
	// that the estimate was learned from real costs.
	Estimate int64  `json:"estimate"`
	Learned  bool   `json:"learned"`
	MaxDebt  int64  `json:"max_debt"`
	Reserved uint64 `json:"reserved"`
	Settled  uint64 `json:"settled"`
	Unknown  uint64 `json:"unknown"`
	Late     uint64 `json:"late"`
	// These numbers are sums of units.
	ReservedUnits uint64 `json:"reserved_units"`
	RealUnits     uint64 `json:"real_units"`
	LostUnits     uint64 `json:"lost_units"`
}

func (o *Operator) settling(p *limiter.Policy) *Settling {
	if p.Extra().Settle == nil || o.Settling == nil {
		return nil
	}
	t := o.Settling(p)
	s := &Settling{
		MaxDebt: p.Limit.MaxDebt, Reserved: t.Starts, Settled: t.Settled, Unknown: t.Unknown, Late: t.Late,
		ReservedUnits: t.Reserved, RealUnits: t.Real, LostUnits: t.Lost,
	}
	s.Estimate, s.Learned = o.Limiter.EstimateNow(p)
	return s
}

// ResetBucket is a bucket that was reset.
type ResetBucket struct {
	Domain string `json:"domain"`
	Name   string `json:"name"`
	Key    key    `json:"key,omitempty"`
}

func (o *Operator) reset(r *http.Request, _ []byte) (any, error) {
	c, err := selectedBuckets(r, 0)
	if err != nil {
		return nil, err
	}
	if err := o.Limiter.Reset(r.Context(), c); err != nil {
		return nil, err
	}
	all := []ResetBucket{}
	for i := range c.Results {
		if result := &c.Results[i]; result.Key != nil {
			f := ResetBucket{result.Policy.Domain, result.Policy.Name, c.AppendValues(nil, result)}
			o.Log.Info("a bucket was reset", zap.String("domain", f.Domain), zap.String("limit", f.Name), zap.String("key", f.Key.String()))
			all = append(all, f)
		}
	}
	return map[string]any{"reset": all}, nil
}

// DeniedKey is the JSON form of topkeys.Item.
type DeniedKey struct {
	Domain string `json:"domain"`
	Name   string `json:"name,omitempty"`
	Why    string `json:"why"`
	Key    key    `json:"key,omitempty"`
	// Descriptor has the entries, each as [key, value].
	Descriptor []key     `json:"descriptor,omitempty"`
	Cut        bool      `json:"cut,omitempty"`
	Denied     int64     `json:"denied"`
	Exact      bool      `json:"exact"`
	Rate       float64   `json:"rate"` // denials in a second, averaged over about the last ten seconds
	Last       time.Time `json:"last"`
}

// DeniedPart is the JSON form of topkeys.Part: what denied keys of one limit have in common.
type DeniedPart struct {
	Domain string `json:"domain"`
	Name   string `json:"name"`
	// Position is the index of the value in the key, and Entry the key of its entry. In the list of limits they and
	// Value are absent.
	Position *int   `json:"position,omitempty"`
	Entry    string `json:"entry,omitempty"`
	Value    key    `json:"value,omitempty"`
	Cut      bool   `json:"cut,omitempty"`
	Denied   int64  `json:"denied"`
	Exact    bool   `json:"exact"`
	// Rate is the number of denials in a second, averaged over about the last ten seconds.
	Rate float64 `json:"rate"`
	// Keys is the number of keys among the counted ones, so a lower bound. Share is the share of all denials.
	Keys  int     `json:"keys"`
	Share float64 `json:"share"`
}

// UsedKey is the JSON form of a topkeys.Item that consumed units.
type UsedKey struct {
	Domain string `json:"domain"`
	Name   string `json:"name"`
	Key    key    `json:"key,omitempty"`
	Cut    bool   `json:"cut,omitempty"`
	// Units is an estimate, and so is Rate, the units in a second, averaged over about the last ten seconds. Remaining
	// and Capacity are those of the bucket when it was last seen.
	Units     int64   `json:"units"`
	Rate      float64 `json:"rate"`
	Remaining int64   `json:"remaining"`
	Capacity  int64   `json:"capacity"`
}

// TopAnswer is the answer of /api/top.
type TopAnswer struct {
	Since time.Time `json:"since"`
	// Total is the number of denials, one for each limit that denied.
	Total  int64        `json:"total"`
	Denied []DeniedKey  `json:"denied"`
	Limits []DeniedPart `json:"limits"`
	Parts  []DeniedPart `json:"parts"`
	// Busiest has the keys that consumed most. It is empty with shadow=true.
	Busiest []UsedKey `json:"busiest"`
	// InFlight has the keys with units in flight, of those above whose limit is a concurrency limit.
	InFlight []FlightKey `json:"in_flight"`
	// Unmatched is the number of requests that matched no limit.
	Unmatched int64 `json:"unmatched"`
}

func (o *Operator) top(r *http.Request, _ []byte) (any, error) {
	q, n, err := listed(r, defaultTop, "shadow")
	if err != nil {
		return nil, err
	}
	shadow := q.Get("shadow")
	if shadow != "" && shadow != "true" && shadow != "false" {
		return nil, malformed.because("shadow must be true or false")
	}
	of := o.Denied
	if shadow == "true" {
		of = o.Shadowed
	}
	top := of(n)
	answer := TopAnswer{
		Since: top.Since.UTC().Truncate(time.Millisecond), Total: top.Total, Denied: []DeniedKey{}, Busiest: []UsedKey{},
		Limits: deniedParts(top.Limits, top.Total), Parts: deniedParts(top.Parts, top.Total),
	}
	for i := range top.Keys {
		answer.Denied = append(answer.Denied, deniedKey(&top.Keys[i]))
	}
	var used []topkeys.Item
	if o.Used != nil && shadow != "true" {
		used = o.Used(n).Keys
		for _, u := range used {
			answer.Busiest = append(answer.Busiest, UsedKey{u.Domain, u.Limit, u.Key, u.Cut, u.Times, u.Rate, u.Remaining, u.Capacity})
		}
	}
	answer.InFlight = o.inFlight(r.Context(), top.Keys, used)
	if o.Unmatched != nil {
		_, shapes := o.Unmatched(maxTop)
		for _, shape := range shapes {
			answer.Unmatched += shape.Requests
		}
	}
	return answer, nil
}

func deniedKey(d *topkeys.Item) DeniedKey {
	k := DeniedKey{
		Domain: d.Domain, Name: d.Limit, Why: d.Why, Key: d.Key, Cut: d.Cut, Denied: d.Times, Exact: d.Exact, Rate: d.Rate,
		Last: d.Last.UTC().Truncate(time.Millisecond),
	}
	for _, e := range d.Entries {
		k.Descriptor = append(k.Descriptor, key{e.Key, e.Value})
	}
	return k
}

func deniedParts(list []topkeys.Part, total int64) []DeniedPart {
	all := []DeniedPart{}
	for i := range list {
		p := &list[i]
		part := DeniedPart{Domain: p.Domain, Name: p.Limit, Cut: p.Cut, Denied: p.Times, Exact: p.Exact, Rate: p.Rate, Keys: p.Keys, Share: float64(p.Times) / float64(max(1, total))}
		if p.Position != topkeys.WholeLimit {
			part.Position, part.Entry, part.Value = &p.Position, p.Entry, key{p.Value}
		}
		all = append(all, part)
	}
	return all
}

func (o *Operator) status(r *http.Request, _ []byte) (any, error) { return o.Status(r.Context()), nil }

// UnmatchedShape is the JSON form of unmatched.Shape.
type UnmatchedShape struct {
	Domain     string `json:"domain"`
	Configured bool   `json:"configured"`
	// Descriptors has the keys of each descriptor.
	Descriptors []key     `json:"descriptors"`
	Cut         bool      `json:"cut,omitempty"`
	Requests    int64     `json:"requests"`
	Last        time.Time `json:"last"`
}

func (o *Operator) unmatched(r *http.Request, _ []byte) (any, error) {
	_, n, err := listed(r, defaultTop)
	if err != nil {
		return nil, err
	}
	since, top := o.Unmatched(n)
	all := []UnmatchedShape{}
	for _, shape := range top {
		s := UnmatchedShape{
			Domain: shape.Domain, Configured: shape.Configured, Descriptors: []key{}, Cut: shape.Cut, Requests: shape.Requests,
			Last: shape.Last.UTC().Truncate(time.Millisecond),
		}
		for _, keys := range shape.Keys {
			s.Descriptors = append(s.Descriptors, keys)
		}
		all = append(all, s)
	}
	return map[string]any{"since": since.UTC().Truncate(time.Millisecond), "unmatched": all}, nil
}

func (o *Operator) conditions(*http.Request, []byte) (any, error) {
	return map[string]any{"conditions": append([]conditions.Condition{}, o.Conditions()...)}, nil
}

// listed returns the query of r, which may have other parameters beside n, and the number n of items to list.
func listed(r *http.Request, otherwise int, others ...string) (q url.Values, n int, err error) {
	if q, err = query(r, append([]string{"n"}, others...)...); err != nil || !q.Has("n") {
		return q, otherwise, err
	}
	if n, err = strconv.Atoi(q.Get("n")); err != nil || n < 1 || n > maxTop {
		return nil, 0, malformed.because(fmt.Sprintf("n must be from 1 to %d", maxTop))
	}
	return q, n, nil
}

// selectedBuckets returns a dry run of a request with this cost to the buckets that the query of r selects. The query has
// a limit and its key, or a descriptor in its text form. A descriptor selects the buckets of the limits that it matches.
func selectedBuckets(r *http.Request, cost int64) (*limiter.Call, error) {
	q, err := query(r, "domain", "limit", "key", "descriptor")
	if err != nil {
		return nil, err
	}
	var entries []descriptors.Entry
	switch limit, descriptor := q.Has("limit"), q.Has("descriptor"); {
	case limit && !descriptor:
	case limit || !descriptor || q.Has("key"):
		return nil, malformed.because("add limit and key, or descriptor as key=value[,key=value]…")
	case q.Get("domain") == "":
		return nil, malformed.because("a descriptor needs a domain; add the parameter domain")
	default:
		if entries, err = descriptors.Parse(q.Get("descriptor")); err != nil {
			return nil, malformed.because(err.Error())
		}
	}
	return limiter.Inspection(q.Get("domain"), q.Get("limit"), q["key"], entries, cost), nil
}

// FlightKey is a key of a concurrency limit with its units in flight, those of all sidecars that share the store.
type FlightKey struct {
	Domain   string `json:"domain"`
	Name     string `json:"name"`
	Key      key    `json:"key,omitempty"`
	InFlight int64  `json:"in_flight"`
	Capacity int64  `json:"capacity"`
}

// maxFlightKeys bounds the buckets that /api/top reads from the store.
const maxFlightKeys = 20

// inFlight returns the units in flight of the first keys of concurrency limits in the lists, the most units first. If
// the store fails, it returns those that it has read.
func (o *Operator) inFlight(ctx context.Context, denied []topkeys.Item, used []topkeys.Item) []FlightKey {
	list := slices.Concat(denied, used)
	all, seen, current := []FlightKey{}, map[string]bool{}, o.Limiter.Current()
	for i := range list {
		d := &list[i]
		name := strings.Join(append([]string{d.Domain, d.Limit}, d.Key...), "\x00")
		if d.Cut || seen[name] || !hasSlots(current, d) {
			continue
		}
		if seen[name] = true; len(seen) > maxFlightKeys {
			break
		}
		c := limiter.Inspection(d.Domain, d.Limit, d.Key, d.Entries, 0)
		if err := o.Limiter.Check(ctx, c); err != nil {
			continue // a reload has removed the limit
		}
		at := slices.IndexFunc(c.Results, func(r limiter.Result) bool { return r.Key != nil && r.Policy.Name == d.Limit })
		if at < 0 {
			continue
		}
		if c.Results[at].Decision.Err != nil || failed(&c.Results[at]) {
			break
		}
		if b := bucketOf(c, &c.Results[at]); b.InFlight != nil && *b.InFlight > 0 {
			all = append(all, FlightKey{d.Domain, d.Limit, b.Key, *b.InFlight, b.Capacity})
		}
	}
	slices.SortStableFunc(all, func(a, b FlightKey) int { return cmp.Compare(b.InFlight, a.InFlight) })
	return all
}

// hasSlots reports whether the limit of key is a concurrency limit.
func hasSlots(s *limiter.Snapshot, key *topkeys.Item) bool {
	if s == nil || s.Domains[key.Domain] == nil {
		return false
	}
	for _, p := range s.Domains[key.Domain].Settling {
		if p.Name == key.Limit && p.Limit.Kind == algorithms.Concurrency {
			return true
		}
	}
	return false
}
