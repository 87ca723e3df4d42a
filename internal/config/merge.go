package config

import (
	"slices"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// A domain may be spread over many files. When some of the files change, the functions below compile only their
// descriptors again. That is correct if the documents do not refer to each other: no two documents have the
// same top-level descriptor, so the compiled domain is the sum of its documents. All other domains, and all
// mistakes, are left to compiler.domain.

// block is what one document adds to its compiled domain.
type block struct {
	roots    []root
	policies []*descriptors.Policy
	problems Problems // the warnings of the document
}

type root struct {
	descriptors.Pattern
	node *descriptors.Node
}

func (c *compiler) block(d *domain, doc *document) *block {
	c.shared.newDocument()
	policies, problems := len(d.Policies), len(c.problems)
	d.roots = nil
	c.descriptors(d, d.Tree, nil, newPath(), doc.Descriptors.value)
	return &block{d.roots, slices.Clip(d.Policies[policies:]), slices.Clone(c.problems[problems:])}
}

// isSum reports whether the compiled domain d is the sum of its documents and their settings.
func (d *domain) isSum() bool {
	return len(d.Named) == 0 && len(d.uses) == 0 && !d.Bounded && d.MaxOverride == nil && d.Settle == nil &&
		!d.require.ok && !d.headers.ok && !slices.ContainsFunc(d.docs, func(doc *document) bool { return doc.Settle.stated() })
}

// isPlain reports whether d contains no settings of its domain, and no named limits. It may contain descriptors and
// a section auth.
func (d *document) isPlain() bool {
	return !d.Consume.stated() && !d.OnFailure.stated() && !d.LocalShare.stated() && !d.HashTag.stated() && !d.MaxOverride.stated() &&
		!d.Require.stated() && !d.DenyBody.stated() && !d.Headers.stated() && !d.Settle.stated() && !d.Limits.stated()
}

// merge compiles the new documents of d and combines them with the unchanged blocks of the domain's last
// version. It returns nil if there is no last version, or if the result could differ from the result of
// compiler.compileDomain.
func (c *compiler) merge(d *domain) *built {
	if c.loader == nil || c.full || c.incomplete || d.Name == "" {
		return nil
	}
	b := c.loader.built[d.Name]
	if b == nil || b.blocks == nil || len(d.docs) < 2 {
		return nil
	}
	if slices.ContainsFunc(b.docs, func(doc *document) bool { return !doc.isPlain() && !slices.Contains(d.docs, doc) }) {
		return nil // a setting may have been removed
	}
	own := &compiler{o: c.o, shared: c.shared} // its problems are dropped if there is a mistake
	m := newDomain(d.Name)
	m.docs = d.docs
	own.settings(m)
	settings := slices.Clone(own.problems)
	blocks := own.renewed(m, b)
	if blocks == nil || own.mistakes > 0 || !m.add(blocks) || c.policies+len(m.Policies) > c.o.maxLimits() {
		return nil
	}
	merged := &built{Domain: m.Domain, docs: m.docs, blocks: blocks, problems: settings}
	for _, one := range blocks {
		merged.problems = append(merged.problems, one.problems...)
	}
	return merged
}

// renewed returns a block for each document of d. It compiles the documents that have no block in b. It returns nil
// if isPlain returns false for such a document, if its limits depend on other documents, or if its part is bare.
func (c *compiler) renewed(d *domain, b *built) []*block {
	blocks := make([]*block, len(d.docs))
	before := make(map[*document]*block, len(b.docs))
	for i, doc := range b.docs {
		before[doc] = b.blocks[i]
	}
	for i, doc := range d.docs {
		if blocks[i] = before[doc]; blocks[i] != nil {
			continue
		}
		if !doc.isPlain() || doc.part != nil && doc.part.bare {
			return nil
		}
		one := newDomain(d.Name)
		one.copySettings(d)
		one.docs, one.spread = []*document{doc}, true
		blocks[i] = c.block(one, doc)
		settles := slices.ContainsFunc(one.Policies, func(p *descriptors.Policy) bool { return p.Extra().Settle != nil })
		if settles || !one.isSum() {
			return nil
		}
	}
	return blocks
}

func (d *domain) copySettings(source *domain) {
	d.share, d.tag = source.share, source.tag
	d.Alone, d.OnFailure, d.Slot, d.LocalShare, d.DenyBody = source.Alone, source.OnFailure, source.Slot, source.LocalShare, source.DenyBody
}

// add adds blocks to the empty domain d. If the Index of the policies of a block changes, add uses a copy of the
// block, because requests in flight use the original. It returns false if two top-level descriptors are equal.
func (d *domain) add(blocks []*block) bool {
	patterns := map[string]bool{}
	for i, one := range blocks {
		one = one.numbered(len(d.Policies))
		blocks[i] = one
		for _, r := range one.roots {
			if s := (step{Pattern: r.Pattern}); s.matchesSeveral() {
				if patterns[s.composite()] {
					return false
				}
				patterns[s.composite()] = true
			}
			if d.Tree.Put(nil, r.Pattern, r.node) != r.node {
				return false
			}
		}
		d.Policies = append(d.Policies, one.policies...)
	}
	return true
}

// numbered returns b if the Index of its first policy is start, or if it has no policies. Otherwise it returns a
// copy of b in which start is the Index of the first policy.
func (b *block) numbered(start int) *block {
	if len(b.policies) == 0 || b.policies[0].Index == start {
		return b
	}
	before := b.policies[0].Index
	list := make([]*descriptors.Policy, len(b.policies))
	change := func(p *descriptors.Policy) *descriptors.Policy {
		own := *p
		list[p.Index-before] = &own
		own.Index += start - before
		return &own
	}
	roots := make([]root, len(b.roots))
	for i, r := range b.roots {
		roots[i] = root{r.Pattern, r.node.Copied(change)}
	}
	return &block{roots, list, b.problems}
}

func newDomain(name string) *domain {
	return &domain{
		Domain: &limiter.Domain{Name: name, Tree: &descriptors.Tree{}, Named: map[string]*descriptors.Policy{}},
		limits: map[string]*named{}, nodes: map[*descriptors.Node]place{}, patterns: map[sibling]place{},
	}
}
