package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type change struct {
	do      string // reset, raise, block, end or undo
	subject subject
	// match is allKeys, or the key of an entry, whose value is then the only value of subject.Key, or "" for one key.
	match        string
	factor, rate string // one of them, for raise
	lasts        string
	id           string // the ID of the adjustment to end, or whose change is undone
	version      string // that of the change to undo
}

// allKeys is the match of all keys of a limit. No entry has this key.
const allKeys = "*"

const defaultFactor, defaultLasts = "2", "1h"

// changeLink returns the link to the form of a change. match is that of change.
func changeLink(do string, s *subject, match string) string {
	c := change{do: do, subject: *s, match: match}
	return "/change?" + c.query().Encode()
}

func parseChange(q url.Values) (c change, err error) {
	c = change{do: q.Get("do"), match: q.Get("match"), factor: q.Get("factor"), rate: q.Get("rate"), lasts: or(q.Get("for"), defaultLasts), id: q.Get("id"), version: q.Get("version")}
	if c.factor == "" && c.rate == "" {
		c.factor = defaultFactor
	}
	if changeTitles[c.do] == "" {
		return c, errors.New("there is no such change; follow a link of the page")
	}
	if c.do == "end" || c.do == "undo" { // the adjustment has the target
		c.match = ""
		return c, nil
	}
	found := false
	if c.subject, found, err = parseSubject(q); err == nil && (!found || c.subject.Limit == "" || c.match != "" && c.match != allKeys && len(c.subject.Key) != 1) {
		err = errors.New("the link has no limit, or no value; follow a link of the page")
	}
	return c, err
}

// query returns the query from which parseChange parses c.
func (c *change) query() url.Values {
	q := url.Values{"do": {c.do}}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	set("version", c.version)
	if set("id", c.id); c.do == "end" || c.do == "undo" {
		return q
	}
	q.Set("domain", c.subject.Domain)
	q.Set("limit", c.subject.Limit)
	addKey(q, c.subject.Key)
	set("match", c.match)
	set("factor", c.factor)
	set("rate", c.rate)
	set("for", c.lasts)
	return q
}

// back returns the link to the page that is shown after the change. The caller can append parameters to it.
func (c *change) back() string {
	switch {
	case c.do == "end", c.do == "undo":
		return "/adjustments?"
	case c.match != "":
		return limitLink(c.subject.Domain, c.subject.Limit)
	default:
		return c.subject.link()
	}
}

// proposal returns the adjustment that c describes. A number is the capacity of a concurrency limit, and the rate of others.
func (c *change) proposal(s *limiter.Snapshot) (p adjust.Proposal, err error) {
	p.Target = adjust.Target{Domain: c.subject.Domain, Limit: c.subject.Limit, AllKeys: c.match == allKeys}
	switch c.match {
	case allKeys:
	case "":
		p.Target.Key = c.subject.Key
	default:
		p.Target.Entry, p.Target.Value = c.match, c.subject.Key[0]
	}
	if err := p.For.UnmarshalText([]byte(c.lasts)); err != nil {
		return p, errors.New("the duration must be like 1h or 30m")
	}
	switch {
	case c.do == "block":
		p.Change.Block = true
	case c.factor != "" && c.rate != "":
		return p, errors.New("give a factor or a number, not both")
	case c.rate != "":
		n, err := strconv.ParseInt(c.rate, 10, 64)
		if err != nil {
			return p, errors.New("the number must be a whole number")
		}
		if p.Change.Rate = &n; isConcurrency(s, &p.Target) {
			p.Change.Capacity, p.Change.Rate = &n, nil
		}
	default:
		err = p.Change.Factor.UnmarshalText([]byte(c.factor))
	}
	return p, err
}

func isConcurrency(s *limiter.Snapshot, t *adjust.Target) bool {
	return s != nil && slices.ContainsFunc(s.Find(t.Domain, t.Limit), func(use *limiter.Policy) bool { return use.Limit.Kind == algorithms.Concurrency })
}

type changeBody struct {
	Title, Do, Preview, Problem, Back string
	// Target are the hidden fields that say what is changed, and Hidden those that also say how.
	Target, Hidden      []hiddenField
	Numbers, Timed      bool
	Factor, Rate, Lasts string
	Author, Reason      string
}

type hiddenField struct{ Name, Value string }

var changeTitles = map[string]string{
	"reset": "Reset a bucket", "raise": "Change a limit for some time", "block": "Block", "end": "End an adjustment", "undo": "Undo a change",
}

func (p *pages) preview(w http.ResponseWriter, r *http.Request, v viewer) {
	c, err := parseChange(r.URL.Query())
	if err != nil {
		p.problem(w, r, v, http.StatusBadRequest, "This cannot be done: "+err.Error()+".", "")
		return
	}
	p.showChange(w, r, v, &c, entered{})
}

// entered is what a person has entered in a form, and the reason why that was not done.
type entered struct{ problem, author, reason string }

// defaultAuthor is the name of a person who has not given one.
const defaultAuthor = "operator"

func (p *pages) showChange(w http.ResponseWriter, r *http.Request, v viewer, c *change, e entered) {
	b := changeBody{
		Title: changeTitles[c.do], Do: c.do, Problem: e.problem, Back: strings.TrimSuffix(c.back(), "?"),
		Numbers: c.do == "raise", Timed: c.do == "raise" || c.do == "block", Factor: c.factor, Rate: c.rate, Lasts: c.lasts,
		Author: or(e.author, or(p.access.sessions.author(v.session), defaultAuthor)), Reason: or(e.reason, p.defaultReason(c)),
	}
	for name, values := range c.query() {
		for _, value := range values {
			field := hiddenField{name, value}
			b.Hidden = append(b.Hidden, field)
			if name != "factor" && name != "rate" && name != "for" {
				b.Target = append(b.Target, field)
			}
		}
	}
	words, err := p.previewWords(c, b.Author, b.Reason)
	if b.Preview = words; err != nil && b.Problem == "" {
		b.Problem = "This cannot be done: " + err.Error() + "."
	}
	status := http.StatusOK
	if e.problem != "" {
		status = http.StatusConflict
	}
	p.show(w, r, v, status, changePage, frame{Title: b.Title, Body: b})
}

// defaultReason describes the denials that a block answers, so that at night two clicks are enough.
func (p *pages) defaultReason(c *change) string {
	if c.do != "block" || c.match == allKeys {
		return ""
	}
	top := p.Denied(maxCounted)
	for i := range top.Parts {
		part := &top.Parts[i]
		if c.match == "" || part.Domain != c.subject.Domain || part.Limit != c.subject.Limit || part.Entry != c.match || part.Value != c.subject.Key[0] {
			continue
		}
		return fmt.Sprintf("flood: %s of %s since %s", plural(part.Times, "denial"), plural(part.Keys, "key"), clock(top.Since))
	}
	for i := range top.Keys {
		if d := &top.Keys[i]; d.Domain == c.subject.Domain && d.Limit == c.subject.Limit && c.match == "" && slices.Equal(d.Key, c.subject.Key) {
			return fmt.Sprintf("flood: %s since %s", plural(d.Times, "denial"), clock(top.Since))
		}
	}
	return ""
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
		return "This ends before its time: " + adjusted(s).Words + ".", nil
	}
	proposal, err := c.proposal(p.Current())
	if err != nil {
		return "", err
	}
	proposal.Author, proposal.Reason = or(author, "preview"), or(reason, "preview")
	s, err := p.Adjust.Preview(proposal)
	if err != nil {
		return "", err
	}
	return s.Words, nil
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
	shown, err := p.apply(r, &c, author, reason)
	switch {
	case err != nil && c.do == "undo":
		p.problem(w, r, v, http.StatusConflict, "This was not undone: "+err.Error()+".", "/adjustments")
		return
	case err != nil:
		p.showChange(w, r, v, &c, entered{"This was not done: " + err.Error() + ".", author, reason})
		return
	}
	http.Redirect(w, r, c.back()+"&"+shown.Encode(), http.StatusSeeOther)
}

// apply makes a change. It returns the parameters of the page that confirms the change: its words, and what the button
// that undoes it needs.
func (p *pages) apply(r *http.Request, c *change, author, reason string) (shown url.Values, err error) {
	shown = url.Values{"done": {c.do}}
	switch {
	case strings.TrimSpace(author) == "" || strings.TrimSpace(reason) == "":
		return nil, errors.New("the name and the reason are missing; they are stored with the change")
	case c.do == "reset":
		return shown, p.reset(r, &c.subject, author, reason)
	case p.Adjust == nil:
		return nil, errors.New("adjustments are off")
	case c.do == "end":
		_, err := p.Adjust.Delete(r.Context(), c.id, author, reason, nil)
		return shown, err
	case c.do == "undo":
		done, err := p.undo(r, c, author, reason)
		return url.Values{"done": {done}}, err
	}
	proposal, err := c.proposal(p.Current())
	if err != nil {
		return nil, err
	}
	proposal.Author, proposal.Reason = author, reason
	made, version, err := p.Adjust.Set(r.Context(), proposal)
	if err != nil {
		return nil, err
	}
	shown.Set("id", made.ID)
	shown.Set("version", strconv.FormatUint(version, 10))
	return shown, nil
}

// undo ends an adjustment, or puts the one that it has replaced in force again; done is "end" or "back". It does nothing
// if another operator has changed the adjustment since.
func (p *pages) undo(r *http.Request, c *change, author, reason string) (done string, err error) {
	all := p.Adjust.Audit(adjust.MaxChanges)
	i := slices.IndexFunc(all, func(e *adjust.Entry) bool { return e.Target == c.id })
	if i < 0 || strconv.FormatUint(all[i].Version, 10) != c.version {
		return "", adjust.ErrConflict
	}
	newest := &all[0].Version
	if before := all[i].Before; before != nil {
		if until := time.UnixMicro(int64(before.Expires)); until.After(p.Now()) {
			_, _, err = p.Adjust.Set(r.Context(), adjust.Proposal{
				Target: before.Target, Change: before.Change, Until: until, Author: author, Reason: reason, Expect: newest,
			})
			return "back", err
		}
	}
	_, err = p.Adjust.Delete(r.Context(), c.id, author, reason, newest)
	return "end", err
}

func (p *pages) reset(r *http.Request, s *subject, author, reason string) error {
	if err := p.Limiter.Reset(r.Context(), s.call(0)); err != nil {
		return err
	}
	p.Log.Info("a bucket was reset", zap.String("domain", descriptors.Printable(s.Domain)), zap.String("limit", descriptors.Printable(s.Limit)),
		zap.String("key", printable(s.Key)), zap.String("author", descriptors.Printable(author)), zap.String("reason", descriptors.Printable(reason)))
	return nil
}
