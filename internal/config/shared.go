package config

import (
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/weights"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// draft is a policy that is being compiled.
type draft struct {
	limiter.Policy
	more limiter.Extras
}

// mostShared bounds each table of shared. A full table is cleared.
const mostShared = 4096

// shared keeps one copy of equal parts of policies, because a configuration of 100,000 limits contains few
// different numbers. The copies are immutable.
type shared struct {
	numbers map[algorithms.Limit]*algorithms.Limit
	extra   map[extrasKey]*limiter.Extras
	open    map[string][]int
	texts   map[string]string
	chunks
}

// chunks allocates the memory of one document's policies, nodes and texts in larger pieces. Single allocations would
// lie between the garbage of parsing and compiling. After the collection of the garbage, the gaps would be a tenth of
// the memory.
type chunks struct {
	policies []limiter.Policy // the unused rest of the last chunk
	text     strings.Builder  // the last chunk of texts
	size     int              // the size of the last chunk of policies
}

// A chunk has at most mostInChunk policies or nodes, and a chunk of texts has about textPerPolicy bytes for each
// policy in a chunk. This bounds the memory that chunks leave unused.
const mostInChunk, textPerPolicy = 32, 128

// newDocument starts new chunks. Documents share no chunk, so that a changed document's memory can be freed.
func (c *chunks) newDocument() { *c = chunks{} }

func (c *chunks) copyPolicy(p *limiter.Policy) *limiter.Policy {
	own := nextOf(&c.policies, &c.size)
	*own = *p
	return own
}

// nextOf returns an item of a chunk. If the chunk is used up, nextOf allocates one of twice the size, up to
// mostInChunk. So small documents have small chunks.
func nextOf[T any](free *[]T, size *int) *T {
	if len(*free) == 0 {
		*size = min(max(1, 2**size), mostInChunk)
		*free = make([]T, *size)
	}
	one := &(*free)[0]
	*free = (*free)[1:]
	return one
}

func (c *chunks) copyText(t string) string {
	if c.text.Cap()-c.text.Len() < len(t) {
		c.text = strings.Builder{}
		c.text.Grow(max(len(t), textPerPolicy*max(1, c.size)))
	}
	start := c.text.Len()
	c.text.WriteString(t)
	return c.text.String()[start:]
}

// extrasKey identifies equal Extras without metadata.
type extrasKey struct {
	named                  bool
	openKeys, replaces     string
	statValues, statLevels string
	slot                   limiter.Slot
	lease                  algorithms.Lease // the zero value means that there is no lease
	shards                 int
	split                  *algorithms.Limit // the limit that is split into shards; nil if there are none
	local                  *algorithms.Limit
	localShare             float64
	maxDelay               algorithms.Micros
	denyBody               limiter.Body
	unit                   limiter.Unit
	settle                 limiter.SettleTerms // the zero value means that there is no settle
	weights                string
	then                   *limiter.Policy
}

func newShared() *shared {
	return &shared{
		numbers: map[algorithms.Limit]*algorithms.Limit{}, extra: map[extrasKey]*limiter.Extras{}, open: map[string][]int{},
		texts: map[string]string{},
	}
}

func oneOf[K comparable, V any](table map[K]V, key K, create func() V) V {
	if have, ok := table[key]; ok {
		return have
	}
	if len(table) >= mostShared {
		clear(table)
	}
	value := create()
	table[key] = value
	return value
}

// text returns a copy of t. Equal short texts share one copy, because the keys of descriptors, and values
// such as methods, repeat often. Longer texts mostly differ.
func (s *shared) text(t string) string {
	const short = 8
	if len(t) > short {
		return s.copyText(t)
	}
	return oneOf(s.texts, t, func() string { return t })
}

func (s *shared) limit(l algorithms.Limit) *algorithms.Limit {
	if have, ok := s.numbers[l]; ok {
		return have
	}
	own := l // copied only here, because the copy is on the heap
	return oneOf(s.numbers, l, func() *algorithms.Limit { return &own })
}

func (s *shared) policy(d *draft) *limiter.Policy {
	p := s.copyPolicy(&d.Policy)
	p.Prefix, p.StatKey = s.copyText(p.Prefix), s.copyText(p.StatKey)
	p.Owner = p.Prefix // the same prefix means the same buckets
	if rest, ok := strings.CutPrefix(p.StatKey, p.Domain+"."); ok && rest == p.Name {
		p.Name = rest // shares the memory of StatKey
	}
	if len(p.Open) > 0 {
		p.Open = oneOf(s.open, positions(p.Open), func() []int { return d.Open })
	}
	p.Extras = s.extras(d)
	return p
}

func (s *shared) extras(d *draft) *limiter.Extras {
	m := &d.more
	if m.Metadata != nil {
		own := *m
		return &own
	}
	key := extrasKey{
		named:    m.Named,
		openKeys: joined(m.OpenKeys), replaces: joined(m.Replaces), statValues: positions(m.StatValues), statLevels: joined(m.StatLevels),
		slot: m.Slot, local: m.Local, localShare: m.LocalShare, maxDelay: m.MaxDelay,
		denyBody: m.DenyBody, unit: m.Unit, weights: weightsText(m.Weights), then: m.Then,
	}
	if m.Lease != nil {
		key.lease = *m.Lease
	}
	if m.Settle != nil {
		key.settle = *m.Settle
	}
	if len(m.Shards) > 0 {
		key.shards, key.split = len(m.Shards), d.Limit
	}
	if key == (extrasKey{}) {
		return nil
	}
	return oneOf(s.extra, key, func() *limiter.Extras { own := *m; return &own })
}

// positions encodes list as text, one byte for each number. The numbers are below the depth of a tree, which is at
// most maxMessageDepth.
func positions(list []int) string {
	b := make([]byte, len(list))
	for i, n := range list {
		b[i] = byte(n)
	}
	return string(b)
}

// joined returns different texts for different lists.
func joined(list []string) string {
	var b strings.Builder
	for _, s := range list {
		b.WriteString(strings.ReplaceAll(s, "\x00", "\x00\x00"))
		b.WriteString("\x00.")
	}
	return b.String()
}

func weightsText(w *weights.Weights) string {
	if w == nil {
		return ""
	}
	return w.String()
}
