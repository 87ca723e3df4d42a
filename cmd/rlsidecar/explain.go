package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/routing"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type explainCmd struct {
	Config      []string `required:"" placeholder:"PATH" help:"File, or folder of *.yaml files; may be repeated."`
	Domain      string   `help:"The domain the proxy names; needed where the configuration has several."`
	Descriptors []string `arg:"" optional:"" name:"descriptor" help:"key=value[,key=value]… ; several are one request."`
	Format      string   `enum:"text,json" default:"text" help:"Of the output: text or json."`
	askedRequest
	configFlags
}

// Help is shown by explain --help.
func (explainCmd) Help() string {
	return `Each descriptor is followed through the configuration, entry by entry: which pattern
it met, which limits apply and which bucket is charged, or what it nearly met. No
store is asked. In a key or value, \, stands for a comma and \= for an equals sign.

With --request: which route of the section auth it takes, what is asked about it,
and the same for each descriptor. What is given is taken as what a trusted proxy says.

Example:

  rlsidecar explain --config limits.yaml user_id=bob
  rlsidecar explain --config limits.yaml --domain edge path=/login,remote_address=192.0.2.7 user_id=bob
  rlsidecar explain --config limits.yaml --request 'POST /login?next=1' -H 'X-User: bob' --client-ip 192.0.2.7`
}

// explained is what became of one descriptor.
type explained struct {
	Descriptor string         `json:"descriptor"`
	Steps      []stepTaken    `json:"steps"`
	Miss       *nearMiss      `json:"miss,omitempty"`
	Limits     []limitApplied `json:"limits"`
	// Denied is why the request is denied whatever its limits answer.
	Denied string `json:"denied,omitempty"`
	// MaxOverride bounds a limit that would come with the descriptor.
	MaxOverride *bound `json:"max_override,omitempty"`
}

// bound is a max_override.
type bound struct {
	Place string `json:"place"`
	Words string `json:"words"`
}

// stepTaken is one entry and the pattern it met.
type stepTaken struct {
	Entry   string   `json:"entry"`
	Pattern string   `json:"pattern"`
	Match   string   `json:"match"` // exact, prefix, suffix, wildcard, regex, any
	Over    []string `json:"over,omitempty"`
}

// nearMiss is why no limit applies.
type nearMiss struct {
	Reason  string   `json:"reason"`
	Entry   int      `json:"entry"` // from 0
	Near    []string `json:"near,omitempty"`
	More    int      `json:"more,omitempty"`
	Shorter int      `json:"shorter,omitempty"`
	Message string   `json:"message"`
}

// limitApplied is a limit that applies.
type limitApplied struct {
	Name   string   `json:"name"`
	Place  string   `json:"place"`
	Words  string   `json:"words"`
	Bucket []string `json:"bucket"` // the entries that tell it apart; nil: nothing is charged
	Notes  []string `json:"notes,omitempty"`
	With   []string `json:"with,omitempty"` // the limits it is charged together with: all or none
}

// Run explains the request.
func (c *explainCmd) Run(a *app) error {
	request, about, err := c.question()
	if err != nil {
		return exitError{exitUsage, err}
	}
	snapshot, err := c.load(a, c.Config)
	if err != nil {
		return err
	}
	if about != nil {
		return c.explainRequest(a, snapshot, about)
	}
	if c.Domain == "" {
		names := sortedKeys(snapshot.Domains)
		if len(names) != 1 {
			return exitError{exitUsage, fmt.Errorf("the configuration has several domains: say which by --domain; there is %s", strings.Join(names, ", "))}
		}
		c.Domain = names[0]
	}
	if snapshot.Domains[c.Domain] == nil {
		return exitError{exitNo, fmt.Errorf("domain %q is not configured, so nothing in it is limited; there is %s",
			c.Domain, strings.Join(sortedKeys(snapshot.Domains), ", "))}
	}
	all, err := explain(a.ctx, snapshot, c.Domain, request)
	if err != nil {
		return err
	}
	for i := range all {
		all[i].Descriptor = c.Descriptors[i]
	}
	if c.Format == "json" {
		return writeJSON(a.stdout, all)
	}
	return writeExplained(a.stdout, all)
}

// question is what is to be explained: descriptors of a domain, or a request.
func (c *explainCmd) question() ([]limiter.Descriptor, *routing.Request, error) {
	switch {
	case c.Request != "" && (c.Domain != "" || len(c.Descriptors) > 0):
		return nil, nil, errors.New("--request goes without --domain and descriptors, which its route says")
	case c.Request != "":
		about, err := c.read()
		return nil, about, err
	case c.ClientIP != "" || len(c.Header) > 0:
		return nil, nil, errors.New("--header and --client-ip go with --request")
	case len(c.Descriptors) == 0:
		return nil, nil, errors.New("there is no descriptor; write key=value[,key=value]…, or --request")
	}
	request, err := parseDescriptors(c.Descriptors)
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

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// noStore decides nothing: only the charges are looked at.
type noStore struct{}

func (noStore) Submit(b *backend.Batch) { b.Done(b) }

// explain says what becomes of each descriptor of one request.
func explain(ctx context.Context, s *limiter.Snapshot, domain string, request []limiter.Descriptor) ([]explained, error) {
	l := limiter.New(noStore{}, limiter.Config{})
	l.Swap(s)
	call := limiter.Call{Request: limiter.Request{Domain: domain, Descriptors: request}}
	if err := l.Check(ctx, &call); err != nil {
		return nil, err
	}
	all := make([]explained, len(request))
	for i := range request {
		all[i] = followed(s.Domains[domain].Tree.Explain(request[i].Entries))
		if p := s.Domains[domain].MostOverride(request[i].Entries); p != nil {
			all[i].MaxOverride = &bound{p.Place.String(), p.Words()}
		}
		if call.Missing != nil {
			all[i].Denied = "missing-descriptor: no descriptor of the request has an entry " + call.Missing.String() + " with a value, which the domain requires"
		}
	}
	for i := range call.Results {
		r := &call.Results[i]
		x := &all[r.Descriptor]
		x.Limits = append(x.Limits, applied(&call, i))
	}
	return all, nil
}

// followed is the way of a descriptor through the configuration.
func followed(x descriptors.Explanation) explained {
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

// applied describes result i of call.
func applied(call *limiter.Call, i int) limitApplied {
	r := &call.Results[i]
	p := r.Policy
	x := limitApplied{Name: p.Name, Place: p.Place.String(), Words: p.Words(), Notes: notes(p)}
	switch {
	case r.Outcome == limiter.Replaced:
		x.Notes = append(x.Notes, "not charged: another limit of this request replaces it")
	case r.Outcome != limiter.Unlimited:
		x.Bucket = bucket(p, call.Descriptors[r.Descriptor].Entries)
	}
	if !together(r) {
		return x
	}
	for j := range call.Results {
		if other := &call.Results[j]; j != i && together(other) {
			x.With = append(x.With, other.Policy.Name)
		}
	}
	return x
}

// bucket is the entries that tell the bucket apart.
func bucket(p *descriptors.Policy, entries []descriptors.Entry) []string {
	apart := []string{}
	for i, e := range entries {
		if p.Whole || slices.Contains(p.Open, i) {
			apart = append(apart, entryText(e))
		}
	}
	return apart
}

// together reports whether r is charged all or none with the others of which that is true.
func together(r *limiter.Result) bool {
	p := r.Policy
	return !p.Alone && !p.Shadow && !p.Quota && r.Outcome != limiter.Replaced && r.Outcome != limiter.Unlimited
}

// notes says how a limit is treated, where that is not the usual way.
func notes(p *descriptors.Policy) (notes []string) {
	add := func(when bool, text string) {
		if when {
			notes = append(notes, text)
		}
	}
	add(p.Shadow, "shadow mode: never denies; what it would have denied is counted")
	add(p.Quota, "quota mode: denies only together with all other quota limits of the request")
	add(p.Alone, "charged on its own, whatever the others answer (consume: each)")
	add(len(p.Extra().Replaces) > 0, "replaces "+strings.Join(p.Extra().Replaces, ", "))
	add(len(p.Extra().Shards) > 0, fmt.Sprintf("split into %d shards where the store has several nodes", len(p.Extra().Shards)))
	if l := p.Extra().Lease; l != nil {
		add(true, fmt.Sprintf("with Redis, a process may borrow up to %d of a hot bucket at a time, for %v", l.Most, time.Duration(l.For)*time.Microsecond))
	}
	add(p.OnFailure != descriptors.Deny, "on_backend_failure: "+p.OnFailure.String())
	return notes
}

// writeExplained writes it for people.
func writeExplained(w io.Writer, all []explained) error {
	var out strings.Builder
	for i, x := range all {
		if i > 0 {
			out.WriteString("\n")
		}
		out.WriteString(descriptors.Printable(x.Descriptor) + "\n")
		for _, s := range x.Steps {
			fmt.Fprintf(&out, "  %s meets %s (%s%s)\n", s.Entry, s.Pattern, matchWords[s.Match], overText(s.Over))
		}
		if x.Miss != nil {
			fmt.Fprintf(&out, "  not limited: %s\n", x.Miss.Message)
		}
		for _, l := range x.Limits {
			writeLimit(&out, l)
		}
		if b := x.MaxOverride; b != nil {
			fmt.Fprintf(&out, "  a limit that comes with it may allow at most (%s)\n    %s\n", b.Place, b.Words)
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

// overText names the patterns that match too.
func overText(over []string) string {
	if len(over) == 0 {
		return ""
	}
	return "; before " + strings.Join(over, ", ")
}

func writeLimit(w io.Writer, l limitApplied) {
	fmt.Fprintf(w, "  limit %s (%s)\n    %s\n", l.Name, l.Place, l.Words)
	switch {
	case l.Bucket == nil:
	case len(l.Bucket) == 0:
		fmt.Fprintf(w, "    bucket: one for all\n")
	default:
		fmt.Fprintf(w, "    bucket: that of %s\n", strings.Join(l.Bucket, ", "))
	}
	for _, note := range l.Notes {
		fmt.Fprintf(w, "    %s\n", note)
	}
	if len(l.With) > 0 {
		fmt.Fprintf(w, "    charged all or none with %s\n", strings.Join(l.With, ", "))
	}
}
