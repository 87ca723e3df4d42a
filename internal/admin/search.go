package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const (
	// maxTried bounds how many limits a search tries, and how many domains it tries for a descriptor.
	maxTried = 200
	// maxFound bounds the rows in each of the two lists of a search, so that they fit on three screens of a phone.
	maxFound = 12
)

type searchBody struct {
	Query string
	// Buckets has a row for each domain in which the text, as a descriptor, matches limits, and a row for each bucket
	// in use whose key is the text. Recorded has a row for each key that contains the text, among the keys that were
	// denied most and those that consumed most (Config.Denied, Config.Used).
	Buckets  []foundRow
	Recorded []foundRow
	Notes    []string
}

type foundRow struct {
	Key, Link, Limit, Domain, State string
	Denied                          bool
}

func (p *pages) search(w http.ResponseWriter, r *http.Request, v viewer, query string) {
	b := searchBody{Query: query}
	if query != "" {
		ctx, cancel := context.WithTimeout(r.Context(), lookupTime)
		defer cancel()
		if entries, err := descriptors.Parse(query); err == nil {
			p.searchDescriptor(ctx, &b, entries)
		}
		p.searchKey(ctx, &b, query)
		p.searchAdjusted(&b, query)
		p.searchRecorded(&b, query)
		if max(len(b.Buckets), len(b.Recorded)) == maxFound {
			b.Notes = append(b.Notes, fmt.Sprintf("A list has at most %d rows. A longer text finds fewer keys.", maxFound))
		}
	}
	p.show(w, r, v, http.StatusOK, searchPage, frame{Title: "Why is this denied?", Section: "/key", Query: query, Body: b})
}

func (p *pages) searchDescriptor(ctx context.Context, b *searchBody, entries []descriptors.Entry) {
	var domains []string
	if s := p.Current(); s != nil {
		domains = slices.Sorted(maps.Keys(s.Domains))
	}
	for _, domain := range domains[:min(len(domains), maxTried)] {
		s := subject{Domain: domain, Entries: entries}
		c, err := p.inspect(ctx, &s, 1)
		if err != nil || len(c.Results) == 0 || len(b.Buckets) == maxFound {
			continue
		}
		row := foundRow{Key: s.String(), Link: s.link(), Domain: descriptors.Printable(domain), Denied: c.Denied, State: "allowed now"}
		if c.Denied {
			row.State = "denied now"
		}
		for i := range c.Results {
			if c.Results[i].Decision.Err != nil {
				row.State, row.Denied = "unknown: the store did not answer", false
			}
		}
		row.Limit = plural(len(c.Results), "limit")
		b.Buckets = append(b.Buckets, row)
	}
}

func (p *pages) searchKey(ctx context.Context, b *searchBody, value string) {
	tried := 0
	for _, l := range p.configured() {
		if l.Unlimited || l.Whole || !l.Extra().Named && !slices.ContainsFunc(p.Current().Find(l.Domain, l.Name), hasOneValue) {
			continue
		}
		if tried++; tried > maxTried || len(b.Buckets) == maxFound {
			b.Notes = append(b.Notes, fmt.Sprintf("Only %s were tried. To search another limit, open its page.", plural(tried-1, "limit")))
			return
		}
		s := subject{Domain: l.Domain, Limit: l.Name, Key: []string{value}}
		c, err := p.inspect(ctx, &s, 0)
		switch {
		case err != nil:
			if _, wrongKey := errors.AsType[*limiter.RequestError](err); !wrongKey {
				b.Notes = append(b.Notes, "The search was stopped: "+err.Error()+".")
				return
			}
			continue
		case c.Results[0].Decision.Err != nil:
			b.Notes = append(b.Notes, "Unknown: the store did not answer ("+descriptors.Printable(c.Results[0].Decision.Err.Error())+").")
			return
		}
		result := &c.Results[0]
		if d := &result.Decision; d.Remaining >= result.Policy.Limit.Capacity && d.Blocked == 0 && result.Policy.Adjusted == nil {
			continue // a bucket that equals a new one is not in use
		}
		row := foundRow{Key: s.String(), Link: s.link(), Limit: descriptors.Printable(l.Name), Domain: descriptors.Printable(l.Domain), State: remainingWords(result)}
		row.Denied = result.Decision.Remaining <= 0 || result.Decision.Blocked > 0
		b.Buckets = append(b.Buckets, row)
	}
}

// hasOneValue reports whether keys of this use of a limit have one value.
func hasOneValue(use *limiter.Policy) bool { return len(use.Open) == 1 }

// searchAdjusted finds the adjustments in force whose key or value contains the text.
func (p *pages) searchAdjusted(b *searchBody, query string) {
	if p.Adjust == nil {
		return
	}
	all, _ := p.Adjust.List()
	for i := range all {
		t := &all[i].Target
		if len(b.Recorded) == maxFound || !strings.Contains(t.KeyText(), query) || t.AllKeys {
			continue
		}
		row := adjusted(all[i])
		b.Recorded = append(b.Recorded, foundRow{Key: t.KeyText(), Link: row.Link, Limit: descriptors.Printable(t.Limit),
			Domain: descriptors.Printable(t.Domain), State: all[i].Change.String() + " until " + row.Expires, Denied: all[i].Change.Block})
	}
}

func (p *pages) searchRecorded(b *searchBody, query string) {
	contains := func(key []string, entries []descriptors.Entry) bool {
		for _, v := range key {
			if strings.Contains(v, query) {
				return true
			}
		}
		return entries != nil && strings.Contains(descriptors.Format(entries), query)
	}
	add := func(items []topkeys.Item, link func(*topkeys.Item) string, state func(*topkeys.Item) string, denied bool) {
		for i := range items {
			if one := &items[i]; len(b.Recorded) < maxFound && !one.Cut && contains(one.Key, one.Entries) {
				b.Recorded = append(b.Recorded, foundRow{Key: subjectOf(one).String(), Link: link(one), Limit: descriptors.Printable(one.Limit),
					Domain: descriptors.Printable(one.Domain), State: state(one), Denied: denied})
			}
		}
	}
	add(p.Denied(maxCounted).Keys, func(d *topkeys.Item) string { return subjectOf(d).link() }, func(d *topkeys.Item) string { return "denied " + deniedTimes(d) }, true)
	add(p.Used(maxCounted).Keys, func(u *topkeys.Item) string { return keyLink(u.Domain, u.Limit, u.Key) },
		func(u *topkeys.Item) string { return "used about " + plural(u.Times, "unit") }, false)
}
