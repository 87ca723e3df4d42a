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

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

var reasons = map[string]string{
	topkeys.Limit:    "the limit was reached",
	topkeys.Penalty:  "the penalty of the limit blocks this key",
	topkeys.Blocked:  "an operator blocks this key",
	topkeys.NoAuth:   "the configuration has no auth section",
	topkeys.Never:    "the cost is more than the limit can ever hold",
	topkeys.Backend:  "the store could not decide",
	topkeys.Full:     "no room for another bucket in memory",
	topkeys.NoConfig: "no configuration of the domain yet",
	topkeys.Missing:  "no descriptor has an entry that the domain requires",
	topkeys.NoRoute:  "no route of auth matched, or the request lacks a value for every descriptor of its route",
}

// who lists denied requests by a value that keys share, by key, and by limit. A value of only one key is not listed,
// because the key is.
type who struct {
	Since, Total string
	// Groups are the values, the keys and the limits. Groups without rows are left out.
	Groups []whoGroup
	// Counted means that some numbers are lower bounds.
	Counted bool
}

type whoGroup struct {
	Name string
	Rows []whoRow
}

type whoRow struct {
	Name, Link string
	// Of is the limit, or the domain of a limit. It is "" on the page of a limit.
	Of, OfLink string
	Times      string
	// Percent is the share of all denials.
	Percent int
	// Note has the number of keys, and the rate of denials. For a key, it has the rate, or when the last one was, and the reason unless
	// the limit was reached.
	Note string
	// Block is the link to a form that blocks this. It is "" if it cannot be blocked, or is blocked.
	Block string
}

// maxCounted is larger than the number of keys that package topkeys stores.
const maxCounted = 4096

// These are the largest numbers of rows. On the page of a limit there are whoKeys more keys.
const (
	whoLimits, whoValues, whoKeys = 4, 6, 6
	maxNear, maxUsed              = 6, 10
)

// who returns the rows about a limit, or about all limits if of is nil.
func (p *pages) who(top topkeys.Top, of *history.Key) who {
	w := who{Since: clock(top.Since) + " UTC", Total: count(top.Total)}
	row := func(name, domain, limit string, times int64, exact bool) whoRow {
		r := whoRow{Name: name, Times: count(times), Percent: int(100 * times / max(1, top.Total))}
		if !exact {
			r.Times, w.Counted = "≥ "+r.Times, true
		}
		switch {
		case of != nil:
		case limit == "":
			r.Of = descriptors.Printable(domain)
		default:
			r.Of, r.OfLink = descriptors.Printable(limit), limitLink(domain, limit)
		}
		return r
	}
	isOther := func(domain, limit string) bool { return of != nil && *of != history.Key{Domain: domain, Limit: limit} }
	var limits, values, keys []whoRow
	for i := range top.Limits {
		l := &top.Limits[i]
		if of == nil && len(limits) < whoLimits { // the page of a limit is about that limit
			r := row(descriptors.Printable(l.Limit), l.Domain, l.Limit, l.Times, l.Exact)
			r.Link, r.Of, r.OfLink, r.Note = r.OfLink, descriptors.Printable(l.Domain), "", keysOf(l)
			limits = append(limits, r)
		}
	}
	for i := range top.Parts {
		part := &top.Parts[i]
		if isOther(part.Domain, part.Limit) || part.Keys < 2 || len(values) == whoValues {
			continue
		}
		r := row(partName(part), part.Domain, part.Limit, part.Times, part.Exact)
		of := adjust.Target{Domain: part.Domain, Limit: part.Limit, Entry: part.Entry, Value: part.Value}
		if r.Note = keysOf(part); part.Entry != "" && !part.Cut && p.Adjust != nil && !p.blocked(of, adjust.Target{Domain: part.Domain, Limit: part.Limit, AllKeys: true}) {
			r.Block = changeLink("block", &subject{Domain: part.Domain, Limit: part.Limit, Key: []string{part.Value}}, part.Entry)
		}
		values = append(values, r)
	}
	most := whoKeys
	if of != nil {
		most += whoKeys
	}
	for i := range top.Keys {
		d := &top.Keys[i]
		if isOther(d.Domain, d.Limit) || len(keys) == most {
			continue
		}
		r := row(subjectOf(d).String(), d.Domain, d.Limit, d.Times, d.Exact)
		if p.describeKey(&r, d); r.Name == "" {
			r.Name = "(all keys)"
		}
		keys = append(keys, r)
	}
	if len(limits) < 2 { // the keys name their limit
		limits = nil
	}
	all := []whoGroup{{"What keys share", values}, {"Keys", keys}, {"Limits", limits}}
	w.Groups = slices.DeleteFunc(all, func(g whoGroup) bool { return len(g.Rows) == 0 })
	return w
}

// keysOf returns the number of keys of p, and the rate of its denials if there are any now.
func keysOf(p *topkeys.Part) string {
	var notes []string
	if p.Keys > 0 {
		notes = append(notes, plural(p.Keys, "key"))
	}
	if p.Rate >= leastRate {
		notes = append(notes, rate(p.Rate))
	}
	return or(strings.Join(notes, ", "), "–")
}

// leastRate is the least rate of denials that is shown.
const leastRate = .1

// describeKey completes r, the row of d.
func (p *pages) describeKey(r *whoRow, d *topkeys.Item) {
	if r.Note = ago(d.Last, p.Now()); d.Rate >= leastRate {
		r.Note = rate(d.Rate)
	}
	if d.Why != topkeys.Limit { // the usual reason needs no words
		r.Note = reasons[d.Why] + ", " + r.Note
	}
	switch {
	case d.Cut:
		r.Name = strings.TrimSuffix(r.Name, "…") + "…"
	case d.Entries != nil || d.Key != nil:
		if r.Name = or(r.Name, "(empty)"); d.Limit != "" && d.Key != nil && p.Adjust != nil && !p.blocked(targetsOf(d)...) {
			r.Block = changeLink("block", &subject{Domain: d.Domain, Limit: d.Limit, Key: d.Key}, "")
		}
		r.Link = subjectOf(d).link()
	}
}

// targetsOf returns the targets of adjustments that apply to the key of d. The first of them that is adjusted has effect.
func targetsOf(d *topkeys.Item) []adjust.Target {
	of := adjust.Target{Domain: d.Domain, Limit: d.Limit}
	list := []adjust.Target{{Domain: d.Domain, Limit: d.Limit, Key: d.Key}}
	for i, value := range d.Key {
		if of.Entry = d.Entry(i); of.Entry != "" {
			of.Value = value
			list = append(list, of)
		}
	}
	return append(list, adjust.Target{Domain: d.Domain, Limit: d.Limit, AllKeys: true})
}

// partName returns the text of a value with its entry, such as tenant=evil.
func partName(p *topkeys.Part) string {
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

// usedRow is a key that consumed units. Number has what is left, or what it consumed.
type usedRow struct{ Number, Key, Link, Limit, LimitLink string }

func rowOf(u *topkeys.Item, number string) usedRow {
	row := usedRow{Number: number, Key: or(subjectOf(u).String(), "(empty)"), Limit: descriptors.Printable(u.Limit), LimitLink: limitLink(u.Domain, u.Limit)}
	if u.Cut {
		row.Key += "…"
	} else {
		row.Link = keyLink(u.Domain, u.Limit, u.Key)
	}
	return row
}

// near returns the keys of the sample that have used most of their limits, those with the least left first.
func (p *pages) near() (rows []usedRow) {
	used := p.Used(maxCounted).Keys
	left := func(u *topkeys.Item) float64 { return float64(max(0, u.Remaining)) / float64(max(1, u.Capacity)) }
	used = slices.DeleteFunc(used, func(u topkeys.Item) bool { return u.Capacity < 2 || left(&u) > .2 })
	slices.SortStableFunc(used, func(a, b topkeys.Item) int { return cmp.Compare(left(&a), left(&b)) })
	for i := range used[:min(len(used), maxNear)] {
		u := &used[i]
		rows = append(rows, rowOf(u, fmt.Sprintf("%s of %s", count(u.Remaining), count(u.Capacity))))
	}
	return rows
}

// used returns the keys of a limit that consumed most.
func (p *pages) used(id history.Key) (since string, rows []usedRow) {
	top := p.Used(maxCounted)
	for i := range top.Keys {
		if u := &top.Keys[i]; u.Domain == id.Domain && u.Limit == id.Limit && len(rows) < maxUsed {
			row := rowOf(u, "about "+count(u.Times))
			row.Limit = "" // the page is about it
			rows = append(rows, row)
		}
	}
	return clock(top.Since) + " UTC", rows
}

func printable(key []string) string { return descriptors.PrintableList(key, ",") }

// addKey adds the values of a key to a query. It repeats the parameter value, or value64 (in base64url) if a
// value is not valid UTF-8, or has characters that browsers change in the fields of a form.
func addKey(q url.Values, key []string) {
	for _, v := range key {
		if !utf8.ValidString(v) || strings.ContainsAny(v, "\r\n\x00") {
			for _, v := range key {
				q.Add("value64", base64.RawURLEncoding.EncodeToString([]byte(v)))
			}
			return
		}
	}
	q["value"] = key
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05") }
