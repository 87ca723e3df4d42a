package admin

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/denials"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/usage"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

var reasons = map[string]string{
	denials.Limit:    "the limit was reached",
	denials.Penalty:  "the penalty of the limit blocks this key",
	denials.Blocked:  "an operator blocks this key",
	denials.NoAuth:   "the configuration has no auth section",
	denials.Never:    "the cost is more than the limit can ever hold",
	denials.Backend:  "the store could not decide",
	denials.Full:     "no room for another bucket in memory",
	denials.NoConfig: "no configuration of the domain yet",
	denials.Missing:  "no descriptor has an entry that the domain requires",
	denials.NoRoute:  "no route of auth matched, or the request lacks a value for every descriptor of its route",
}

// who lists denied requests by limit, by a value that keys share, and by key. A value of only one key is not listed,
// because the key is.
type who struct {
	Since, Total string
	// Word is what happens to the requests: denied, or would be denied.
	Word                 string
	Limits, Values, Keys []whoRow
	// Counted means that some numbers are lower bounds.
	Counted bool
}

type whoRow struct {
	Name, Link       string
	Limit, LimitLink string
	Domain           string
	Times, Keys      string
	// Percent is the share of all denials.
	Percent int
	// Why is the reason, unless it is that the limit was reached, and when the last denial was.
	Why string
	// Block is the link to a form that blocks this. It is "" if it cannot be blocked.
	Block string
}

// maxDenied is larger than the number of keys that package denials stores.
const maxDenied = 4096

const (
	whoLimits, whoValues, whoKeys = 5, 8, 10
	maxNear                       = 6
)

// who returns the rows for which match returns true; nil matches all. keys is the largest number of rows of keys.
func (p *pages) who(top denials.Top, word string, keys int, match func(domain, limit string) bool) who {
	w := who{Since: clock(top.Since) + " UTC", Total: count(uint64(top.Total)), Word: word}
	row := func(domain, limit string, times int64, exact bool) whoRow {
		r := whoRow{Domain: descriptors.Printable(domain), Limit: descriptors.Printable(limit), Times: count(uint64(times)), Percent: int(100 * times / max(1, top.Total))}
		if limit != "" {
			r.LimitLink = limitLink(domain, limit)
		}
		if !exact {
			r.Times, w.Counted = "≥ "+r.Times, true
		}
		return r
	}
	for _, list := range [][]denials.Part{top.Limits, top.Parts} {
		for i := range list {
			part := &list[i]
			if match != nil && !match(part.Domain, part.Limit) || part.Position != denials.WholeLimit && part.Keys < 2 {
				continue
			}
			r := row(part.Domain, part.Limit, part.Times, part.Exact)
			r.Keys = "–"
			if part.Keys > 0 {
				r.Keys = plural(int64(part.Keys), "key")
			}
			switch {
			case part.Position == denials.WholeLimit && match == nil && len(w.Limits) < whoLimits: // the page of a limit is about that limit
				w.Limits = append(w.Limits, r)
			case part.Position != denials.WholeLimit && len(w.Values) < whoValues:
				if r.Name = partName(part); part.Entry != "" && !part.Cut && p.Adjust != nil {
					r.Block = changeLink("block", &subject{Domain: part.Domain, Limit: part.Limit, Key: []string{part.Value}}, part.Entry)
				}
				w.Values = append(w.Values, r)
			}
		}
	}
	for i := range top.Keys {
		d := &top.Keys[i]
		if match != nil && !match(d.Domain, d.Limit) || len(w.Keys) == keys {
			continue
		}
		r := row(d.Domain, d.Limit, d.Times, d.Exact)
		r.Name, r.Why = shown(d), ago(d.Last, p.Now())
		if d.Why != denials.Limit { // the usual reason needs no words
			r.Why = reasons[d.Why] + ", " + r.Why
		}
		if d.Cut {
			r.Name = strings.TrimSuffix(r.Name, "…") + "…"
		} else if d.Entries != nil || d.Key != nil {
			r.Link = deniedLink(d)
			if d.Limit != "" && d.Key != nil && p.Adjust != nil {
				r.Block = changeLink("block", &subject{Domain: d.Domain, Limit: d.Limit, Key: d.Key}, "")
			}
		}
		w.Keys = append(w.Keys, r)
	}
	return w
}

// partName returns the text of a value with its entry, such as tenant=evil.
func partName(p *denials.Part) string {
	name := descriptors.Printable(p.Value)
	if p.Entry == "" {
		name = fmt.Sprintf("value %d: %s", p.Position+1, name)
	} else {
		name = descriptors.Format([]descriptors.Entry{{Key: p.Entry, Value: p.Value}})
	}
	if p.Cut {
		name += "…"
	}
	return name
}

type nearRow struct{ Key, Link, Limit, LimitLink, Left string }

// near returns the keys of the sample that have used most of their limits, those with the least left first.
func (p *pages) near() (rows []nearRow) {
	_, used := p.Used()
	left := func(u *usage.Used) float64 { return float64(max(0, u.Remaining)) / float64(max(1, u.Capacity)) }
	used = slices.DeleteFunc(used, func(u usage.Used) bool { return u.Capacity < 2 || left(&u) > .2 })
	slices.SortStableFunc(used, func(a, b usage.Used) int { return cmp.Compare(left(&a), left(&b)) })
	for i := range used[:min(len(used), maxNear)] {
		u := &used[i]
		row := nearRow{Key: printable(u.Key), Limit: descriptors.Printable(u.Limit), LimitLink: limitLink(u.Domain, u.Limit)}
		row.Left = fmt.Sprintf("%s of %s", count(uint64(max(0, u.Remaining))), count(uint64(u.Capacity)))
		if u.Cut {
			row.Key += "…"
		} else {
			row.Link = keyLink(u.Domain, u.Limit, u.Key)
		}
		rows = append(rows, row)
	}
	return rows
}

func shown(d *denials.Denied) string {
	if d.Entries != nil {
		return descriptors.Format(d.Entries)
	}
	return printable(d.Key)
}

func printable(key []string) string {
	parts := make([]string, len(key))
	for i, v := range key {
		parts[i] = descriptors.Printable(v)
	}
	return strings.Join(parts, ",")
}

func deniedLink(d *denials.Denied) string {
	if d.Entries != nil {
		return descriptorLink(d.Domain, d.Entries)
	}
	return keyLink(d.Domain, d.Limit, d.Key)
}

func keyLink(domain, limit string, key []string) string {
	q := url.Values{"domain": {domain}, "limit": {limit}}
	addKey(q, key)
	return "/key?" + q.Encode()
}

// addKey adds the values of a key to a query. It repeats the parameter value, or value64 (in base64url) if a
// value is not valid UTF-8.
func addKey(q url.Values, key []string) {
	for _, v := range key {
		if !utf8.ValidString(v) {
			for _, v := range key {
				q.Add("value64", base64.RawURLEncoding.EncodeToString([]byte(v)))
			}
			return
		}
	}
	q["value"] = key
}

// descriptorLink repeats the parameter entry64 for each key and each value, in base64url.
func descriptorLink(domain string, entries []descriptors.Entry) string {
	q := url.Values{"domain": {domain}}
	for _, e := range entries {
		q.Add("entry64", base64.RawURLEncoding.EncodeToString([]byte(e.Key)))
		q.Add("entry64", base64.RawURLEncoding.EncodeToString([]byte(e.Value)))
	}
	return "/key?" + q.Encode()
}

// used returns the keys of a limit that consumed most.
func (p *pages) used(domain, name string) (since string, rows []usedRow) {
	from, top := p.Used()
	for i := range top {
		u := &top[i]
		if u.Domain != domain || u.Limit != name || len(rows) == whoKeys {
			continue
		}
		row := usedRow{Key: printable(u.Key), Units: "about " + count(uint64(max(0, u.Units)))}
		if u.Cut {
			row.Key += "…"
		} else {
			row.Link = keyLink(domain, name, u.Key)
		}
		rows = append(rows, row)
	}
	return at(from), rows
}

type usedRow struct{ Key, Link, Units string }

func clock(t time.Time) string { return t.UTC().Format("15:04:05") }
