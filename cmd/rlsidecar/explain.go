package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/routing"
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
	return c.print(a.stdout, all, func(w io.Writer) error { return writeExplained(w, all) })
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
	request, err := parseDescriptors(c.Descriptors)
	for i := range request {
		if c.Hits != nil {
			request[i].State(*c.Hits)
		}
	}
	return request, nil, err
}

func parseDescriptors(texts []string) (all []limiter.Descriptor, err error) {
	for _, text := range texts {
		entries, err := descriptors.Parse(text)
		if err != nil {
			return nil, err
		}
		all = append(all, limiter.Descriptor{Entries: entries, Cost: 1})
	}
	return all, nil
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
	if text := settlement(d, entries); text != "" {
		return explained{Steps: []stepTaken{}, Limits: []limitApplied{}, Settles: text}
	}
	x := followed(d.Tree.Explain(entries, limiter.HasLimits))
	if p := d.MostOverride(entries); p != nil {
		x.MaxOverride = &bound{p.Place.String(), p.Words()}
	}
	return x
}

func followed(x descriptors.Explanation[limiter.Limits]) explained {
	e := explained{Steps: []stepTaken{}, Limits: []limitApplied{}}
	for _, s := range x.Steps {
		e.Steps = append(e.Steps, stepTaken{entryText(s.Entry), s.Pattern, s.How.String(), s.Over})
	}
	if m := x.Miss; m != nil {
		e.Miss = &nearMiss{m.Reason.String(), m.At, m.Near, m.More, m.Shorter, m.String()}
	}
	return e
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

func writeExplained(w io.Writer, all []explained) error {
	var out strings.Builder
	for i, x := range all {
		if i > 0 {
			out.WriteString("\n")
		}
		out.WriteString(descriptors.Printable(x.Descriptor) + "\n")
		for _, s := range x.Steps {
			fmt.Fprintf(&out, "  %s matches %s (%s%s)\n", s.Entry, s.Pattern, matchWords[s.Match], overText(s.Over))
		}
		if x.Miss != nil {
			fmt.Fprintf(&out, "  not limited: %s\n", x.Miss.Message)
		}
		if x.Settles != "" {
			fmt.Fprintf(&out, "  %s\n", x.Settles)
		}
		for _, l := range x.Limits {
			writeLimit(&out, l)
		}
		if b := x.MaxOverride; b != nil {
			fmt.Fprintf(&out, "  an override may allow at most (%s)\n    %s\n", b.Place, b.Words)
		}
	}
	if len(all) > 0 && all[0].Denied != "" {
		fmt.Fprintf(&out, "\ndenied: %s\n", all[0].Denied)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

var matchWords = map[string]string{
	descriptors.Exact.String():     "this very value",
	descriptors.HasPrefix.String(): "the longest prefix",
	descriptors.HasSuffix.String(): "the longest suffix",
	descriptors.Wildcard.String():  "wildcard",
	descriptors.Regex.String():     "regular expression",
	descriptors.Any.String():       "any value",
}

func overText(patterns []string) string {
	if len(patterns) == 0 {
		return ""
	}
	return "; before " + strings.Join(patterns, ", ")
}

func writeLimit(w io.Writer, l limitApplied) {
	fmt.Fprintf(w, "  limit %s (%s)\n    %s\n", l.Name, l.Place, l.Words)
	switch {
	case l.Bucket == nil:
	case len(l.Bucket) == 0:
		fmt.Fprintf(w, "    bucket: shared by all values\n")
	default:
		fmt.Fprintf(w, "    bucket: %s\n", strings.Join(l.Bucket, ", "))
	}
	if l.Reserves != nil {
		writeReservation(w, l.Reserves)
	}
	for _, note := range l.Notes {
		fmt.Fprintf(w, "    %s\n", note)
	}
	for _, a := range l.Adjustments {
		fmt.Fprintf(w, "    adjustment %s: %s. By %s: %s\n", a.ID, a.Words, descriptors.Printable(a.Author), descriptors.Printable(a.Reason))
	}
	if len(l.With) > 0 {
		fmt.Fprintf(w, "    charged in one group with %s: all or none\n", strings.Join(l.With, ", "))
	}
}
