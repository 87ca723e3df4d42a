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
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Compile compiles files, in the order given. It is a function of its arguments.
func Compile(files []File, o Options) (*limiter.Snapshot, Problems) {
	return parseAll(files, &o).compile(o)
}

// source is a configuration that was read and not yet compiled.
type source struct {
	report
	files []File // in their order
	docs  []*document
	hash  string // of what they say
	// lost are the files of which a part could not be read, so that there is no telling which domains
	// that was about; also folders. "": any file may be among them.
	lost []string
	// cached: a Loader read it, and what it has compiled can be used.
	cached bool
}

// parseAll reads files.
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

// compile makes a Snapshot of all of it; nil if there is a mistake.
func (s *source) compile(o Options) (*limiter.Snapshot, Problems) {
	c := newCompiler(o, s)
	return c.compile(s.docs, s.files)
}

// hash tells configurations apart by what they say; what their files are called is not part of it.
func hash(files []File) string {
	h := sha256.New()
	for _, f := range files {
		h.Write(binary.AppendUvarint(nil, uint64(len(f.Data))))
		h.Write(f.Data)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// compiler makes a Snapshot of documents.
type compiler struct {
	report
	o        Options
	snapshot *limiter.Snapshot
	shared   *shared
	policies int      // so far
	loader   *Loader  // of a source that is cached; nil otherwise
	built    []*built // the domains of snapshot
	kept     []*built // domains that are added as they are
	full     bool     // there were more than Options.MaxLimits: no more are looked at
	// bad are the domains in which there is a mistake; badAuth: there is one in auth.
	bad     map[string]bool
	badAuth bool
	// authDocs are those whose auth counts; nil: docs.
	authDocs []*document
}

func newCompiler(o Options, s *source) *compiler {
	c := &compiler{o: o, shared: newShared(), bad: map[string]bool{}, snapshot: &limiter.Snapshot{Domains: map[string]*limiter.Domain{}, KeepBlanks: o.KeepBlanks}}
	c.problems, c.mistakes, c.incomplete = slices.Clone(s.problems), s.mistakes, s.incomplete
	c.snapshot.Hash = hash([]File{{Data: fmt.Appendf(nil, "%s %t %t %s %g %t", s.hash, o.ConsumeEach, o.ConsumeTogether, o.OnFailure, o.LocalShare, o.KeepBlanks)}})
	return c
}

// compile makes the Snapshot of the documents of files.
func (c *compiler) compile(docs []*document, files []File) (*limiter.Snapshot, Problems) {
	if c.authDocs == nil {
		c.authDocs = docs
	}
	for _, d := range c.domains(docs) {
		c.build(d)
	}
	for _, b := range c.kept {
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
	c.tidy(files)
	if c.problems.Bad() {
		return nil, c.problems
	}
	return c.snapshot, c.problems
}

// tidy puts the problems in the order of the files, each once: a mistake behind an alias is met
// at each use.
func (c *compiler) tidy(files []File) {
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

// domain is all that the documents say of one domain.
type domain struct {
	*limiter.Domain
	docs    []*document
	share   float64 // the default of local_share; 0: none
	tag     hashTag
	require requirements
	limits  map[string]*named
	names   []string // of limits, in the order of the files
	nodes   map[*descriptors.Node]place
	uses    []use
	// patterns are the places of steps that are met by several values.
	patterns map[sibling]place
}

// sibling is a step by its composite name, among those below a node.
type sibling struct {
	parent    *descriptors.Node
	composite string
}

// named is a named limit, compiled.
type named struct {
	at     place
	draft  *draft              // nil: a mistake in it has been reported
	policy *descriptors.Policy // of draft
	used   place               // where it was used first
}

// use is a policy and where it stands, for checks over the whole domain.
type use struct {
	policy   *descriptors.Policy
	replaces []*replacement
}

// domains groups the documents by their domain, in the order in which domains first appear. Each
// document without one is checked for itself.
func (c *compiler) domains(docs []*document) (list []*domain) {
	byName := map[string]*domain{}
	for _, doc := range docs {
		name := doc.Domain.value
		if name == "" && (doc.Domain.ok || !doc.Domain.stated() && !doc.doubtful) {
			c.mistake(cmp.Or(doc.Domain.at, doc.at), "config file cannot have empty domain; write \"domain: NAME\"")
		}
		d := byName[name]
		if d == nil || name == "" {
			d = &domain{
				Domain: &limiter.Domain{Name: name, Tree: &descriptors.Tree{}, Named: map[string]*descriptors.Policy{}},
				limits: map[string]*named{}, nodes: map[*descriptors.Node]place{}, patterns: map[sibling]place{},
			}
			byName[name] = d
			list = append(list, d)
		}
		d.docs = append(d.docs, doc)
	}
	return list
}

// build compiles d, unless that was done before, and adds it to the Snapshot.
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
	if c.loader != nil {
		c.loader.refill(d.docs)
	}
	problems, mistakes, policies := len(c.problems), c.mistakes, c.policies
	c.domain(d)
	late := len(c.problems)
	c.checkReplaces(d)
	d.giveNames()
	b := &built{
		Domain: d.Domain, docs: d.docs, mistakes: c.mistakes - mistakes, incomplete: c.incomplete,
		problems: slices.Clone(c.problems[problems:late]), late: slices.Clone(c.problems[late:]),
	}
	c.policies = policies
	c.use(b)
	if c.loader != nil && !c.full && d.Name != "" {
		c.loader.built[d.Name] = b
		for _, doc := range d.docs {
			doc.compiled = true
		}
	}
}

// use adds b to the Snapshot.
func (c *compiler) use(b *built) {
	c.policies += len(b.Policies)
	c.built = append(c.built, b)
	c.snapshot.Domains[b.Name] = b.Domain
	c.snapshot.Policies = append(c.snapshot.Policies, b.Policies...)
	if b.mistakes > 0 {
		c.bad[b.Name] = true
	}
}

// domain compiles d.
func (c *compiler) domain(d *domain) {
	c.settings(d)
	for _, doc := range d.docs {
		for _, l := range doc.Limits.value {
			c.named(d, l)
		}
	}
	for _, doc := range d.docs {
		c.descriptors(d, d.Tree, nil, nil, doc.Descriptors.value)
	}
	c.warnRequire(d)
}

// settings takes the domain's own settings from its documents, which must agree.
func (c *compiler) settings(d *domain) {
	var each consume
	var answer failure
	var part share
	var tag text
	var most oneLimit
	var headers headerSets
	for _, doc := range d.docs {
		agree(c, d, "consume", &each.given, &doc.Consume.given)
		agree(c, d, "on_backend_failure", &answer.given, &doc.OnFailure.given)
		agree(c, d, "local_share", &part.given, &doc.LocalShare.given)
		agree(c, d, "hash_tag", &tag.given, &doc.HashTag.given)
		agree(c, d, "http_headers", &headers.given, &doc.Headers.given)
		if doc.LocalShare.stated() && !doc.LocalShare.ok {
			d.share = 1 // reported
		}
		switch {
		case !doc.MaxOverride.ok:
		case most.ok:
			c.mistake(doc.MaxOverride.at, "max_override of domain %q is stated at %s already; state it once", d.Name, most.at)
		default:
			most = doc.MaxOverride
		}
		switch {
		case !doc.Require.ok:
		case d.require.ok:
			c.mistake(doc.Require.at, "require of domain %q is stated at %s already; state it once", d.Name, d.require.at)
		default:
			d.require = doc.Require
		}
	}
	d.Require = d.require.compiled()
	d.tag = c.hashTag(tag)
	d.Slot = d.tag.slot(d.Name, nil, true)
	d.Headers = headers.pointer()
	d.Alone = each.or(c.o.ConsumeEach) && !c.o.ConsumeTogether
	d.OnFailure = answer.or(c.o.OnFailure)
	d.share = part.or(cmp.Or(d.share, c.o.LocalShare))
	d.LocalShare = d.share
	switch {
	case !answer.ok || d.OnFailure != descriptors.Local:
	case d.share > 0:
		c.warn(answer.at, "while the backend is away each sidecar gives out %s of each limit by itself, so that more than %d of them admit more than the limit",
			percent(d.share), int(math.Floor(1/d.share)))
	default:
		c.mistake(answer.at, "on_backend_failure local needs a local_share; add \"local_share: 20%%\"")
		d.share = 1 // said once is enough
	}
	if most.ok {
		d.MaxOverride = c.maxOverride(d, most.value, nil)
	}
}

// maxOverride compiles what limits that come with requests may allow at most, at the end of way; nil:
// anywhere in the domain.
func (c *compiler) maxOverride(d *domain, l *limit, way path) *descriptors.Policy {
	if l.Unlimited.value {
		c.mistake(l.Unlimited.at, "unlimited means nothing in max_override; remove it, which leaves limits that come with requests unbounded")
		return nil
	}
	p, ok := c.limit(d, l, "")
	if !ok {
		return nil
	}
	const what = "#max_override"
	p.Name = way.name() + what
	p.StatKey = d.Name + "." + p.Name
	p.Prefix = descriptors.Prefix(d.Name, "path", way.id()+what, p.Limit.Kind)
	p.Place = l.at.shown()
	p.Whole = way == nil
	c.apart(d, way, &p, false)
	d.Bounded = true
	return c.add(d, &p, l.at, l.Replaces.value)
}

// apart settles which entries tell the buckets of p, at the end of way, apart.
func (c *compiler) apart(d *domain, way path, p *draft, named bool) {
	for i, s := range way {
		switch {
		case s.loose() && !s.shared && !named:
			p.Whole = true
		case s.open():
			p.Open, p.more.OpenKeys = append(p.Open, i), append(p.more.OpenKeys, s.Key)
		}
	}
	p.more.Slot = d.tag.slot(d.Name, way, p.Whole)
}

// agree takes over what a document states, if the documents before did not state something else.
func agree[T comparable](c *compiler, d *domain, key string, all, one *given[T]) {
	switch {
	case !one.ok:
	case !all.ok:
		*all = *one
	case all.value != one.value:
		c.mistake(one.at, "%s differs from that of domain %q at %s; state it once", key, d.Name, all.at)
	}
}

// percent prints a share.
func percent(share float64) string { return strconv.FormatFloat(share*100, 'g', 4, 64) + "%" }

// step is one level on the way to a descriptor.
type step struct {
	descriptors.Pattern
	shared bool // share_threshold: the pattern stands for all values it matches
	metric bool // value_to_metric
}

// composite is the reference server's name for the step; that server has no expressions.
func (s step) composite() string {
	switch s.How {
	case descriptors.Any:
		return s.Key
	case descriptors.HasPrefix:
		return s.Key + "_" + s.Text + "*"
	case descriptors.HasSuffix:
		return s.Key + "_*" + s.Text
	case descriptors.Regex:
		return s.Key + "_~" + s.Text
	case descriptors.Exact, descriptors.Wildcard:
	}
	return s.Key + "_" + s.Text
}

// loose reports whether the key itself is matched by a pattern.
func (s step) loose() bool { return strings.Contains(s.Key, "*") }

// pattern reports whether the step is met by more than one key and value, but not by any value.
func (s step) pattern() bool {
	return s.loose() || s.How != descriptors.Exact && s.How != descriptors.Any
}

// open reports whether the request's own value tells buckets apart.
func (s step) open() bool { return !s.shared && (s.How != descriptors.Exact || s.loose()) }

// path is the way from the root to a descriptor.
type path []step

// name is the path for people.
func (p path) name() string { return strings.Join(p.levels(), ".") }

// levels is the composite of each step.
func (p path) levels() []string {
	parts := make([]string, len(p))
	for i, s := range p {
		parts[i] = s.composite()
	}
	return parts
}

var escape = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `=`, `\=`, `#`, `\#`)

// id is the path as key=value,key…: other than the name it is different for different paths. What is
// no value has a word and a second "=" before it.
func (p path) id() string {
	parts := make([]string, len(p))
	for i, s := range p {
		parts[i] = escape.Replace(s.Key)
		switch s.How {
		case descriptors.Any:
			continue
		case descriptors.HasPrefix, descriptors.HasSuffix, descriptors.Regex:
			parts[i] += "=" + s.How.String()
		case descriptors.Exact, descriptors.Wildcard:
		}
		parts[i] += "=" + escape.Replace(s.Text)
	}
	return strings.Join(parts, ",")
}

// step is what one says of the level it stands at. Where that cannot be told the Key is empty.
func (c *compiler) step(one *descriptor) step {
	s := step{shared: one.ShareThreshold.value, metric: one.ValueToMetric.value}
	said := 0
	for _, v := range []struct {
		*text
		key string
		how descriptors.How
	}{
		{&one.Value, "value", descriptors.Exact},
		{&one.ValuePrefix, "value_prefix", descriptors.HasPrefix},
		{&one.ValueSuffix, "value_suffix", descriptors.HasSuffix},
		{&one.ValueRegex, "value_regex", descriptors.Regex},
	} {
		if !v.stated() {
			continue
		}
		said++
		var err error
		switch {
		case !v.ok:
			return s // reported
		case said > 1:
			c.mistake(v.at, "%s does not go with another value; remove one", v.key)
			return s
		case v.how == descriptors.Exact:
			c.warnBlanks(v.at, v.key, v.value, v.how)
			s.Pattern = descriptors.ValuePattern("", v.value)
			continue
		case v.value == "":
			c.mistake(v.at, "%s is empty; remove it, which stands for any value, or say what it must be", v.key)
			return s
		case strings.Contains(one.Key.value, "*"):
			c.mistake(v.at, "%s does not go with a \"*\" in the key; write a value with a \"*\", or the whole key", v.key)
			return s
		case v.how == descriptors.Regex:
			if s.Pattern, err = descriptors.RegexPattern("", v.value); err != nil {
				c.mistake(v.at, "%s %v", v.key, err)
				return s
			}
		default:
			c.warnBlanks(v.at, v.key, v.value, v.how)
			s.Pattern = descriptors.Pattern{How: v.how, Text: v.value}
			if strings.Contains(v.value, "*") {
				c.warn(v.at, "a \"*\" in %s stands for itself; remove it, or write value: %q", v.key, short(v.value))
			}
		}
	}
	if said == 0 {
		s.How = descriptors.Any
	}
	s.Key = one.Key.value
	return s
}

// warnBlanks warns of a value that no descriptor can have, because blanks at the ends of values are removed.
func (c *compiler) warnBlanks(at place, key, value string, how descriptors.How) {
	const blanks = " \t"
	atStart := how != descriptors.HasSuffix && strings.TrimLeft(value, blanks) != value
	atEnd := how != descriptors.HasPrefix && strings.TrimRight(value, blanks) != value
	if !c.o.KeepBlanks && (atStart || atEnd) {
		c.warn(at, "%s %q never matches: spaces and tabs at the ends of descriptor values are removed before they are compared; "+
			"remove them here, or keep them everywhere with --keep-blanks", key, short(value))
	}
}

// descriptors adds list to the tree, below parent.
func (c *compiler) descriptors(d *domain, tree *descriptors.Tree, parent *descriptors.Node, above path, list []*descriptor) {
	for _, one := range list {
		if c.full {
			return
		}
		at := one.at
		if one.Key.stated() {
			at = one.Key.at
		}
		if one.Key.value == "" && (one.Key.ok || !one.Key.stated() && !one.doubtful) {
			c.mistake(at, "descriptor has empty key; write \"key: NAME\"")
		}
		s := c.step(one)
		way := append(slices.Clip(above), s)
		if s.Key != "" && s.shared && !s.pattern() {
			c.mistake(one.ShareThreshold.at, "share_threshold can only be used with wildcard values (containing '*'), but found key '%s'; remove it, or end the value in *", s.composite())
		}
		if s.Key == "" { // reported; there is no telling what it is
			node := &descriptors.Node{}
			c.place(d, one, way, node)
			c.descriptors(d, tree, node, way, one.Descriptors.value)
			continue
		}
		node, added := tree.Add(parent, s.Pattern)
		first := d.nodes[node]
		if same := (sibling{parent, s.composite()}); s.pattern() { // a prefix is as good as a value that ends in *
			if before, twice := d.patterns[same]; twice {
				added, first = false, before
			} else {
				d.patterns[same] = at
			}
		}
		if added {
			d.nodes[node] = at
		} else {
			c.mistake(at, "duplicate descriptor composite key '%s.%s'; it is first at %s: merge the two", d.Name, way.name(), first)
			node = &descriptors.Node{}
		}
		c.place(d, one, way, node)
		c.descriptors(d, tree, node, way, one.Descriptors.value)
	}
}

// place puts the policies of a descriptor at its node.
func (c *compiler) place(d *domain, one *descriptor, way path, node *descriptors.Node) {
	for _, name := range one.Limit.value {
		l := d.limits[name.value]
		switch {
		case l == nil && c.incomplete:
		case l == nil:
			c.mistake(name.at, "domain %q has no limit named %q%s", d.Name, name.value, c.limitAdvice(d, name.value))
		case l.policy != nil:
			p := *l.draft
			p.Place, p.more.Named = name.at.shown(), false
			if (l.used == place{}) {
				c.paidAfterwards(name.at, &p)
			}
			c.useAt(d, one, way, node, &p, true, nil)
			c.sameSlot(d, l, name, &p)
		}
	}
	if one.MaxOverride.ok {
		node.MaxOverride = c.maxOverride(d, one.MaxOverride.value, way)
	}
	for i, l := range one.RateLimit.value {
		p, ok := c.limit(d, l, "")
		if !ok {
			continue
		}
		id := way.id()
		p.Name = way.name()
		if i > 0 {
			id += "#" + strconv.Itoa(i+1)
			p.Name += "#" + strconv.Itoa(i+1)
		}
		p.Prefix = descriptors.Prefix(d.Name, "path", id, p.Limit.Kind)
		p.Place = l.at.shown()
		c.paidAfterwards(l.place("overdraw"), &p)
		c.useAt(d, one, way, node, &p, false, l.Replaces.value)
	}
	if c.o.Cluster {
		c.warnSlots(one, way, node)
	}
}

// paidAfterwards warns of what undoes a limit with overdraw that proxies ask for.
func (c *compiler) paidAfterwards(at place, p *draft) {
	if p.Limit.Overdraw {
		c.warn(at, "overdraw: at the end of a stream charge what was used, and never give back a constant: Envoy does so after a denial too, so that asking pays the debt off")
	}
}

// useAt completes p for its place and puts it at the node.
func (c *compiler) useAt(d *domain, one *descriptor, way path, node *descriptors.Node, p *draft, named bool, replaces []*replacement) {
	p.Shadow = p.Shadow || one.Shadow.value
	p.Quota = p.Quota || one.Quota.value
	p.more.Metadata = one.Metadata.value
	p.Detailed = one.Detailed.value
	number := ""
	if n := len(node.Policies); n > 0 {
		number = "#" + strconv.Itoa(n+1)
	}
	p.StatKey = d.Name + "." + way.name() + number
	sharedToo := false
	for i, s := range way {
		sharedToo = sharedToo || s.shared
		if s.metric && s.open() && !p.Detailed {
			p.more.StatValues = append(p.more.StatValues, i)
		}
	}
	c.apart(d, way, p, named)
	if p.Whole && sharedToo {
		c.warn(one.at, "share_threshold has no effect here: a key with \"*\" on the way keeps the buckets of all values apart")
	}
	if p.Detailed || len(p.more.StatValues) > 0 {
		p.more.StatLevels = way.levels()
		p.more.StatLevels[len(way)-1] += number
	}
	node.Policies = append(node.Policies, c.add(d, p, one.at, replaces))
}

// add completes p and numbers it.
func (c *compiler) add(d *domain, p *draft, at place, replaces []*replacement) *descriptors.Policy {
	policy := c.shared.policy(p)
	if c.policies == c.o.maxLimits() {
		c.tooMany(at)
		return policy
	}
	c.policies++
	policy.Index = len(d.Policies)
	d.Policies = append(d.Policies, policy)
	if len(replaces) > 0 || policy.RateName != "" {
		d.uses = append(d.uses, use{policy, replaces})
	}
	return policy
}

// tooMany reports that there are more limits than there may be, of which the first is at.
func (c *compiler) tooMany(at place) {
	if !c.full {
		c.mistake(inFile(at.file()), "the configuration has more than %d limits; make it smaller, or raise --max-limits", c.o.maxLimits())
	}
	c.full = true
}

// owner is a domain as it starts an Owner: without a "/", which ends it.
func owner(domain string) string { return slashes.Replace(domain) + "/" }

var slashes = strings.NewReplacer("%", "%25", "/", "%2F")
