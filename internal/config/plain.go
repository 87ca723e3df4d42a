package config

import (
	"slices"
	"sync"

	"go.yaml.in/yaml/v3"
)

// The YAML library took most of the time of a start with many limits: about 20 objects for each scalar. Almost all
// files use a small part of YAML, which plainReader reads into the same nodes. It leaves everything else, and every
// mistake, to the library: FuzzPlain compares the two.

// plainReader reads a file of one document with block mappings and lists, quoted and plain scalars of one line, and
// flow mappings and lists of one line, in printable ASCII.
type plainReader struct {
	data   []byte
	pos    int // index of the next byte
	line   int // counted from 1
	start  int // index of the first byte of the line
	indent int // column of the first text of the line; -1 after the last line
	depth  int
	slabs  *slabs
	used   []*slab
	free   []yaml.Node       // of the last slab
	texts  map[string]string // short scalars, which occur often
}

// slab has nodes that are allocated at once. They were a third of the memory that a load allocates, and are needed only
// until their file is parsed.
type slab [128]yaml.Node

// slabs are those that the next file can use.
type slabs struct {
	mu   sync.Mutex
	free []*slab // guarded by mu
}

// take returns a slab of empty nodes.
func (s *slabs) take() *slab {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.free) - 1
	if last < 0 {
		return new(slab)
	}
	one := s.free[last]
	s.free = s.free[:last]
	return one
}

// put keeps slabs that are no longer used.
func (s *slabs) put(used []*slab) {
	for _, one := range used {
		clear(one[:])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, used...)
}

// decodePlain returns the content of a file, or nil if plainReader cannot read it. After done the nodes may no longer be
// used.
func decodePlain(data []byte, slabs *slabs) (root *yaml.Node, done func()) {
	r := &plainReader{data: data, slabs: slabs, texts: map[string]string{}}
	if r.isPlain() {
		r.next()
		root = r.block(false)
	}
	if r.indent >= 0 {
		root = nil
	}
	return root, func() { slabs.put(r.used) }
}

func (r *plainReader) isPlain() bool {
	return !slices.ContainsFunc(r.data, func(c byte) bool { return (c < ' ' || c > '~') && c != '\n' })
}

// next moves to the next line with text that is no comment.
func (r *plainReader) next() {
	if r.line > 0 {
		for r.at() != '\n' {
			if r.at() == 0 {
				r.indent = -1
				return
			}
			r.pos++
		}
		r.pos++
	}
	for {
		r.line, r.start = r.line+1, r.pos
		r.skip()
		switch r.at() {
		case 0:
			r.indent = -1
			return
		case '\n':
		case '#':
			for r.at() != '\n' && r.at() != 0 {
				r.pos++
			}
		default:
			r.indent = r.pos - r.start
			return
		}
		if r.at() == '\n' {
			r.pos++
		}
	}
}

// at returns the next byte, or 0 at the end.
func (r *plainReader) at() byte { return r.after(0) }

// after returns the byte n bytes after the next one, or 0 behind the end.
func (r *plainReader) after(n int) byte {
	if r.pos+n >= len(r.data) {
		return 0
	}
	return r.data[r.pos+n]
}

// skip skips spaces.
func (r *plainReader) skip() {
	for r.at() == ' ' {
		r.pos++
	}
}

// node returns a new node at the present position.
func (r *plainReader) node(kind yaml.Kind, tag string, style yaml.Style) *yaml.Node {
	if len(r.free) == 0 {
		more := r.slabs.take()
		r.used, r.free = append(r.used, more), more[:]
	}
	n := &r.free[0]
	r.free = r.free[1:]
	n.Kind, n.Tag, n.Style, n.Line, n.Column = kind, tag, style, r.line, r.pos-r.start+1
	return n
}

// text returns the text from start to end. It is a copy, so that one text does not keep the whole file in memory.
func (r *plainReader) text(start, end int) string {
	const short, most = 16, 1024
	raw := r.data[start:end]
	if len(raw) > short {
		return string(raw)
	}
	if have, ok := r.texts[string(raw)]; ok {
		return have
	}
	if len(r.texts) >= most {
		clear(r.texts)
	}
	own := string(raw)
	r.texts[own] = own
	return own
}

// block reads the value that starts at the present position and may end on a later line. It returns nil, as all
// methods below, if the value is not plain. With scalars, it may be a scalar or in flow style.
func (r *plainReader) block(scalars bool) *yaml.Node {
	if r.depth == maxDepth { // the library counts differently, so a mistake is left to it
		return nil
	}
	r.depth++
	defer func() { r.depth-- }()
	switch {
	case r.indent < 0:
		return nil
	case r.at() == '-' && r.after(1) == ' ':
		return r.list()
	case r.keyLength() > 0:
		return r.mapping()
	case scalars:
		return r.rest()
	default:
		return nil
	}
}

// list reads a block list. The present position is its first dash.
func (r *plainReader) list() *yaml.Node {
	n, column := r.node(yaml.SequenceNode, "!!seq", 0), r.pos-r.start
	for {
		r.pos++
		r.skip()
		item := r.block(true)
		if item == nil {
			return nil
		}
		n.Content = append(n.Content, item)
		switch {
		case r.indent < column:
			return n
		case r.indent > column:
			return nil
		case r.at() != '-':
			return n // of a mapping whose keys are in the same column
		case r.after(1) != ' ':
			return nil
		}
	}
}

// mapping reads a block mapping. The present position is its first key.
func (r *plainReader) mapping() *yaml.Node {
	n, column := r.node(yaml.MappingNode, "!!map", 0), r.pos-r.start
	for {
		length := r.keyLength()
		if length == 0 {
			return nil
		}
		key := r.scalar(length)
		r.pos++ // the colon
		value := r.value(column)
		if value == nil {
			return nil
		}
		n.Content = append(n.Content, key, value)
		switch {
		case r.indent < column:
			return n
		case r.indent > column:
			return nil
		}
	}
}

// value reads the value of a key in column. The present position is behind the colon.
func (r *plainReader) value(column int) *yaml.Node {
	r.skip()
	if c := r.at(); c != '\n' && c != 0 && c != '#' {
		return r.rest()
	}
	switch r.next(); {
	case r.indent > column:
		return r.block(false)
	case r.indent == column && r.at() == '-' && r.after(1) == ' ':
		return r.list()
	default:
		return nil
	}
}

// keyLength returns the length of the key at the present position, or 0 if there is none.
func (r *plainReader) keyLength() int {
	const most = 128
	if !isLetter(r.at()) {
		return 0
	}
	n := 1
	for isPlain(r.after(n)) {
		n++
	}
	if end := r.after(n + 1); r.after(n) != ':' || n > most || end != ' ' && end != '\n' && end != 0 {
		return 0
	}
	return n
}

// rest reads a scalar, or a value in flow style, up to the end of the line, and moves to the next one.
func (r *plainReader) rest() *yaml.Node {
	var n *yaml.Node
	switch c := r.at(); {
	case c == '{' || c == '[' || c == '"' || c == '\'':
		n = r.flow()
	case isPlain(c) && c != '-' || c == '/':
		n = r.scalar(r.plainLength())
	}
	before := r.pos
	r.skip()
	switch c := r.at(); {
	case n == nil:
		return nil
	case c != '\n' && c != 0 && (c != '#' || r.pos == before):
		return nil
	}
	r.next()
	return n
}

// plainLength returns the length of the plain scalar that ends on this line, or 0 if it is something else.
func (r *plainReader) plainLength() int {
	end := 0
	for i := 0; ; i++ {
		switch c := r.after(i); {
		case c == '\n' || c == 0, c == '#' && i > end:
			return end
		case c == ':' && (r.after(i+1) == ' ' || r.after(i+1) == '\n' || r.after(i+1) == 0):
			return 0
		case c != ' ':
			end = i + 1
		}
	}
}

// flow reads a value in flow style, or a quoted scalar.
func (r *plainReader) flow() *yaml.Node {
	if r.depth == maxDepth {
		return nil
	}
	r.depth++
	defer func() { r.depth-- }()
	switch c := r.at(); {
	case c == '{':
		return r.items(r.node(yaml.MappingNode, "!!map", yaml.FlowStyle), '}')
	case c == '[':
		return r.items(r.node(yaml.SequenceNode, "!!seq", yaml.FlowStyle), ']')
	case c == '"':
		return r.quoted(yaml.DoubleQuotedStyle)
	case c == '\'':
		return r.quoted(yaml.SingleQuotedStyle)
	default:
		return r.scalar(r.wordLength())
	}
}

// items reads the items of n, up to end. The present position is the opening bracket.
func (r *plainReader) items(n *yaml.Node, end byte) *yaml.Node {
	r.pos++
	r.skip()
	if r.at() == end {
		r.pos++
		return n
	}
	for {
		if end == '}' {
			key := r.scalar(r.wordLength())
			if key == nil || r.at() != ':' || r.after(1) != ' ' {
				return nil
			}
			n.Content = append(n.Content, key)
			r.pos++
			r.skip()
		}
		value := r.flow()
		if value == nil {
			return nil
		}
		n.Content = append(n.Content, value)
		r.skip()
		last := r.at() == end
		if !last && r.at() != ',' {
			return nil
		}
		r.pos++
		if last {
			return n
		}
		r.skip()
	}
}

// wordLength returns the length of the plain scalar without spaces at the present position, or 0 if there is none.
func (r *plainReader) wordLength() int {
	n := 0
	for c := r.at(); isPlain(c) && (n > 0 || c != '-') || c == '/'; c = r.after(n) {
		n++
	}
	return n
}

// quoted reads a quoted scalar without escapes.
func (r *plainReader) quoted(style yaml.Style) *yaml.Node {
	mark := r.at()
	n := r.node(yaml.ScalarNode, "!!str", style)
	r.pos++
	start := r.pos
	for ; r.at() != mark; r.pos++ {
		if c := r.at(); c == '\n' || c == 0 || c == '\\' {
			return nil
		}
	}
	n.Value = r.text(start, r.pos)
	r.pos++
	if r.at() == mark { // two apostrophes are one
		return nil
	}
	return n
}

// scalar reads a plain scalar. It returns nil if the length is 0.
func (r *plainReader) scalar(length int) *yaml.Node {
	if length == 0 {
		return nil
	}
	n := r.node(yaml.ScalarNode, "", 0)
	n.Value = r.text(r.pos, r.pos+length)
	r.pos += length
	n.Tag = plainTag(n.Value)
	return n
}

// plainTag returns the tag of a plain scalar, or "" to let the library find it, which takes longer.
func plainTag(text string) string {
	switch c := text[0]; {
	case c == 'y' || c == 'Y' || c == 'n' || c == 'N' || c == 't' || c == 'T' || c == 'f' || c == 'F' || c == 'o' || c == 'O':
		return ""
	case isLetter(c) || c == '/':
		return "!!str"
	}
	if _, ok := plainNumber(text); ok {
		return "!!int"
	}
	return ""
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' }

// isPlain reports whether c can be in any plain scalar and in a key.
func isPlain(c byte) bool {
	return isLetter(c) || '0' <= c && c <= '9' || c == '.' || c == '-'
}
