package admin

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const (
	// maxValues and maxValueBytes bound the key or the descriptor in a link.
	maxValues, maxValueBytes = 64, 16 << 10
	// lookupTime bounds how long one page waits for the store.
	lookupTime = 2 * time.Second
)

// subject is what a key page describes: a key of one limit, or a descriptor with all limits that it matches.
type subject struct {
	Domain, Limit string
	Key           []string
	Entries       []descriptors.Entry
}

// parseSubject reads the subject from q. found is false if q contains none.
func parseSubject(q url.Values) (s subject, found bool, err error) {
	s.Domain, s.Limit = q.Get("domain"), q.Get("limit")
	if text := q.Get("descriptor"); text != "" {
		if s.Entries, err = descriptors.Parse(text); err == nil {
			err = s.checkSize()
		}
		return s, true, err
	}
	coded := q["entry64"]
	if len(coded) == 0 {
		coded = q["value64"]
	}
	values := make([]string, len(coded))
	for i, text := range coded {
		value, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			return s, true, errors.New("a value of the link is not base64url; follow a link of the page")
		}
		values[i] = string(value)
	}
	switch pairs := q["entry64"]; {
	case len(pairs) > 0 && len(pairs)%2 == 0:
		for i := 0; i < len(values); i += 2 {
			s.Entries = append(s.Entries, descriptors.Entry{Key: values[i], Value: values[i+1]})
		}
	case len(pairs) > 0:
		return s, true, errors.New("the link has an entry without a value; follow a link of the page")
	case s.Limit != "":
		if s.Key = values; len(coded) == 0 {
			s.Key = q["value"]
		}
		if lines := q.Get("values"); lines != "" {
			s.Key = strings.Split(strings.ReplaceAll(lines, "\r\n", "\n"), "\n")
		}
	default:
		return s, false, nil
	}
	return s, true, s.checkSize()
}

func (s *subject) checkSize() error {
	size := len(strings.Join(s.Key, ""))
	for _, e := range s.Entries {
		size += len(e.Key) + len(e.Value)
	}
	if len(s.Key)+len(s.Entries) > maxValues || size > maxValueBytes {
		return errors.New("the key is too long for this page")
	}
	return nil
}

func (s *subject) String() string {
	if s.Entries != nil {
		return descriptors.Format(s.Entries)
	}
	return printable(s.Key)
}

// link returns the link to the page of s. For a descriptor, it repeats the parameter entry64 for each key and each
// value, in base64url.
func (s *subject) link() string {
	q := url.Values{"domain": {s.Domain}}
	if s.Entries == nil {
		q.Set("limit", s.Limit)
		addKey(q, s.Key)
	}
	for _, e := range s.Entries {
		q.Add("entry64", base64.RawURLEncoding.EncodeToString([]byte(e.Key)))
		q.Add("entry64", base64.RawURLEncoding.EncodeToString([]byte(e.Value)))
	}
	return "/key?" + q.Encode()
}

func keyLink(domain, limit string, key []string) string {
	return (&subject{Domain: domain, Limit: limit, Key: key}).link()
}

// subjectOf returns the descriptor of d, or its key if it came without a descriptor.
func subjectOf(d *topkeys.Item) *subject { return &subject{d.Domain, d.Limit, d.Key, d.Entries} }

type keyBody struct {
	Subject, Domain string
	// Denied reports whether a request of cost 1 would be denied now. Answer is a sentence with the reason.
	Denied bool
	Answer string
	Limits []keyLimit
	// Problem is the reason why there is no answer, or "".
	Problem string
	// Adjustable means that adjustments are enabled.
	Adjustable bool
}

type keyLimit struct {
	Domain, Limit, Link, Key, Words, Mode string
	// State describes how the limit would answer the next request, and why. Left describes what the bucket contains.
	State  string
	Denied bool
	Left   string
	// Since states the number of the key's denials and when they began. It is "" if the key is not among the
	// most denied keys.
	Since  string
	Recent []recentRow
	// Pays is the name of the limit for which this limit pays (then), or "".
	Pays string
	// Reserves describes what a request reserves. It is "" for a limit without settle.
	Reserves string
	// Adjusted is the adjustment in force for the key, or nil.
	Adjusted *adjustedRow
	// Reset, Raise and Block are links to forms. They are "" if the limit is unlimited, and Block if the key is blocked.
	Reset, Raise, Block string
}

type recentRow struct {
	At, What, Cost, Left string
	Denied               bool
}

// done maps the values of the parameter "done" to the texts that confirm the client's last action.
var done = map[string]string{
	"reset": "The bucket was reset. It is like a new bucket.",
	"raise": "The limit was changed.",
	"block": "Blocked.",
	"end":   "The adjustment was ended.",
	"back":  "The adjustment before it is in force again.",
	"again": "The earlier configuration is in use, until the next load.",
}

func (p *pages) key(w http.ResponseWriter, r *http.Request, v viewer) {
	q := r.URL.Query()
	s, found, err := parseSubject(q)
	if err != nil {
		p.problem(w, r, v, http.StatusBadRequest, "The key cannot be read: "+err.Error()+".", "")
		return
	}
	if !found {
		p.search(w, r, v, cut(q.Get("q"), maxQueryBytes))
		return
	}
	b := keyBody{Subject: s.String(), Domain: descriptors.Printable(s.Domain), Adjustable: p.Adjust != nil}
	ctx, cancel := context.WithTimeout(r.Context(), lookupTime)
	defer cancel()
	if call, err := p.inspect(ctx, &s, 1); err != nil {
		b.Problem = err.Error()
	} else {
		p.explain(ctx, &b, &s, call)
	}
	p.show(w, r, v, http.StatusOK, keyPage, frame{Title: "Why is this denied?", Section: "/key", Live: true, Body: b})
}

// inspect returns the current answer to a request with subject s and this cost. It consumes nothing.
func (p *pages) inspect(ctx context.Context, s *subject, cost int64) (*limiter.Call, error) {
	c := s.call(cost)
	if err := p.Limiter.Check(ctx, c); err != nil {
		return nil, err
	}
	return c, nil
}

// call returns a dry run of a request with subject s and this cost.
func (s *subject) call(cost int64) *limiter.Call {
	return limiter.Inspection(s.Domain, s.Limit, s.Key, s.Entries, cost)
}

type events struct {
	denied, used []topkeys.Item
	now          time.Time
}

// explain completes b from c, which is a dry run of cost 1.
func (p *pages) explain(ctx context.Context, b *keyBody, s *subject, c *limiter.Call) {
	p.addLimits(ctx, b, s, c, events{p.Denied(maxCounted).Keys, p.Used(maxCounted).Keys, p.Now()}, "")
	switch {
	case len(b.Limits) == 0:
		b.Answer = "This matches no limit: every request is allowed."
	case c.Denied:
		b.Denied = true
		b.Answer = "Denied now: " + deniedBy(b.Limits) + "."
	default:
		b.Answer = "Allowed now: the next request is not denied."
	}
}

// addLimits adds to b the limits of c, a dry run of cost 1 for s. Each is followed by the limit that pays when it denies a
// request, if there is one. pays is the limit for which those of c pay, or "".
func (p *pages) addLimits(ctx context.Context, b *keyBody, s *subject, c *limiter.Call, known events, pays string) {
	peek, _ := p.inspect(ctx, s, 0) // a dry run of cost 0 shows the remaining units, which may differ for a cost of 1
	for i := range c.Results {
		result := &c.Results[i]
		if result.Policy == nil {
			continue
		}
		state, payer := result, ""
		if peek != nil && i < len(peek.Results) && peek.Results[i].Decision.Err == nil {
			state = &peek.Results[i]
		}
		if result.For != nil && state.Policy == result.For { // state is about the limit itself; result is about the limit that pays
			payer, result = descriptors.Printable(result.Policy.Name), state
		}
		l := p.keyLimit(c, result, state, known.now)
		if l.Pays = pays; payer != "" {
			l.State = "does not allow it, and limit " + payer + " pays"
		}
		if result.Key != nil {
			p.addRecorded(&l, c, result, known)
		}
		b.Limits = append(b.Limits, l)
		then := result.Policy.Extra().Then
		if then == nil || result.For != nil {
			continue
		}
		of := subject{Domain: then.Domain, Limit: then.Name, Key: c.AppendValues(nil, result)}
		if one, err := p.inspect(ctx, &of, 1); err == nil {
			p.addLimits(ctx, b, &of, one, known, descriptors.Printable(result.Policy.Name))
		}
	}
}

func deniedBy(limits []keyLimit) string {
	var names []string
	for _, l := range limits {
		if l.Denied {
			names = append(names, "limit "+l.Limit+" "+l.State)
		}
	}
	if names == nil {
		return "the limits of the request deny together"
	}
	return strings.Join(names, "; ")
}

// keyLimit describes one limit for a key: its decision, from result, and the content of its bucket, from state. result
// is the answer to a cost of 1, and state the answer to a cost of 0, with two exceptions. If another limit pays in place
// of this one, result and state are both the answer to a cost of 0. If there is no answer to a cost of 0, both are the
// answer to a cost of 1.
func (p *pages) keyLimit(c *limiter.Call, result, state *limiter.Result, now time.Time) keyLimit {
	limit := result.Policy
	key := c.AppendValues(nil, result)
	l := keyLimit{
		Domain: descriptors.Printable(limit.Domain), Limit: descriptors.Printable(limit.Name), Link: limitLink(limit.Domain, limit.Name),
		Key: printable(key), Words: limit.Words(), Mode: modes(limit), Denied: c.Denies(result),
	}
	if result.Key == nil {
		l.State = "is unlimited"
		return l
	}
	l.State, l.Left = stateWords(result, c.WouldDeny, now), remainingWords(state)
	l.Adjusted, l.Reserves = p.adjustedBy(limit), p.reserves(limit)
	of := subject{Domain: limit.Domain, Limit: limit.Name, Key: key}
	l.Reset, l.Raise = changeLink("reset", &of, ""), changeLink("raise", &of, "")
	if limit.Adjusted == nil || !limit.Adjusted.Block {
		l.Block = changeLink("block", &of, "")
	}
	return l
}

// stateWords describes how the limit of result answers the next request. shadow means that the global shadow mode allows a
// request that limits would deny.
func stateWords(result *limiter.Result, shadow bool, now time.Time) string {
	d, limit := &result.Decision, result.Policy
	until := func() string {
		wait := time.Duration(d.RetryAfter) * time.Microsecond
		return "until " + at(now.Add(wait)) + " (" + span(wait) + ")"
	}
	denies := "denies"
	if shadow || result.Outcome == limiter.Shadowed {
		denies = "is in shadow mode and would deny"
	}
	switch blocked := limit.Adjusted != nil && limit.Adjusted.Block; {
	case d.Err != nil && errors.Is(d.Err, backend.ErrFull):
		return "has no room for another bucket in memory: on_backend_failure answers " + limit.OnFailure.String()
	case d.Err != nil:
		return "could not be decided by the store (" + descriptors.Printable(d.Err.Error()) + "): on_backend_failure answers " + limit.OnFailure.String()
	case limit.Adjusted != nil && limit.Adjusted.Unlimited:
		return "never denies this key, because of an adjustment"
	case d.Allowed:
		return "allows"
	case blocked:
		return denies + " " + until() + ", because an operator blocks the key"
	case d.Blocked > 0:
		return denies + " " + until() + ", because a penalty blocks the key"
	case d.Never:
		return denies + " for good: it can never hold so much"
	case limit.Limit.Kind == algorithms.Concurrency:
		return denies + " until requests in flight end"
	default:
		return denies + " " + until() + ", because it is used up"
	}
}

func remainingWords(r *limiter.Result) string {
	d := &r.Decision
	if d.Err != nil {
		return ""
	}
	if l := r.Policy.Limit; l.Kind == algorithms.Concurrency {
		return fmt.Sprintf("%s of %s in flight", count(l.Capacity-d.Value), count(l.Capacity))
	}
	text := fmt.Sprintf("%s of %s left", count(d.Remaining), count(r.Policy.Limit.Capacity))
	if unit := max(1, r.Policy.Limit.Unit()); d.Value < 0 {
		text += fmt.Sprintf(", in debt by %s", count((-d.Value+unit-1)/unit))
	}
	if d.ResetAfter > 0 && d.Remaining < r.Policy.Limit.Capacity {
		text += ", full again in " + span(time.Duration(d.ResetAfter)*time.Microsecond)
	}
	return text
}

const maxRecentRows = 12

func (p *pages) addRecorded(l *keyLimit, c *limiter.Call, result *limiter.Result, known events) {
	key := c.AppendValues(nil, result)
	find := func(items []topkeys.Item) *topkeys.Item {
		for i := range items {
			if one := &items[i]; !one.Cut && one.Domain == result.Policy.Domain && one.Limit == result.Policy.Name && slices.Equal(one.Key, key) {
				return one
			}
		}
		return &topkeys.Item{}
	}
	denied := find(known.denied)
	if denied.Times > 0 {
		l.Since = fmt.Sprintf("Denied %s since %s, last %s.", deniedTimes(denied), at(denied.First), ago(denied.Last, known.now))
	}
	list := slices.Concat(denied.Recent, find(known.used).Recent)
	slices.SortStableFunc(list, func(a, b topkeys.Event) int { return b.At.Compare(a.At) })
	for _, e := range list[:min(len(list), maxRecentRows)] {
		l.Recent = append(l.Recent, recent(e))
	}
}

// deniedTimes returns how often d was denied.
func deniedTimes(d *topkeys.Item) string {
	if !d.Exact {
		return "at least " + plural(d.Times, "time")
	}
	return plural(d.Times, "time")
}

var outcomes = map[limiter.Outcome]string{
	limiter.Allowed: "allowed", limiter.Denied: "denied", limiter.Shadowed: "allowed by shadow mode",
	limiter.FailedAllowed: "allowed: the store could not decide", limiter.FailedDenied: "denied: the store could not decide",
}

func recent(e topkeys.Event) recentRow {
	row := recentRow{At: e.At.UTC().Format("15:04:05.000"), What: outcomes[e.Outcome], Cost: fmt.Sprint(e.Cost), Denied: e.Outcome.Denies()}
	if row.Left = fmt.Sprintf("%d left", max(0, e.Remaining)); e.Outcome == limiter.Denied && e.RetryAfter > 0 {
		row.Left = "retry after " + span(time.Duration(e.RetryAfter)*time.Microsecond)
	}
	return row
}

type adjustedRow struct {
	Words, Ignored, Author, Reason, Left, Expires, End string
	Link                                               string // the page of the key, or of the limit if several keys are adjusted
}

func (p *pages) adjustedBy(limit *limiter.Policy) *adjustedRow {
	if limit.Adjusted == nil || p.Adjust == nil {
		return nil
	}
	s, err := p.Adjust.Find(limit.Adjusted.ID)
	if err != nil { // the adjustment has expired in the meantime
		return nil
	}
	row := adjusted(s)
	return &row
}

func adjusted(s *adjust.Adjustment) adjustedRow {
	row := adjustedRow{
		Words: s.Words, Ignored: s.Ignored, Author: s.Author, Reason: s.Reason, Left: span(s.Left),
		Expires: at(time.UnixMicro(int64(s.Expires))), End: "/change?" + url.Values{"do": {"end"}, "id": {s.ID}}.Encode(),
	}
	if row.Words == "" {
		row.Words = s.Target.String()
	}
	if row.Link = limitLink(s.Target.Domain, s.Target.Limit); !s.Target.AllKeys && s.Target.Entry == "" {
		row.Link = keyLink(s.Target.Domain, s.Target.Limit, s.Target.Key)
	}
	return row
}
