package admin

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type change struct {
	do      string // reset, raise, block or end
	subject subject
	allKeys bool
	factor  string
	lasts   string
	id      string // the ID of the adjustment to end
}

// factors and durations are the choices of the form. The first one is the default.
var (
	factors   = []string{"2", "5", "10", "100"}
	durations = []string{"1h", "15m", "8h", "24h", "168h"}
)

func parseChange(q url.Values) (c change, err error) {
	c = change{do: q.Get("do"), allKeys: q.Get("all") == "1", factor: q.Get("factor"), lasts: q.Get("for"), id: q.Get("id")}
	if c.factor == "" {
		c.factor = factors[0]
	}
	if c.lasts == "" {
		c.lasts = durations[0]
	}
	if done[c.do] == "" {
		return c, errors.New("there is no such change; follow a link of the page")
	}
	if c.do == "end" {
		return c, nil
	}
	found := false
	if c.subject, found, err = parseSubject(q); err == nil && (!found || c.subject.Limit == "") {
		err = errors.New("the link has no limit; follow a link of the page")
	}
	return c, err
}

// query returns the query from which parseChange parses c.
func (c *change) query() url.Values {
	q := url.Values{"do": {c.do}}
	if c.do == "end" {
		q.Set("id", c.id)
		return q
	}
	q.Set("domain", c.subject.Domain)
	q.Set("limit", c.subject.Limit)
	if c.allKeys {
		q.Set("all", "1")
	} else {
		addKey(q, c.subject.Key)
	}
	if c.do != "reset" {
		q.Set("factor", c.factor)
		q.Set("for", c.lasts)
	}
	return q
}

// back returns the link to the page that is shown after the change. The caller can append parameters to it.
func (c *change) back() string {
	switch {
	case c.do == "end":
		return "/adjustments?"
	case c.allKeys:
		return limitLink(c.subject.Domain, c.subject.Limit)
	default:
		return c.subject.link()
	}
}

func (c *change) proposal() (p adjust.Proposal, err error) {
	p.Target = adjust.Target{Domain: c.subject.Domain, Limit: c.subject.Limit, AllKeys: c.allKeys}
	if !c.allKeys {
		p.Target.Key = c.subject.Key
	}
	if err := p.For.UnmarshalText([]byte(c.lasts)); err != nil {
		return p, errors.New("the duration must be like 1h or 30m")
	}
	if p.Change.Block = c.do == "block"; !p.Change.Block {
		err = p.Change.Factor.UnmarshalText([]byte(c.factor))
	}
	return p, err
}

type changeBody struct {
	Title, Do, Preview, Problem, Back string
	Hidden                            []hiddenField
	Factors, Durations                []choice
	Author, Reason                    string
}

type hiddenField struct{ Name, Value string }

var changeTitles = map[string]string{
	"reset": "Reset a bucket", "raise": "Raise a limit", "block": "Block", "end": "End an adjustment",
}

func (p *pages) preview(w http.ResponseWriter, r *http.Request, v viewer) {
	c, err := parseChange(r.URL.Query())
	if err != nil {
		p.problem(w, r, v, http.StatusBadRequest, "This cannot be done: "+err.Error()+".", "")
		return
	}
	p.showChange(w, r, v, http.StatusOK, &c, "", "", "")
}

func (p *pages) showChange(w http.ResponseWriter, r *http.Request, v viewer, status int, c *change, problem, author, reason string) {
	if author == "" {
		author = p.access.sessions.author(v.session)
	}
	b := changeBody{Title: changeTitles[c.do], Do: c.do, Problem: problem, Back: strings.TrimSuffix(c.back(), "?"), Author: author, Reason: reason}
	for name, values := range c.query() {
		for _, value := range values {
			b.Hidden = append(b.Hidden, hiddenField{name, value})
		}
	}
	if c.do == "raise" || c.do == "block" {
		b.Durations = choices(durations, c.lasts)
		if c.do == "raise" {
			b.Factors = choices(factors, c.factor)
		}
	}
	words, err := p.previewWords(c, author, reason)
	if b.Preview = words; err != nil && problem == "" {
		b.Problem = "This cannot be done: " + err.Error() + "."
	}
	p.show(w, r, v, status, changePage, frame{Title: b.Title, Body: b})
}

func choices(list []string, chosen string) (all []choice) {
	for _, one := range list {
		all = append(all, choice{Name: one, Chosen: one == chosen})
	}
	return all
}

func (p *pages) previewWords(c *change, author, reason string) (string, error) {
	switch {
	case c.do == "reset":
		return "The bucket of " + keyWords(&c.subject) + " is deleted, with its consumed units, debt and penalty. The next request starts a new bucket.", nil
	case p.Adjust == nil:
		return "", errors.New("adjustments are off")
	case c.do == "end":
		s, err := p.Adjust.Find(c.id)
		if err != nil {
			return "", err
		}
		return "This ends before its time: " + adjusted(&s).Words + ".", nil
	}
	proposal, err := c.proposal()
	if err != nil {
		return "", err
	}
	proposal.Author, proposal.Reason = or(author, "preview"), or(reason, "preview")
	s, err := p.Adjust.Preview(proposal)
	return s.Words, err
}

func or(text, otherwise string) string {
	if strings.TrimSpace(text) == "" {
		return otherwise
	}
	return text
}

func keyWords(s *subject) string {
	if len(s.Key) == 0 {
		return "limit " + descriptors.Printable(s.Limit)
	}
	return "key " + printable(s.Key) + " of limit " + descriptors.Printable(s.Limit)
}

func (p *pages) change(w http.ResponseWriter, r *http.Request, v viewer) {
	c, err := parseChange(r.PostForm)
	if err != nil {
		p.problem(w, r, v, http.StatusBadRequest, "This cannot be done: "+err.Error()+".", "")
		return
	}
	author, reason := r.PostFormValue("author"), r.PostFormValue("reason")
	p.access.sessions.setAuthor(v.session, cut(author, 128))
	if err := p.apply(r, &c, author, reason); err != nil {
		p.showChange(w, r, v, http.StatusConflict, &c, "This was not done: "+err.Error()+".", author, reason)
		return
	}
	http.Redirect(w, r, c.back()+"&done="+c.do, http.StatusSeeOther)
}

func (p *pages) apply(r *http.Request, c *change, author, reason string) error {
	switch {
	case strings.TrimSpace(author) == "" || strings.TrimSpace(reason) == "":
		return errors.New("the name and the reason are missing; they are stored with the change")
	case c.do == "reset":
		return p.reset(r, &c.subject, author, reason)
	case p.Adjust == nil:
		return errors.New("adjustments are off")
	case c.do == "end":
		_, err := p.Adjust.Delete(r.Context(), c.id, author, reason, nil)
		return err
	}
	proposal, err := c.proposal()
	if err != nil {
		return err
	}
	proposal.Author, proposal.Reason = author, reason
	_, _, err = p.Adjust.Set(r.Context(), proposal)
	return err
}

func (p *pages) reset(r *http.Request, s *subject, author, reason string) error {
	c, err := p.call(s, 0)
	if err != nil {
		return err
	}
	if err := p.Limiter.Reset(r.Context(), c); err != nil {
		return err
	}
	p.Log.Info("a bucket was reset", zap.String("domain", descriptors.Printable(s.Domain)), zap.String("limit", descriptors.Printable(s.Limit)),
		zap.String("key", printable(s.Key)), zap.String("author", descriptors.Printable(author)), zap.String("reason", descriptors.Printable(reason)))
	return nil
}
