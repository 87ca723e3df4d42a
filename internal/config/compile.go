package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Compile compiles files in the given order. The Snapshot is nil if a Problem is not a warning. The result depends
// only on the arguments.
func Compile(files []File, o Options) (*limiter.Snapshot, Problems) {
	return parseAll(files, &o).compile(o)
}

// source is a configuration that was parsed and is not yet compiled.
type source struct {
	report
	files []string // the names of the files, in the order in which they were read
	docs  []*document
	hash  string
}

// keptBytes is the size of files of which the parsed form stays in memory until it is compiled. That form takes about
// twenty times the size of its file. So the descriptors of further files are parsed again when they are compiled.
const keptBytes = 2 << 20

func parseAll(files []File, o *Options) *source {
	s := &source{hash: hash(files)}
	nodes, size := newBudget(o), 0
	for _, f := range files {
		s.files = append(s.files, f.Name)
		docs := parse(f, &s.report, nodes)
		if size += len(f.Data); size > keptBytes && len(docs) == 1 {
			docs[0].Descriptors.value = nil
			docs[0].again = func() []*descriptor { return parse(f, &report{}, newBudget(o))[0].Descriptors.value }
		}
		s.docs = append(s.docs, docs...)
	}
	return s
}

// descriptors returns the top-level descriptors of d.
func (d *document) descriptors() []*descriptor {
	if d.again != nil {
		return d.again()
	}
	return d.Descriptors.value
}

func (s *source) compile(o Options) (*limiter.Snapshot, Problems) {
	c := &compiler{o: o, report: s.report, bad: map[string]bool{}, snapshot: &limiter.Snapshot{Domains: map[string]*limiter.Domain{}, KeepBlanks: o.KeepBlanks}}
	c.snapshot.Files = s.files
	c.snapshot.Hash = hash([]File{{Data: fmt.Appendf(nil, "%s %t %t %s %g %t", s.hash, o.ConsumeEach, o.ConsumeTogether, o.OnFailure, o.LocalShare, o.KeepBlanks)}})
	for _, d := range c.domains(s.docs) {
		c.domain(d)
	}
	c.auth(s.docs)
	c.sortProblems(s.files)
	if c.problems.Bad() {
		return nil, c.problems
	}
	return c.snapshot, c.problems
}

// hash does not depend on the names of the files.
func hash(files []File) string {
	h := sha256.New()
	for _, f := range files {
		h.Write(binary.AppendUvarint(nil, uint64(len(f.Data))))
		h.Write(f.Data)
	}
	return hex.EncodeToString(h.Sum(nil))
}

type compiler struct {
	report
	o        Options
	snapshot *limiter.Snapshot
	policies int             // number of policies compiled so far
	full     bool            // Options.MaxLimits is exceeded; further limits are ignored
	bad      map[string]bool // the domains that contain a mistake
	// lastExtras and lastLimit are those of the limit before. Limits in a row mostly share them.
	lastExtras *limiter.Extras
	lastLimit  *algorithms.Limit
}

// draft is a policy that is being compiled.
type draft struct {
	limiter.Policy
	more limiter.Extras
}

func (c *compiler) policy(d *draft) *limiter.Policy {
	p := d.Policy
	p.Owner = p.Prefix // the same prefix means the same buckets
	if p.Shadow && p.Limit.Kind == algorithms.Concurrency {
		p.Limit = inShadow(p.Limit)
		if d.more.Local != nil {
			d.more.Local = inShadow(d.more.Local)
		}
	}
	switch own := d.more.Settle != nil || d.more.Then != nil; {
	case own:
		p.Extras = d.extras()
	case c.lastExtras != nil && reflect.DeepEqual(c.lastExtras, &d.more):
		p.Extras = c.lastExtras
	default:
		c.lastExtras = d.extras()
		p.Extras = c.lastExtras
	}
	if c.lastLimit == nil || *c.lastLimit != *p.Limit {
		c.lastLimit = p.Limit
	}
	p.Limit = c.lastLimit
	return &p
}

// extras returns nil if no field is set, because most limits need none.
func (d *draft) extras() *limiter.Extras {
	if reflect.ValueOf(&d.more).Elem().IsZero() {
		return nil
	}
	more := d.more
	return &more
}

// sortProblems sorts the problems by the order of the files and removes duplicates. A mistake inside a YAML anchor is
// found again at each alias.
func (c *compiler) sortProblems(files []string) {
	order := map[string]int{}
	for i, f := range files {
		order[f] = i
	}
	slices.SortStableFunc(c.problems, func(a, b Problem) int {
		return cmp.Or(order[a.File]-order[b.File], a.Line-b.Line, a.Column-b.Column)
	})
	seen := map[Problem]bool{}
	c.problems = slices.DeleteFunc(c.problems, func(p Problem) bool {
		again := seen[p]
		seen[p] = true
		return again
	})
}

// domain collects the parts of one domain from all documents.
type domain struct {
	*limiter.Domain
	docs       []*document
	share      float64 // the domain's default of local_share; 0 means that there is none
	tag        hashTag
	require    requirements
	headers    headerSets
	limits     map[string]*named
	names      []string // the names of the limits, in the order of the files
	nodes      map[*limiter.Node]place
	uses       []use
	referenced []text // the named limits that descriptors refer to
	// patterns has the places of the steps for which matchesSeveral returns true.
	patterns map[sibling]place
}

func newDomain(name string) *domain {
	return &domain{
		Domain: &limiter.Domain{Name: name, Tree: &limiter.Tree{}, Named: map[string]*limiter.Policy{}},
		limits: map[string]*named{}, nodes: map[*limiter.Node]place{}, patterns: map[sibling]place{},
	}
}

// sibling identifies a step below parent by the result of step.composite.
type sibling struct {
	parent    *limiter.Node
	composite string
}

type named struct {
	at     place
	draft  *draft          // nil if the limit has a mistake, which has been reported
	then   text            // the limit that pays for requests that this limit denies
	policy *limiter.Policy // the result of compiling draft
	used   place           // where the limit is used first
}

// use is a policy with a RateName or with items of the key "replaces". Checks of the whole domain need these policies.
type use struct {
	policy   *limiter.Policy
	replaces []*replacement
}

// domains groups the documents by domain, in the order of first appearance. A document without a domain forms
// a group of its own.
func (c *compiler) domains(docs []*document) (list []*domain) {
	byName := map[string]*domain{}
	for _, doc := range docs {
		name := doc.Domain.value
		if name == "" && (doc.Domain.ok || !doc.Domain.stated() && !doc.incomplete) {
			c.mistake(cmp.Or(doc.Domain.at, doc.at), "config file cannot have empty domain; write \"domain: NAME\"")
		}
		d := byName[name]
		if d == nil || name == "" {
			d = newDomain(name)
			byName[name] = d
			list = append(list, d)
		}
		d.docs = append(d.docs, doc)
	}
	return list
}

// domain compiles d and adds it to the Snapshot.
func (c *compiler) domain(d *domain) {
	before := c.mistakes
	c.settings(d)
	for _, doc := range d.docs {
		for _, l := range doc.Limits.value {
			c.named(d, l)
		}
	}
	c.payers(d)
	for _, doc := range d.docs {
		c.descriptors(d, nil, newPath(), doc.descriptors())
	}
	c.checkPayers(d)
	c.warnRequire(d)
	if headers := d.headers; headers.value.OpenAI && len(d.Policies) > 0 && !c.incomplete &&
		!slices.ContainsFunc(d.Policies, func(p *limiter.Policy) bool { return p.Extra().Unit != limiter.NoUnit }) {
		c.warn(headers.at, "http_headers: openai describes no limit, as no limit of domain %q has a unit_name; add \"unit_name: tokens\" or \"unit_name: requests\" to limits", d.Name)
	}
	c.settleEntries(d)
	c.checkReplaces(d)
	d.assignNames()
	for _, doc := range d.docs { // they take more memory than the compiled limits
		doc.Limits, doc.Descriptors, doc.again = namedLimits{}, descriptorList{}, nil
	}
	c.snapshot.Domains[d.Name] = d.Domain
	c.snapshot.Policies = append(c.snapshot.Policies, d.Policies...)
	c.bad[d.Name] = c.mistakes > before
}

// settings sets the settings of the domain from its documents. Settings that several documents have must be
// equal, and only one document may have max_override or require.
func (c *compiler) settings(d *domain) {
	var each consume
	var answer failure
	var part share
	var tag text
	var most oneLimit
	var body denyBody
	badShare := false
	for _, doc := range d.docs {
		agree(c, d, "consume", &each.given, &doc.Consume.given)
		agree(c, d, "on_backend_failure", &answer.given, &doc.OnFailure.given)
		agree(c, d, "local_share", &part.given, &doc.LocalShare.given)
		agree(c, d, "hash_tag", &tag.given, &doc.HashTag.given)
		agree(c, d, "http_headers", &d.headers.given, &doc.Headers.given)
		agree(c, d, "deny_body", &body.given, &doc.DenyBody.given)
		if doc.LocalShare.stated() && !doc.LocalShare.ok {
			d.share, badShare = 1, true // a valid value, so that this mistake, which is reported, causes no further messages
		}
		switch {
		case !doc.MaxOverride.ok:
		case most.ok:
			c.mistake(doc.MaxOverride.at, "max_override of domain %q is already stated at %s; state it once", d.Name, most.at)
		default:
			most = doc.MaxOverride
		}
		switch {
		case !doc.Require.ok:
		case d.require.ok:
			c.mistake(doc.Require.at, "require of domain %q is already stated at %s; state it once", d.Name, d.require.at)
		default:
			d.require = doc.Require
		}
	}
	d.Require = d.require.compiled()
	d.tag = c.hashTag(tag)
	d.Slot = d.tag.slot(d.Name, nil, true)
	d.Headers = d.headers.pointer()
	d.DenyBody = body.value
	d.Alone = each.or(c.o.ConsumeEach) && !c.o.ConsumeTogether
	d.OnFailure = answer.or(c.o.OnFailure)
	d.share = part.or(cmp.Or(d.share, c.o.LocalShare))
	d.LocalShare = d.share
	switch {
	case !answer.ok || badShare || d.OnFailure != limiter.Local:
	case d.share > 0:
		c.warn(answer.at, "while the backend is unreachable, each sidecar allows %s of each limit, so more than %d sidecars exceed the limit",
			percent(d.share), int(math.Floor(1/d.share)))
	default:
		c.mistake(answer.at, "on_backend_failure local needs a local_share; add \"local_share: 20%%\"")
		d.share = 1 // a valid value, so that this mistake causes no further messages
	}
	if most.ok {
		d.MaxOverride = c.maxOverride(d, most.value, nil)
	}
}

// maxOverride compiles l, the bound of overrides for the descriptor at the end of the path steps. steps is nil if
// the bound applies to the whole domain. The result is nil if l has a mistake.
func (c *compiler) maxOverride(d *domain, l *limit, steps path) *limiter.Policy {
	if l.Unlimited.value {
		c.mistake(l.Unlimited.at, "unlimited has no meaning in max_override; remove max_override, because overrides are unbounded without it")
		return nil
	}
	if l.Settle.stated() {
		c.mistake(l.Settle.at, "settle cannot be combined with max_override; remove settle, because limits that come with requests reserve nothing")
		return nil
	}
	if l.Then.stated() {
		c.mistake(l.Then.at, "then cannot be combined with max_override; remove then, because nothing pays for limits that come with requests")
		return nil
	}
	if l.Algorithm.value == algorithms.Concurrency {
		c.mistake(l.Algorithm.at, "algorithm concurrency cannot be combined with max_override; remove max_override, because limits that come with requests have a rate")
		return nil
	}
	p, ok := c.limit(d, l, "")
	if !ok {
		return nil
	}
	const subject = "#max_override"
	p.Name = steps.name() + subject
	p.StatKey = d.Name + "." + p.Name
	p.Prefix = descriptors.Prefix(d.Name, "path", steps.id()+subject, p.Limit.Kind)
	p.Place = l.at.shown()
	p.Whole = steps == nil
	c.identifyBuckets(d, steps, &p, false)
	d.Bounded = true
	return c.add(d, &p, l.at, l.Replaces.value)
}

// identifyBuckets sets the entries that identify the buckets of p, a limit of the descriptor at the end of the path
// steps. named means that p uses a named limit. A key with a "*" then does not make the whole descriptor identify
// the bucket.
func (c *compiler) identifyBuckets(d *domain, steps path, p *draft, named bool) {
	for i, s := range steps {
		switch {
		case s.hasWildcardKey() && !s.shared && !named:
			p.Whole = true
		case s.identifiesBucket():
			p.Open, p.more.OpenKeys = append(p.Open, i), append(p.more.OpenKeys, s.Key)
		}
	}
	p.more.Slot = d.tag.slot(d.Name, steps, p.Whole)
}

// agree copies part, the value of key in one document of d, to common, the value for the whole domain. If an
// earlier document has set common to another value, agree reports a mistake instead.
func agree[T comparable](c *compiler, d *domain, key string, common, part *given[T]) {
	switch {
	case !part.ok:
	case !common.ok:
		*common = *part
	case common.value != part.value:
		c.mistake(part.at, "%s differs from that of domain %q at %s; state it once", key, d.Name, common.at)
	}
}

func percent(share float64) string { return strconv.FormatFloat(share*100, 'g', 4, 64) + "%" }
