package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
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
	files []File // in the order in which they were read
	docs  []*document
	hash  string
	// lost are files and folders that could not be read completely, so that the domains in the missing part
	// are unknown. The item "" means that any file may be affected.
	lost []string
	// cached means that a Loader keeps the parsed files, so that it can reuse compiled domains.
	cached bool
}

func parseAll(files []File, o *Options) *source {
	s := &source{files: files, hash: hash(files)}
	nodes := newBudget(o)
	for _, f := range files {
		before := s.incomplete
		s.incomplete = false
		docs := parse(f, &s.report, nodes)
		if s.incomplete || len(docs) == 0 || nodes.usedUp() {
			s.lost = append(s.lost, f.Name)
		}
		s.incomplete = s.incomplete || before
		s.docs = append(s.docs, docs...)
	}
	return s
}

func (s *source) compile(o Options) (*limiter.Snapshot, Problems) {
	c := newCompiler(o, s)
	return c.compile(s.docs, s.files)
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
	shared   *shared
	policies int      // number of policies compiled so far
	loader   *Loader  // the Loader if the source is cached, or else nil
	built    []*built // the compiled domains of snapshot
	stale    []*built // the last valid versions of domains with a mistake; they stay in use
	full     bool     // Options.MaxLimits is exceeded; further limits are ignored
	// bad are the domains that contain a mistake. badAuth means that a section auth contains one.
	bad     map[string]bool
	badAuth bool
	// authDocs are the documents whose section auth is compiled. nil means all documents.
	authDocs []*document
}

func newCompiler(o Options, s *source) *compiler {
	c := &compiler{o: o, shared: newShared(), bad: map[string]bool{}, snapshot: &limiter.Snapshot{Domains: map[string]*limiter.Domain{}, KeepBlanks: o.KeepBlanks}}
	c.problems, c.mistakes, c.incomplete = slices.Clone(s.problems), s.mistakes, s.incomplete
	c.snapshot.Hash = hash([]File{{Data: fmt.Appendf(nil, "%s %t %t %s %g %t", s.hash, o.ConsumeEach, o.ConsumeTogether, o.OnFailure, o.LocalShare, o.KeepBlanks)}})
	return c
}

func (c *compiler) compile(docs []*document, files []File) (*limiter.Snapshot, Problems) {
	if c.authDocs == nil {
		c.authDocs = docs
	}
	for _, d := range c.domains(docs) {
		c.build(d)
	}
	for _, b := range c.stale {
		if c.policies+len(b.Policies) > c.o.maxLimits() {
			c.tooMany(b.docs[0].at)
			c.bad[b.Name] = true
			continue
		}
		c.use(b)
	}
	before := c.mistakes
	c.auth()
	c.badAuth = c.mistakes > before
	c.sortProblems(files)
	if c.problems.Bad() {
		return nil, c.problems
	}
	return c.snapshot, c.problems
}

// sortProblems sorts the problems by the order of the files and removes duplicates. A mistake inside a YAML anchor is
// found again at each alias.
func (c *compiler) sortProblems(files []File) {
	order := map[string]int{}
	for i, f := range files {
		order[f.Name] = i
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

// build adds d to the Snapshot. It compiles d, or reuses the compiled form of an earlier load.
func (c *compiler) build(d *domain) {
	if c.loader != nil && !c.full {
		if b := c.loader.cached(d, c.incomplete); b != nil && c.policies+len(b.Policies) <= c.o.maxLimits() {
			c.problems = append(c.problems, b.problems...)
			if !c.incomplete {
				c.problems = append(c.problems, b.late...)
			}
			c.mistakes += b.mistakes
			c.use(b)
			return
		}
	}
	b := c.compileDomain(d)
	c.use(b)
	if c.loader != nil && !c.full && d.Name != "" {
		c.loader.built[d.Name] = b
		for _, doc := range d.docs {
			doc.compiled = true
		}
	}
}

func (c *compiler) compileDomain(d *domain) *built {
	if c.loader != nil {
		c.loader.refill(d.docs)
	}
	problems, mistakes, policies := len(c.problems), c.mistakes, c.policies
	c.domain(d)
	late := len(c.problems)
	c.checkReplaces(d)
	d.assignNames()
	c.policies = policies
	b := &built{
		Domain: d.Domain, docs: d.docs, mistakes: c.mistakes - mistakes, incomplete: c.incomplete,
		problems: slices.Clone(c.problems[problems:late]), late: slices.Clone(c.problems[late:]),
	}
	return b
}

func (c *compiler) use(b *built) {
	c.policies += len(b.Policies)
	c.built = append(c.built, b)
	c.snapshot.Domains[b.Name] = b.Domain
	c.snapshot.Policies = append(c.snapshot.Policies, b.Policies...)
	if b.mistakes > 0 {
		c.bad[b.Name] = true
	}
}

func (c *compiler) domain(d *domain) {
	c.settings(d)
	for _, doc := range d.docs {
		for _, l := range doc.Limits.value {
			c.named(d, l)
		}
	}
	c.payers(d)
	for _, doc := range d.docs {
		c.shared.newDocument()
		c.descriptors(d, d.Tree, nil, newPath(), doc.Descriptors.value)
	}
	c.checkPayers(d)
	c.warnRequire(d)
	if headers := d.headers; headers.value.OpenAI && len(d.Policies) > 0 && !c.incomplete &&
		!slices.ContainsFunc(d.Policies, func(p *limiter.Policy) bool { return p.Extra().Unit != limiter.NoUnit }) {
		c.warn(headers.at, "http_headers: openai describes no limit, as no limit of domain %q has a unit_name; add \"unit_name: tokens\" or \"unit_name: requests\" to limits", d.Name)
	}
	c.settleEntries(d)
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
