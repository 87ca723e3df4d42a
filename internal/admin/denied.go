package admin

import (
	"encoding/base64"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/denials"
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

type deniedRow struct {
	Times, Why, Domain, Limit, LimitLink, Key, Link string
	Last                                            time.Time
	Now                                             time.Time
}

// denied returns rows for the n most denied keys for which match returns true. If match is nil, all keys match.
// since is the text of the time at which counting began.
func (p *pages) denied(n int, match func(*denials.Denied) bool) (since string, rows []deniedRow) {
	now := p.Now()
	top := p.Denied(maxDenied)
	for i := range top.Keys {
		d := &top.Keys[i]
		if match != nil && !match(d) {
			continue
		}
		row := deniedRow{Times: count(uint64(d.Times)), Why: reasons[d.Why], Key: shown(d), Last: d.Last, Now: now,
			Domain: descriptors.Printable(d.Domain), Limit: descriptors.Printable(d.Limit)}
		if !d.Exact {
			row.Times += " or more"
		}
		if d.Limit != "" {
			row.LimitLink = limitLink(d.Domain, d.Limit)
		}
		if d.Cut {
			row.Key = strings.TrimSuffix(row.Key, "…") + "…"
		} else if d.Entries != nil || d.Key != nil {
			row.Link = deniedLink(d)
		}
		if rows = append(rows, row); len(rows) == n {
			break
		}
	}
	return at(top.Since), rows
}

// maxDenied is larger than the number of keys that package denials stores.
const maxDenied = 4096

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
