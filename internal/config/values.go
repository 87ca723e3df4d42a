package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // the container image has no time zone files

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/spelling"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
)

// set records the value read from n. ok is false if a mistake was reported instead.
func (g *given[T]) set(p *parser, n *yaml.Node, value T, ok bool) {
	*g = given[T]{value: value, at: p.at(n), ok: ok}
}

// quoted combines the styles of scalars that are always text.
const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle

// scalar returns the text of a scalar as written. Integers and booleans count as text. Floats are rejected, as by
// the reference server. For null, scalar returns "", and for the tag !!binary the decoded bytes.
func (p *parser) scalar(key string, n *yaml.Node) (string, bool) {
	at := p.at(n)
	n = follow(n)
	if n.Kind != yaml.ScalarNode {
		p.mistake(at, "%s must be text, but is %s", key, describe(n))
		return "", false
	}
	switch n.ShortTag() {
	case "!!float":
		p.mistake(at, "error checking config: %s is %s, which is ambiguous as text; quote it: %q", key, describe(n), short(n.Value))
		return "", false
	case "!!binary":
		var s string
		if err := n.Decode(&s); err != nil {
			p.mistake(at, "%s is tagged !!binary, but is not base64", key)
			return "", false
		}
		return s, true
	case "!!null":
		return "", true
	default:
		return n.Value, true
	}
}

func (t *text) read(p *parser, key string, n *yaml.Node) {
	s, ok := p.scalar(key, n)
	t.set(p, n, s, ok)
}

// words are the booleans of YAML 1.1, all of which the reference server accepts.
var words = map[string]bool{
	"true": true, "True": true, "TRUE": true, "false": false, "False": false, "FALSE": false,
	"yes": true, "Yes": true, "YES": true, "no": false, "No": false, "NO": false,
	"on": true, "On": true, "ON": true, "off": false, "Off": false, "OFF": false,
	"y": true, "Y": true, "n": false, "N": false,
}

func (f *boolean) read(p *parser, key string, n *yaml.Node) {
	s := follow(n)
	value, known := words[s.Value]
	ok := known && s.Kind == yaml.ScalarNode && s.Style&quoted == 0 && (s.ShortTag() == "!!bool" || s.ShortTag() == "!!str")
	if !ok {
		p.mistake(p.at(n), "%s must be true or false, but is %s%s", key, describe(n), unquoteAdvice(s, known))
	}
	f.set(p, n, value, ok)
}

func (w *whole) read(p *parser, key string, n *yaml.Node) {
	s := follow(n)
	value, ok := int64(0), false
	if s.Kind == yaml.ScalarNode && s.ShortTag() == "!!int" {
		if value, ok = plainNumber(s.Value); !ok {
			ok = s.Decode(&value) == nil
		}
	}
	switch {
	case ok:
		if decimal, octal := strings.CutPrefix(s.Value, "0"); octal && strings.Trim(decimal, "01234567") == "" && value != 0 {
			p.warn(p.at(n), "%s %s begins with 0, so YAML reads it as the octal number for %d; write %d, or %s", key, s.Value, value, value, strings.TrimLeft(decimal, "0"))
		}
	case isTooLarge(s):
		p.mistake(p.at(n), "%s must be at most %s, but is %s", key, largest(key), short(s.Value))
	default:
		p.mistake(p.at(n), "%s must be a whole number, but is %s%s", key, describe(n), wholeAdvice(key, s))
	}
	w.set(p, n, value, ok)
}

// plainNumber parses a number in the most common notation. Decode knows all notations, but takes ten times as
// long.
func plainNumber(text string) (int64, bool) {
	if text == "" || len(text) > 18 || text[0] == '0' && text != "0" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	value, err := strconv.ParseInt(text, 10, 64)
	return value, err == nil
}

func (s *span) read(p *parser, key string, n *yaml.Node) {
	v := follow(n)
	if v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str" {
		p.mistake(p.at(n), "%s must be a duration such as 500ms, 30s, 5m, 1h, 1d or 1h30m, but is %s%s", key, describe(n), spanAdvice(v))
		s.set(p, n, 0, false)
		return
	}
	value, err := parseSpan(v.Value)
	if err != nil {
		p.mistake(p.at(n), "%s: %v", key, err)
	}
	s.set(p, n, value, err == nil)
}

var calendarUnits = func() map[string]calendar.Unit {
	byName := map[string]calendar.Unit{}
	for _, u := range [...]calendar.Unit{calendar.Day, calendar.Week, calendar.Month, calendar.Year} {
		byName[u.String()] = u
	}
	return byName
}()

func (c *period) read(p *parser, key string, n *yaml.Node) {
	v := follow(n)
	unit, known := calendarUnits[v.Value]
	isWord := v.Value != "" && !strings.ContainsAny(v.Value, "0123456789")
	switch {
	case isWord && known:
		c.set(p, n, cycle{unit: unit}, true)
		return
	case isWord:
		p.mistake(p.at(n), "%s must be a duration such as 30s, 1h or 1d, or, with a time_zone, one of day, week, month, year, but is %s%s",
			key, describe(n), spelling.DidYouMean(v.Value, sortedKeys(calendarUnits)))
		c.set(p, n, cycle{}, false)
		return
	}
	var s span
	s.read(p, key, n)
	c.set(p, n, cycle{span: s.value}, s.ok)
}

func (z *zone) read(p *parser, key string, n *yaml.Node) {
	name, ok := p.scalar(key, n)
	var location *time.Location
	if ok {
		var err error
		// LoadLocation accepts "" and "Local" too. "Local" is the time zone of the machine, which must not
		// influence a limit.
		if location, err = time.LoadLocation(name); err != nil || name == "" || name == "Local" {
			p.mistake(p.at(n), "%s %q is unknown; write a name of the IANA database, such as Europe/Berlin, America/New_York, UTC", key, short(name))
			ok = false
		}
	}
	z.set(p, n, location, ok)
}

func parseSpan(text string) (algorithms.Micros, error) {
	span, err := duration.Parse(text)
	if err != nil {
		return 0, fmt.Errorf("%q %w", short(text), err)
	}
	return span, nil
}

func (m *moment) read(p *parser, key string, n *yaml.Node) {
	v := follow(n)
	var t time.Time
	ok := false
	switch {
	case v.Kind != yaml.ScalarNode:
	case v.ShortTag() == "!!timestamp":
		ok = v.Decode(&t) == nil
	case v.ShortTag() == "!!str":
		var err error
		t, err = time.Parse(time.RFC3339Nano, v.Value)
		ok = err == nil
	}
	switch {
	case !ok:
		p.mistake(p.at(n), "%s must be a time such as 2026-01-01T00:00:00Z, but is %s", key, describe(n))
	case t.Nanosecond()%1000 != 0:
		p.mistake(p.at(n), "%s must not be finer than a microsecond, but is %s", key, v.Value)
		ok = false
	}
	m.set(p, n, algorithms.Micros(t.UnixMicro()), ok)
}

func (s *share) read(p *parser, key string, n *yaml.Node) {
	v := follow(n)
	number, percent := strings.CutSuffix(v.Value, "%")
	value, err := strconv.ParseFloat(number, 64)
	if percent {
		value /= 100
	}
	ok := v.Kind == yaml.ScalarNode && err == nil && (percent || v.Style&quoted == 0) && value > 0 && value <= 1
	if !ok {
		p.mistake(p.at(n), "%s must be a share such as 20%% or 0.2, more than 0 and at most 100%%, but is %s", key, describe(n))
	}
	s.set(p, n, value, ok)
}

func (a *algorithm) read(p *parser, key string, n *yaml.Node) {
	kind, ok := pick(p, key, n, algorithmNames)
	a.set(p, n, kind, ok)
}

func (c *consume) read(p *parser, key string, n *yaml.Node) {
	each, ok := pick(p, key, n, consumeNames)
	c.set(p, n, each, ok)
}

func (f *failure) read(p *parser, key string, n *yaml.Node) {
	answer, ok := pick(p, key, n, limiter.OnFailures)
	f.set(p, n, answer, ok)
}

func (b *denyBody) read(p *parser, key string, n *yaml.Node) {
	format, ok := pick(p, key, n, bodyNames)
	b.set(p, n, format, ok)
}

func (u *unitName) read(p *parser, key string, n *yaml.Node) {
	unit, ok := pick(p, key, n, unitNames)
	u.set(p, n, unit, ok)
}

func (h *headerSets) read(p *parser, key string, n *yaml.Node) {
	before := p.mistakes
	items := []*yaml.Node{n}
	if v := follow(n); v.Kind == yaml.SequenceNode {
		items = v.Content
	}
	var words []string
	for _, item := range items {
		var t text
		if t.read(p, key, item); t.ok {
			words = append(words, t.value)
		}
	}
	if p.mistakes > before {
		h.set(p, n, limiter.HeaderSets{}, false)
		return
	}
	sets, err := limiter.ParseHeaderSets(words)
	if err != nil {
		p.mistake(p.at(n), "%s: %v", key, err)
	}
	h.set(p, n, sets, err == nil)
}

var algorithmNames = func() map[string]algorithms.Kind {
	byName := map[string]algorithms.Kind{}
	for _, k := range algorithms.Kinds() {
		if k != algorithms.Guaranteed { // a token_bucket with another key
			byName[k.String()] = k
		}
	}
	return byName
}()

var (
	bodyNames = map[string]limiter.Body{
		"openai": limiter.OpenAIBody, "anthropic": limiter.AnthropicBody, "problem+json": limiter.ProblemBody, "text": limiter.TextBody,
	}
	unitNames = map[string]limiter.Unit{"requests": limiter.Requests, "tokens": limiter.Tokens}
)

func pick[T any](p *parser, key string, n *yaml.Node, words map[string]T) (value T, ok bool) {
	v := follow(n)
	if v.Kind == yaml.ScalarNode && v.ShortTag() != "!!null" {
		if value, ok = words[v.Value]; ok {
			return value, true
		}
	}
	known := sortedKeys(words)
	p.mistake(p.at(n), "%s must be one of %s, but is %s%s", key, strings.Join(known, ", "), describe(n), wordAdvice(v.Value, known))
	return value, false
}

// An empty list is a mistake, because a missing limit must not go unnoticed.
func (l *names) read(p *parser, key string, n *yaml.Node) {
	v, before := follow(n), p.mistakes
	items := []*yaml.Node{n}
	switch v.Kind { // any other kind is one item, valid or not
	case yaml.SequenceNode:
		items = v.Content
	case yaml.MappingNode:
		p.mistake(p.at(n), "%s must be the name of a limit or a list of names, but is a mapping; write the numbers inside rate_limit", key)
		return
	}
	var list []text
	for _, item := range items {
		var t text
		t.read(p, key, item)
		switch {
		case !t.ok:
		case t.value == "":
			p.mistake(p.at(item), "%s is empty; write the name of a limit, or remove %q", key, key)
		case slices.ContainsFunc(list, func(have text) bool { return have.value == t.value }):
			p.mistake(p.at(item), "%s contains %q twice, which would charge it twice; remove one", key, t.value)
		default:
			list = append(list, t)
		}
	}
	if len(items) == 0 {
		p.mistake(p.at(n), "%s is an empty list; write the names of limits, or remove %q", key, key)
	}
	l.set(p, n, list, p.mistakes == before)
}

func (l *limitList) read(p *parser, key string, n *yaml.Node) {
	var list []*limit
	v := follow(n)
	if v.Kind == yaml.SequenceNode {
		p.each(key, n, func(item *yaml.Node) { list = append(list, p.limit(item, key)) })
	} else {
		list = append(list, p.limit(n, key))
	}
	if v.Kind == yaml.SequenceNode && len(v.Content) == 0 {
		p.mistake(p.at(n), "%s is an empty list; write a limit, or remove %q", key, key)
	}
	l.set(p, n, list, true)
}

func (o *oneLimit) read(p *parser, key string, n *yaml.Node) {
	o.set(p, n, p.limit(n, key), true)
}

func (p *parser) limit(n *yaml.Node, subject string) *limit {
	l, before := &limit{at: p.at(n)}, p.mistakes
	l.incomplete = !p.object(n, subject, l)
	l.broken = p.mistakes > before
	return l
}

func (l *namedLimits) read(p *parser, key string, n *yaml.Node) {
	var list []namedLimit
	for _, e := range p.entries(n, key, false) {
		named := namedLimit{e.key.Value, p.limit(e.value, fmt.Sprintf("limit %q", e.key.Value))}
		named.limit.at = p.at(e.key)
		list = append(list, named)
	}
	l.set(p, n, list, true)
}

func (m *minimum) read(p *parser, key string, n *yaml.Node) {
	g, before := &guaranteed{}, p.mistakes
	p.object(n, key, g)
	if p.mistakes == before && (!g.Rate.ok || !g.Period.ok) {
		p.mistake(p.at(n), "%s needs rate and period: {rate: 10, period: 1s}", key)
	}
	m.set(p, n, g, p.mistakes == before)
}

func (l *leaseTerms) read(p *parser, key string, n *yaml.Node) {
	terms, before := &lease{}, p.mistakes
	p.object(n, key, terms)
	if p.mistakes == before && (!terms.Max.ok || !terms.For.ok) {
		p.mistake(p.at(n), "%s needs max and for: {max: 5%%, for: 250ms}", key)
	}
	l.set(p, n, terms, p.mistakes == before)
}

func (b *blocking) read(p *parser, key string, n *yaml.Node) {
	terms, before := &penalty{}, p.mistakes
	p.object(n, key, terms)
	if p.mistakes == before && (!terms.After.ok || !terms.For.ok || !terms.Max.ok) {
		p.mistake(p.at(n), "%s needs after, for and max: {after: 5, for: 1m, max: 1h}", key)
	}
	b.set(p, n, terms, p.mistakes == before)
}

func (d *descriptorList) read(p *parser, key string, n *yaml.Node) {
	var list []*descriptor
	p.each(key, n, func(item *yaml.Node) {
		one := &descriptor{at: p.at(item)}
		one.incomplete = !p.object(item, "a descriptor", one)
		list = append(list, one)
	})
	d.set(p, n, list, true)
}

func (r *replacements) read(p *parser, key string, n *yaml.Node) {
	var list []*replacement
	p.each(key, n, func(item *yaml.Node) {
		one := &replacement{at: p.at(item)}
		one.incomplete = !p.object(item, "an item of "+key, one)
		list = append(list, one)
	})
	r.set(p, n, list, true)
}

func (m *metadata) read(p *parser, key string, n *yaml.Node) {
	before := p.mistakes
	value, isMap := p.tree(n).(map[string]any)
	if !isMap && p.mistakes == before {
		p.mistake(p.at(n), "%s must be a mapping, but is %s", key, describe(n))
	}
	m.set(p, n, value, p.mistakes == before)
}

// tree converts metadata to the values of a protobuf Struct: all numbers become float64, all keys become
// text.
func (p *parser) tree(n *yaml.Node) any {
	n = follow(n)
	if n.Kind == yaml.MappingNode {
		return p.treeMap(n)
	}
	if n.Kind == yaml.SequenceNode {
		if !p.enter(n) {
			return nil
		}
		defer p.leave()
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			list[i] = p.tree(item)
		}
		return list
	}
	if is, known := words[n.Value]; known && n.Style&quoted == 0 {
		return is
	}
	switch n.ShortTag() {
	case "!!null":
		return nil
	case "!!int", "!!float":
		var number float64
		if err := n.Decode(&number); err != nil || math.IsNaN(number) || math.IsInf(number, 0) {
			p.mistake(p.at(n), "error parsing metadata: %s cannot be sent; quote it", describe(n))
		}
		return number
	default:
		return n.Value
	}
}

func (p *parser) treeMap(n *yaml.Node) map[string]any {
	m := map[string]any{}
	for _, e := range p.entries(n, "metadata", true) {
		m[e.key.Value] = p.tree(e.value)
	}
	return m
}
