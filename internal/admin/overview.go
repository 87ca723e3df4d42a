package admin

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const (
	// rowsShown is the largest number of limits on a page of their list, and of adjustments on their page.
	rowsShown     = 50
	maxQueryBytes = 256
)

// configured returns the limits of the configuration in use, each once, sorted by domain and name.
func (p *pages) configured() []*limiter.Policy {
	if s := p.Current(); s != nil {
		return s.Limits()
	}
	return nil
}

type overviewBody struct {
	Configured       bool
	Chart            chart
	Denied, Shadowed who
	Near             []usedRow
	Unmatched        []unmatchedRow
	Figures          []fact
}

type unmatchedRow struct{ Requests, Domain, Keys, Why, Last string }

const unmatchedShown = 10

func (p *pages) unmatched() (rows []unmatchedRow) {
	_, top := p.Unmatched(unmatchedShown)
	for i := range top {
		s := &top[i]
		row := unmatchedRow{"≥ " + count(s.Requests), descriptors.Printable(s.Domain), s.Text(), "no limit matched", ago(s.Last, p.Now())}
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

func (p *pages) overview(w http.ResponseWriter, r *http.Request, v viewer) {
	b := overviewBody{
		Configured: p.Current() != nil, Chart: p.chartOf("/", r.URL.Query()), Figures: p.figures(), Near: p.near(), Unmatched: p.unmatched(),
		Denied: p.who(p.Denied(maxCounted), nil), Shadowed: p.who(p.Shadowed(maxCounted), nil),
	}
	p.show(w, r, v, http.StatusOK, overviewPage, frame{Title: "Overview", Section: "/", Live: true, Body: b})
}

func (p *pages) figures() (list []fact) {
	now := p.History.Rate()
	list = []fact{{"last minute: allowed", rate(now.Allowed)}, {"denied", rate(now.Denied)}}
	if now.Shadowed > 0 {
		list = append(list, fact{"would be denied", rate(now.Shadowed)})
	}
	if times, of := p.Times.Quantiles(.5, .99); of > 0 {
		list = append(list, fact{"half decided within", short(times[0])}, fact{"99 % within", short(times[1])})
	}
	return append(list, fact{"up for", span(p.Now().Sub(p.Started))})
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
