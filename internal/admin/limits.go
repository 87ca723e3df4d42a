package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type limitsBody struct {
	Query      string
	Sort, Show string
	// Heads are the heads of the columns, which sort. Shows are the filters.
	Heads, Shows []choice
	Rows         []limitRow
	// First and Last are the positions of the first and the last limit of this page among the Found limits, counted
	// from 1. All is the number of configured limits.
	First, Last, Found, All string
	Previous, Next          string // links to the neighbouring pages; "" if there is no such page
	// Scale is what the highest column of all sparklines means. Dropped states how many limits have none, or is "".
	Scale, Dropped string
}

type limitRow struct {
	Domain, Name, Link, Words, Mode string
	// Adjusted describes the adjustments of the limit that are in force. It is "" if there are none.
	Adjusted string
	// Rate is the number of requests per second, and Percent the share of them that is denied, in the last minute. In
	// shadow mode it is the share that would be denied.
	Rate    float64
	Percent string
	Hot     bool
	Word    string
	Graph   spark
}

type ranked struct {
	limit         *limiter.Policy
	rate, refused float64
}

func (r *ranked) share() float64 {
	if r.rate == 0 {
		return 0
	}
	return r.refused / r.rate
}

type named struct{ key, name string }

var sorts = []named{{"name", "Limit"}, {"rate", "Requests"}, {"denied", "Denied"}}

var shows = []named{{"all", "all"}, {"denying", "denying now"}, {"shadow", "shadow mode"}, {"unused", "matched by no request"}}

func chosen(list []named, key, otherwise string) string {
	if slices.ContainsFunc(list, func(n named) bool { return n.key == key }) {
		return key
	}
	return otherwise
}

func (p *pages) limits(w http.ResponseWriter, r *http.Request, v viewer) {
	q := r.URL.Query()
	b := limitsBody{Query: cut(q.Get("q"), maxQueryBytes), Sort: chosen(sorts, q.Get("sort"), "denied"), Show: chosen(shows, q.Get("show"), "all")}
	for _, s := range sorts {
		b.Heads = append(b.Heads, choice{s.name, b.link(s.key, b.Show, 1), s.key == b.Sort})
	}
	for _, s := range shows {
		b.Shows = append(b.Shows, choice{s.name, b.link(b.Sort, s.key, 1), s.key == b.Show})
	}
	all := p.configured()
	found := p.ranked(all, &b)
	number, _ := strconv.Atoi(q.Get("page"))
	last := max(1, (len(found)+rowsShown-1)/rowsShown)
	number = min(max(number, 1), last)
	from := (number - 1) * rowsShown
	shown := found[from:min(from+rowsShown, len(found))]
	b.Rows, b.Scale = p.limitRows(shown)
	b.First, b.Last = count(min(from+1, len(found))), count(from+len(shown))
	b.Found, b.All = count(len(found)), count(len(all))
	if number > 1 {
		b.Previous = b.link(b.Sort, b.Show, number-1)
	}
	if number < last {
		b.Next = b.link(b.Sort, b.Show, number+1)
	}
	if n := p.History.Dropped(); n > 0 {
		b.Dropped = fmt.Sprintf("%s had requests and no graph: the busiest %s have one.", plural(n, "limit"), count(history.MaxSeries))
	}
	p.show(w, r, v, http.StatusOK, limitsPage, frame{Title: "Limits", Section: "/limits", Live: true, Body: b})
}

func keyOf(l *limiter.Policy) history.Key { return history.Key{Domain: l.Domain, Limit: l.Name} }

func (b *limitsBody) link(sort, show string, page int) string {
	q := url.Values{}
	for name, value := range map[string]string{"q": b.Query, "sort": strings.TrimSuffix(sort, "denied"), "show": strings.TrimSuffix(show, "all")} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if page > 1 {
		q.Set("page", strconv.Itoa(page))
	}
	return "/limits?" + q.Encode()
}

// ranked returns the limits that match the query and the filter of b, in the order that b states. all are the configured
// limits.
func (p *pages) ranked(all []*limiter.Policy, b *limitsBody) []ranked {
	list := make([]ranked, len(all))
	for i, l := range all {
		list[i] = ranked{limit: l}
	}
	p.History.Rates(len(all), func(i int) history.Key { return keyOf(all[i]) },
		func(i int, r history.Rate) {
			list[i].rate, list[i].refused = r.Allowed+r.Denied+r.Shadowed, r.Denied+r.Shadowed
		})
	query := strings.ToLower(b.Query)
	list = slices.DeleteFunc(list, func(l ranked) bool {
		switch {
		case b.Show == "denying" && l.refused == 0, b.Show == "shadow" && !l.limit.Shadow, b.Show == "unused" && p.Totals(l.limit).Sum() > 0:
			return true
		default:
			return query != "" && !strings.Contains(strings.ToLower(l.limit.Domain+"/"+l.limit.Name), query)
		}
	})
	switch b.Sort { // stable, so that equal limits stay in the order of their names
	case "rate":
		slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Or(cmp.Compare(b.rate, a.rate), cmp.Compare(b.refused, a.refused)) })
	case "denied":
		slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Or(cmp.Compare(b.refused, a.refused), cmp.Compare(b.rate, a.rate)) })
	}
	return list
}

// limitRows returns a row for each limit. Their sparklines have a common scale, which scale describes.
func (p *pages) limitRows(shown []ranked) (rows []limitRow, scale string) {
	adjusted := p.adjustedLimits()
	all, most := make([][]history.Totals, len(shown)), uint64(0)
	for i := range shown {
		_, points := p.History.Points(keyOf(shown[i].limit), history.Recent)
		list, highest := columns(points)
		all[i], most = list, max(most, highest)
	}
	for i := range shown {
		l, r := shown[i].limit, &shown[i]
		row := limitRow{
			Domain: descriptors.Printable(l.Domain), Name: descriptors.Printable(l.Name), Link: limitLink(l.Domain, l.Name),
			Words: l.Words(), Mode: modes(l), Rate: r.rate, Word: deniedWord(l), Graph: sparkOf(all[i], most, deniedWord(l)),
			Percent: "–", Hot: r.share() > .5 && !l.Shadow, Adjusted: p.limitAdjustmentWords(adjusted[keyOf(l)]),
		}
		if r.rate > 0 {
			row.Percent = fmt.Sprintf("%.0f %%", 100*r.share())
		}
		rows = append(rows, row)
	}
	return rows, rate(float64(most) * sparkColumns / (float64(history.Recent.Steps) * history.Step.Seconds()))
}
