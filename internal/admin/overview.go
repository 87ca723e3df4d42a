package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const (
	// rowsShown is the largest number of limits on a page of the overview, and of adjustments on their page.
	rowsShown     = 100
	maxDeniedRows = 20
	maxQueryBytes = 256
)

// catalog lists the limits of one Snapshot by name. A limit occurs once, even if several places use it.
type catalog struct {
	snapshot *limiter.Snapshot
	limits   []*limiter.Policy
}

// catalogs keeps the last catalog, because sorting 100,000 names takes longer than a page may take.
type catalogs struct{ last atomic.Pointer[catalog] }

func (c *catalogs) of(s *limiter.Snapshot) *catalog {
	if s == nil {
		return &catalog{}
	}
	if last := c.last.Load(); last != nil && last.snapshot == s {
		return last
	}
	made := &catalog{snapshot: s, limits: slices.Clone(s.Policies)}
	slices.SortStableFunc(made.limits, compareNames)
	made.limits = slices.CompactFunc(made.limits, func(a, b *limiter.Policy) bool { return a.Domain == b.Domain && a.Name == b.Name })
	c.last.Store(made)
	return made
}

// compareNames orders policies by domain and name. It orders the uses of a named limit before its definition,
// because only the uses have the names of the keys.
func compareNames(a, b *limiter.Policy) int {
	definition := func(l *limiter.Policy) int {
		if l.Extra().Named {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name), definition(a)-definition(b), cmp.Compare(a.Index, b.Index))
}

func (c *catalog) find(domain, name string) *limiter.Policy {
	i, found := slices.BinarySearchFunc(c.limits, limiter.Policy{Domain: domain, Name: name, Index: -1}, func(a *limiter.Policy, b limiter.Policy) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
	})
	if !found {
		return nil
	}
	return c.limits[i]
}

type overviewBody struct {
	Configured bool
	Denied     []deniedRow
	Since      string
	Unmatched  []unmatchedRow
	Query      string
	Sort, Show string
	Sorts      []choice
	Shows      []choice
	Rows       []limitRow
	// First and Last are the positions of the first and the last limit of this page among the Found limits, counted
	// from 1. All is the number of configured limits.
	First, Last, Found, All string
	Previous, Next          string // links to the neighbouring pages; "" if there is no such page
	// Dropped states how many limits have no sparkline, or is "".
	Dropped string
}

type unmatchedRow struct{ Requests, Domain, Keys, Why, Last string }

const unmatchedShown = 10

func (p *pages) unmatched() (rows []unmatchedRow) {
	_, top := p.Unmatched(unmatchedShown)
	for i := range top {
		s := &top[i]
		row := unmatchedRow{"at least " + count(uint64(s.Requests)), descriptors.Printable(s.Domain), s.Text(), "no limit matched", ago(s.Last, p.Now())}
		if !s.Configured {
			row.Why = "the domain is not configured"
		}
		rows = append(rows, row)
	}
	return rows
}

type choice struct {
	Name, Link string
	Chosen     bool
}

type limitRow struct {
	Domain, Name, Link, Words, Mode string
	// Adjusted describes the adjustments of the limit that are in force. It is "" if there are none.
	Adjusted string
	// Rate and DeniedRate are requests per second, averaged over the last minute. Denied is the number of requests
	// denied in the last fifteen minutes. In shadow mode, DeniedRate and Denied count requests that would have been
	// denied.
	Rate, DeniedRate float64
	Denied           uint64
	Total            metrics.Tally
	Graph            graph
	Shadow           bool
}

type ranked struct {
	limit      *limiter.Policy
	tally      metrics.Tally
	rate       float64
	denied     uint64
	deniedRate float64
}

var sorts = []struct{ key, name string }{{"denied", "denied most"}, {"rate", "busiest"}, {"name", "name"}}

var shows = []struct{ key, name string }{{"all", "all"}, {"denying", "denying now"}, {"shadow", "shadow mode"}, {"unused", "matched by no request"}}

func (p *pages) overview(w http.ResponseWriter, r *http.Request, v viewer) {
	q := r.URL.Query()
	b := overviewBody{Configured: p.Current() != nil, Query: cut(q.Get("q"), maxQueryBytes), Sort: "denied", Show: "all"}
	if slices.ContainsFunc(sorts, func(s struct{ key, name string }) bool { return s.key == q.Get("sort") }) {
		b.Sort = q.Get("sort")
	}
	if slices.ContainsFunc(shows, func(s struct{ key, name string }) bool { return s.key == q.Get("show") }) {
		b.Show = q.Get("show")
	}
	for _, s := range sorts {
		b.Sorts = append(b.Sorts, choice{s.name, b.link(s.key, b.Show, 1), s.key == b.Sort})
	}
	for _, s := range shows {
		b.Shows = append(b.Shows, choice{s.name, b.link(b.Sort, s.key, 1), s.key == b.Show})
	}
	b.Since, b.Denied = p.denied(maxDeniedRows, nil)
	b.Unmatched = p.unmatched()
	all := p.catalogs.of(p.Current()).limits
	found := p.ranked(all, &b)
	number, _ := strconv.Atoi(q.Get("page"))
	last := max(1, (len(found)+rowsShown-1)/rowsShown)
	number = min(max(number, 1), last)
	from := (number - 1) * rowsShown
	shown := found[from:min(from+rowsShown, len(found))]
	adjusted := p.adjustedLimits()
	for i := range shown {
		row := p.limitRow(&shown[i])
		row.Adjusted = p.limitAdjustmentWords(adjusted[limitOf{shown[i].limit.Domain, shown[i].limit.Name}])
		b.Rows = append(b.Rows, row)
	}
	b.First, b.Last = count(uint64(min(from+1, len(found)))), count(uint64(from+len(shown)))
	b.Found, b.All = count(uint64(len(found))), count(uint64(len(all)))
	if number > 1 {
		b.Previous = b.link(b.Sort, b.Show, number-1)
	}
	if number < last {
		b.Next = b.link(b.Sort, b.Show, number+1)
	}
	if n := p.History.Dropped(); n > 0 {
		b.Dropped = fmt.Sprintf("%s had requests and no graph: at most %s are drawn at a time.", plural(int64(n), "limit"), count(history.MaxSeries))
	}
	p.show(w, r, v, http.StatusOK, overviewPage, frame{Title: "Overview", Section: "/", Live: true, Body: b})
}

func (b *overviewBody) link(sort, show string, page int) string {
	q := url.Values{}
	if b.Query != "" {
		q.Set("q", b.Query)
	}
	if sort != "denied" {
		q.Set("sort", sort)
	}
	if show != "all" {
		q.Set("show", show)
	}
	if page > 1 {
		q.Set("page", strconv.Itoa(page))
	}
	if len(q) == 0 {
		return "/#limits"
	}
	return "/?" + q.Encode() + "#limits"
}

// ranked returns the limits that match the query and the filter of b, in the order that b states. all are the limits
// of the catalog.
func (p *pages) ranked(all []*limiter.Policy, b *overviewBody) []ranked {
	list := make([]ranked, len(all))
	for i, l := range all {
		list[i] = ranked{limit: l, tally: p.Tally(l)}
	}
	p.History.Rates(len(all), func(i int) history.Key { return history.Key{Domain: all[i].Domain, Limit: all[i].Name} },
		func(i int, r history.Rate) {
			list[i].rate, list[i].deniedRate = r.Allowed+r.Denied+r.Shadowed, r.Denied+r.Shadowed
		})
	for i := range list {
		_, points := p.History.Limit(history.Key{Domain: all[i].Domain, Limit: all[i].Name}, history.Recent)
		sum := history.Sum(points)
		list[i].denied = sum.Denied + sum.Shadowed
	}
	query := strings.ToLower(b.Query)
	list = slices.DeleteFunc(list, func(l ranked) bool {
		switch {
		case b.Show == "denying" && l.denied == 0, b.Show == "shadow" && !l.limit.Shadow, b.Show == "unused" && l.tally != metrics.Tally{}:
			return true
		default:
			return query != "" && !strings.Contains(strings.ToLower(l.limit.Domain+"/"+l.limit.Name), query)
		}
	})
	switch b.Sort { // stable, so that equal limits stay in the order of their names
	case "rate":
		slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Or(cmp.Compare(b.rate, a.rate), cmp.Compare(b.denied, a.denied)) })
	case "denied":
		slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Or(cmp.Compare(b.denied, a.denied), cmp.Compare(b.rate, a.rate)) })
	}
	return list
}

func (p *pages) limitRow(r *ranked) limitRow {
	l := r.limit
	_, points := p.History.Limit(history.Key{Domain: l.Domain, Limit: l.Name}, history.Recent)
	return limitRow{
		Domain: descriptors.Printable(l.Domain), Name: descriptors.Printable(l.Name), Link: limitLink(l.Domain, l.Name),
		Words: l.Words(), Mode: modes(l), Shadow: l.Shadow, Total: r.tally,
		Rate: r.rate, DeniedRate: r.deniedRate, Denied: r.denied, Graph: sparkline(points, 6, deniedWord(l)),
	}
}

func deniedWord(l *limiter.Policy) string {
	if l.Shadow {
		return "would have been denied"
	}
	return "denied"
}

func modes(l *limiter.Policy) string {
	var list []string
	if l.Shadow {
		list = append(list, "shadow")
	}
	if l.Quota {
		list = append(list, "quota")
	}
	return strings.Join(list, ", ")
}

func limitLink(domain, name string) string {
	return "/limit?" + url.Values{"domain": {domain}, "name": {name}}.Encode()
}

// cut returns the first n bytes of text, which a client has sent. U+FFFD replaces bytes that are not UTF-8.
func cut(text string, n int) string {
	return strings.ToValidUTF8(text[:min(len(text), n)], "\ufffd")
}
