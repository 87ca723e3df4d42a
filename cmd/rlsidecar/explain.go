package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/routing"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type explainCmd struct {
	Config      []string `required:"" placeholder:"PATH" help:"File, folder of *.yaml and *.yml files, or folder/**; may be repeated."`
	Domain      string   `help:"Domain of the request. Required if the configuration has several."`
	Descriptors []string `arg:"" optional:"" name:"descriptor" help:"Descriptor as key=value[,key=value]…; several belong to one request."`
	Hits        *int64   `placeholder:"N" help:"Hits that each descriptor states, for limits with settle."`
	requestToExplain
	adjustedFlags
	configSettings
}

func (explainCmd) Help() string {
	return `For each descriptor, prints which pattern each entry matched, which limits apply and
which bucket is charged. If nothing matched, it prints the nearest pattern. For a limit
with settle, it prints what the request reserves. It does not read any bucket. In a key or
value, write \, for a comma and \= for an equals sign.

With --request, it first prints the matching route of the section auth and the
descriptors that the route makes. Headers and address are trusted, as if a trusted proxy
had sent them.

With --adjusted, it prints the adjustments in force at a running sidecar.

Example:

  rlsidecar explain --config limits.yaml user_id=bob
  rlsidecar explain --config limits.yaml --domain edge path=/login,remote_address=192.0.2.7 user_id=bob
  rlsidecar explain --config limits.yaml --adjusted user_id=bob
  rlsidecar explain --config limits.yaml --request 'POST /login?next=1' -H 'X-User: bob' --client-ip 192.0.2.7`
}

type explained struct {
	Descriptor string         `json:"descriptor"`
	Steps      []stepTaken    `json:"steps"`
	Miss       *nearMiss      `json:"miss,omitempty"`
	Limits     []limitApplied `json:"limits"`
	// Settles describes how the descriptor settles a reservation. Such a descriptor matches no limit.
	Settles string `json:"settles,omitempty"`
	// Denied is the reason why the request is denied before its limits are checked.
	Denied string `json:"denied,omitempty"`
	// MaxOverride bounds a limit that the request sends with the descriptor.
	MaxOverride *bound `json:"max_override,omitempty"`
}

type bound struct {
	Place string `json:"place"`
	Words string `json:"words"`
}

type stepTaken struct {
	Entry   string   `json:"entry"`
	Pattern string   `json:"pattern"`
	Match   string   `json:"match"`          // exact, prefix, suffix, wildcard, regex or any
	Over    []string `json:"over,omitempty"` // the patterns of lower precedence that match too
}

// nearMiss explains why no limit applies. descriptors.Miss documents Near, More and Shorter.
type nearMiss struct {
	Reason  string   `json:"reason"`
	Entry   int      `json:"entry"` // index of the entry, counted from 0
	Near    []string `json:"near,omitempty"`
	More    int      `json:"more,omitempty"`
	Shorter int      `json:"shorter,omitempty"`
	Message string   `json:"message"`
}

type limitApplied struct {
	Name   string   `json:"name"`
	Place  string   `json:"place"`
	Words  string   `json:"words"`
	Bucket []string `json:"bucket"` // the entries that identify the bucket; empty if all values share it, nil if nothing is charged
	Notes  []string `json:"notes,omitempty"`
	With   []string `json:"with,omitempty"` // other limits of the same group
	// Reserves is nil if the limit has no settle, or if another limit replaces it.
	Reserves    *reservation        `json:"reserves,omitempty"`
	Adjustments []appliedAdjustment `json:"adjustments,omitempty"`
}

func (c *explainCmd) Run(a *app) error {
	request, about, err := c.requested()
	if err != nil {
		return exitError{exitUsage, err}
	}
	snapshot, err := c.load(a, c.Config)
	if err != nil {
		return err
	}
	set, err := c.set(a)
	if err != nil {
		return err
	}
	if about != nil {
		return c.explainRequest(a, snapshot, set, about)
	}
	if c.Domain == "" {
		names := sortedKeys(snapshot.Domains)
		if len(names) != 1 {
			return exitError{exitUsage, fmt.Errorf("the configuration has several domains; choose one with --domain: %s", strings.Join(names, ", "))}
		}
		c.Domain = names[0]
	}
	if snapshot.Domains[c.Domain] == nil {
		return exitError{exitNo, fmt.Errorf("domain %q is not configured, so its requests are not limited; the configuration has %s",
			c.Domain, strings.Join(sortedKeys(snapshot.Domains), ", "))}
	}
	all, err := explain(a.ctx, snapshot, set, limiter.Request{Domain: c.Domain, Descriptors: request})
	if err != nil {
		return err
	}
	for i := range all {
		all[i].Descriptor = c.Descriptors[i]
	}
	return c.print(a.stdout, all, "{{template `explained` .}}\n"+explainedText)
}

// requested returns the descriptors or the HTTP request that the flags describe. The other result is nil.
func (c *explainCmd) requested() ([]limiter.Descriptor, *routing.Request, error) {
	switch {
	case c.Request != "" && (c.Domain != "" || len(c.Descriptors) > 0):
		return nil, nil, errors.New("--request cannot be combined with --domain and descriptors; the route of the request states them")
	case c.Request != "" && c.Hits != nil:
		return nil, nil, errors.New("--request cannot be combined with --hits; the route of the request states them")
	case c.Request != "":
		about, err := c.read()
		return nil, about, err
	case c.ClientIP != "" || len(c.Header) > 0:
		return nil, nil, errors.New("--header and --client-ip need --request")
	case len(c.Descriptors) == 0:
		return nil, nil, errors.New("there is no descriptor; write key=value[,key=value]…, or --request")
	}
	var request []limiter.Descriptor
	for _, text := range c.Descriptors {
		entries, err := descriptors.Parse(text)
		if err != nil {
			return nil, nil, err
		}
		one := limiter.Descriptor{Entries: entries, Cost: 1}
		if c.Hits != nil {
			one.State(*c.Hits)
		}
		request = append(request, one)
	}
	return request, nil, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// noStore is a store that decides nothing. explain needs only the charges.
type noStore struct{}

func (noStore) Submit(b *backend.Batch) { b.Done(b) }

// explain explains each descriptor of one request. set has the adjustments to show, or is nil.
func explain(ctx context.Context, s *limiter.Snapshot, set *adjust.Set, request limiter.Request) ([]explained, error) {
	l := limiter.New(noStore{}, limiter.Config{})
	l.Swap(s)
	if set != nil {
		l.Adjust(set, systemClock)
	}
	call := limiter.Call{Request: request}
	call.Inspect = true
	if err := l.Check(ctx, &call); err != nil {
		return nil, err
	}
	domain, all := s.Domains[request.Domain], make([]explained, len(request.Descriptors))
	for i := range all {
		all[i] = described(domain, call.Descriptors[i].Entries)
		if call.Missing != nil {
			all[i].Denied = "missing-descriptor: no descriptor of the request has an entry " + call.Missing.String() + " with a value, which the domain requires"
		}
	}
	for i := range call.Results {
		r := &call.Results[i]
		x := applied(&call, i)
		if set != nil {
			x.Adjustments = adjusted(set, &call, i, domain.Policies[r.Policy.Index], systemClock())
		}
		all[r.Descriptor].Limits = append(all[r.Descriptor].Limits, x)
	}
	return all, nil
}

// described explains which patterns the entries of one descriptor match, or which reservation it settles. It does
// not describe limits.
func described(d *limiter.Domain, entries []descriptors.Entry) explained {
	x := explained{Steps: []stepTaken{}, Limits: []limitApplied{}, Settles: settlement(d, entries)}
	if x.Settles != "" {
		return x
	}
	found := d.Tree.Explain(entries, limiter.HasLimits)
	for _, s := range found.Steps {
		x.Steps = append(x.Steps, stepTaken{entryText(s.Entry), s.Pattern, s.How.String(), s.Over})
	}
	if m := found.Miss; m != nil {
		x.Miss = &nearMiss{m.Reason.String(), m.At, m.Near, m.More, m.Shorter, m.String()}
	}
	if p := d.MostOverride(entries); p != nil {
		x.MaxOverride = &bound{p.Place.String(), p.Words()}
	}
	return x
}

func entryText(e descriptors.Entry) string {
	return descriptors.Printable(e.Key) + "=" + descriptors.Printable(e.Value)
}

func applied(call *limiter.Call, i int) limitApplied {
	r := &call.Results[i]
	p := r.Policy
	x := limitApplied{Name: p.Name, Place: p.Place.String(), Words: p.Words(), Notes: notes(p), Reserves: reserves(call, r)}
	switch {
	case r.Outcome == limiter.Replaced:
		x.Notes = append(x.Notes, "not charged: another limit of this request replaces it")
	case r.Outcome != limiter.Unlimited:
		x.Bucket = bucket(p, call.Descriptors[r.Descriptor].Entries)
	}
	if !together(call, r) {
		return x
	}
	for j := range call.Results {
		if other := &call.Results[j]; j != i && together(call, other) {
			x.With = append(x.With, other.Policy.Name)
		}
	}
	return x
}

func bucket(p *limiter.Policy, entries []descriptors.Entry) []string {
	identifying := []string{}
	for i, e := range entries {
		if p.Whole || slices.Contains(p.Open, i) {
			identifying = append(identifying, entryText(e))
		}
	}
	return identifying
}

// together reports whether the charge of r belongs to a group.
func together(call *limiter.Call, r *limiter.Result) bool {
	return call.IsTogether(r) && r.Outcome != limiter.Replaced && r.Outcome != limiter.Unlimited
}

func notes(p *limiter.Policy) (notes []string) {
	add := func(when bool, text string) {
		if when {
			notes = append(notes, text)
		}
	}
	add(p.Shadow, "shadow mode: never denies; the metrics count the requests that it would have denied")
	add(p.Quota, "quota mode: denies only together with all other quota limits of the request")
	add(p.Alone, "charged on its own, whatever the other limits decide (consume: each)")
	add(len(p.Extra().Replaces) > 0, "replaces "+strings.Join(p.Extra().Replaces, ", "))
	add(len(p.Extra().Shards) > 0, fmt.Sprintf("split into %d shards where the store has several nodes", len(p.Extra().Shards)))
	if l := p.Extra().Lease; l != nil {
		add(true, fmt.Sprintf("with Redis, a process may borrow up to %d of a hot bucket at a time, for %v", l.Most, time.Duration(l.For)*time.Microsecond))
	}
	if t := p.Extra().Then; t != nil {
		add(true, fmt.Sprintf("a request that it does not allow is charged to limit %s instead, for the same values: %s", t.Name, t.Words()))
	}
	add(p.OnFailure != limiter.Deny, "on_backend_failure: "+p.OnFailure.String())
	return notes
}

const explainedText = `{{define "explained"}}
{{range $i, $x := .}}
{{if $i}}

{{end}}
{{safe .Descriptor}}
{{range .Steps}}
  {{.Entry}} matches {{.Pattern}} ({{matched .Match}}{{with .Over}}; before {{join .}}{{end}})
{{end}}
{{with .Miss}}
  not limited: {{.Message}}
{{end}}
{{with .Settles}}
  {{.}}
{{end}}
{{range .Limits}}
  limit {{.Name}} ({{.Place}})
    {{.Words}}
{{with buckets .Bucket}}
    bucket: {{.}}
{{end}}
{{with .Reserves}}
    settle: reserves {{.Units}}
{{range .Words}}
      {{.}}
{{end}}
{{end}}
{{range .Notes}}
    {{.}}
{{end}}
{{range .Adjustments}}
    adjustment {{.ID}}: {{.Words}}. By {{safe .Author}}: {{safe .Reason}}
{{end}}
{{with .With}}
    charged in one group with {{join .}}: all or none
{{end}}
{{end}}
{{with .MaxOverride}}
  an override may allow at most ({{.Place}})
    {{.Words}}
{{end}}
{{end}}
{{with (index . 0).Denied}}

denied: {{.}}
{{end}}
{{end}}
`

func matched(how string) string {
	return map[string]string{
		descriptors.Exact.String():     "this very value",
		descriptors.HasPrefix.String(): "the longest prefix",
		descriptors.HasSuffix.String(): "the longest suffix",
		descriptors.Wildcard.String():  "wildcard",
		descriptors.Regex.String():     "regular expression",
		descriptors.Any.String():       "any value",
	}[how]
}

func buckets(entries []string) string {
	if entries != nil && len(entries) == 0 {
		return "shared by all values"
	}
	return strings.Join(entries, ", ")
}

type reservation struct {
	// Units is the number of units that this request reserves. If the estimate is learned, which only a running
	// sidecar knows, Units is based on the configured first estimate.
	Units int64    `json:"units"`
	Words []string `json:"words"`
}

// reserves describes what r, a result of c, reserves. It returns nil if the limit of r has no settle, or if another limit
// of the request replaces it.
func reserves(c *limiter.Call, r *limiter.Result) *reservation {
	s := r.Policy.Extra().Settle
	switch {
	case s == nil || r.Outcome == limiter.Replaced:
		return nil
	case c.Unsettled: // the answer has no id
		return &reservation{r.Cost, []string{"/v1/auth settles nothing: these units stay charged"}}
	case c.SettledLater(r):
		return &reservation{r.Cost, s.Words(r.Policy.Limit)}
	default:
		return &reservation{0, s.Words(r.Policy.Limit)}
	}
}

func settlement(d *limiter.Domain, entries []descriptors.Entry) string {
	if d.Settle == nil || len(entries) == 0 {
		return ""
	}
	isNone := entries[0].Value == limiter.None || entries[0].Value == ""
	switch key := entries[0].Key; {
	case (key == d.Settle.Key || key == d.Settle.End) && isNone:
		return "settles nothing: the request reserved nothing"
	case key == d.Settle.Key:
		return "settles the reservation with this id: its hits are the real cost, without hits unknown_cost is charged. It matches no limit"
	case key == d.Settle.End:
		return "ends the request with this id: unless " + descriptors.Printable(d.Settle.Key) + "=ID of the same request has the real cost, unknown_cost is charged. It matches no limit"
	default:
		return ""
	}
}

type adjustedFlags struct {
	Adjusted bool `help:"Show the adjustments in force at a running sidecar."`
	adminFlags
}

// set returns the adjustments to show, or nil if the flags request none.
func (f *adjustedFlags) set(a *app) (*adjust.Set, error) {
	if !f.Adjusted {
		return nil, nil
	}
	var answer listedAdjustments
	if _, err := f.call(a, http.MethodGet, "/api/adjustments", nil, &answer); err != nil {
		return nil, err
	}
	answer.warn(a)
	return adjust.NewSet(adjust.Head{Version: answer.Version}, answer.Adjustments), nil
}

// hasValue reports whether an entry has the value in a key of p. The key of a whole descriptor can repeat an entry.
func hasValue(p *limiter.Policy, key []string, entry, value string) bool {
	if !p.Whole {
		i := slices.Index(p.Extra().OpenKeys, entry)
		return i >= 0 && key[i] == value
	}
	for i := 0; i < len(key); i += 2 {
		if key[i] == entry && key[i+1] == value {
			return true
		}
	}
	return false
}

type appliedAdjustment struct {
	ID      string `json:"id"`
	InForce bool   `json:"in_force"`
	// Words describe the effect, or why the adjustment has none.
	Words  string `json:"words"`
	Author string `json:"author"`
	Reason string `json:"reason"`
}

// adjusted lists the adjustments of the limit and key of result i of call that have not expired. configured is
// the limit's policy without adjustments.
func adjusted(set *adjust.Set, call *limiter.Call, i int, configured *limiter.Policy, now algorithms.Micros) (list []appliedAdjustment) {
	r := &call.Results[i]
	key := call.AppendValues(nil, r)
	for _, a := range set.All() {
		t := &a.Target
		if t.Domain != configured.Domain || t.Limit != configured.Name || a.Expires <= now {
			continue
		}
		if t.Entry != "" && !hasValue(configured, key, t.Entry, t.Value) || t.Entry == "" && !t.AllKeys && !slices.Equal(t.Key, key) {
			continue
		}
		x := appliedAdjustment{ID: a.ID, Author: a.Author, Reason: a.Reason}
		words, err := limiter.AdjustmentWords(a, configured)
		switch x.InForce = r.Policy.Adjusted != nil && r.Policy.Adjusted.ID == a.ID; {
		case err != nil:
			words = "ignored: " + err.Error()
		case !x.InForce:
			words = "not applied, because a narrower adjustment takes precedence: " + words
		}
		x.Words = words
		list = append(list, x)
	}
	return list
}

func systemClock() algorithms.Micros { return algorithms.Micros(time.Now().UnixMicro()) }
