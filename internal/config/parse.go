package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// These constants bound the memory that files can use.
const (
	maxFileSize = 16 << 20 // in bytes
	// maxDepth bounds the nesting of mappings and lists. A descriptor needs two levels.
	maxDepth = 2*32 + 4
	// leastNodes and nodesPerLimit bound the number of YAML nodes in all files, where each use of an alias
	// counts. The bound is sufficient for Options.MaxLimits limits with 41 nodes each. It stops files whose
	// nested aliases expand to huge structures.
	leastNodes, nodesPerLimit = 4 << 20, 41
)

// budget is the number of nodes that may still be read in all files.
type budget struct {
	most, left int64 // left below 0 means that the budget is used up; the mistake has been reported
	pause      func()
}

func newBudget(o *Options) *budget {
	most := max(leastNodes, nodesPerLimit*int64(o.maxLimits()))
	return &budget{most, most, o.pause}
}

type report struct {
	problems Problems
	mistakes int // the number of problems that are not warnings
	// incomplete means that a part could not be read. Keys and domains that seem to be missing may be in that part.
	incomplete bool
}

func (r *report) mistake(at place, format string, args ...any) {
	r.mistakes++
	r.add(at, false, fmt.Sprintf(format, args...))
}

func (r *report) warn(at place, format string, args ...any) {
	r.add(at, true, fmt.Sprintf(format, args...))
}

func (r *report) add(at place, warning bool, message string) {
	if at.src != nil && at.src.path != "" {
		message = at.src.path + ": " + message
		at.line, at.column = 0, 0
	}
	r.problems = append(r.problems, Problem{File: at.file(), Line: int(at.line), Column: int(at.column), Message: message, Warning: warning})
}

type parser struct {
	*report
	src   *origin
	depth int
	nodes *budget
}

func (p *parser) at(n *yaml.Node) place {
	return place{src: p.src, line: int32(n.Line), column: int32(n.Column)}
}

// Documents splits a file into YAML documents, and omits empty ones. After a syntax error, which the Problems have, the
// documents before the error are returned.
func Documents(f File) ([]*yaml.Node, Problems) {
	r := &report{}
	roots := r.documents(f, newBudget(&Options{}), "")
	return roots, r.problems
}

// documents is Documents with the start of the message for a syntax error.
func (r *report) documents(f File, nodes *budget, start string) (roots []*yaml.Node) {
	if len(f.Data) > maxFileSize {
		r.incomplete = true
		r.mistake(inFile(f.Name), "the file is larger than %d MiB; split it", maxFileSize>>20)
		return nil
	}
	roots, err := decode(pausing{bytes.NewReader(f.Data), nodes.pause})
	if err != nil {
		r.syntax(f, start, err)
	}
	return slices.DeleteFunc(roots, isNull)
}

// parse also returns documents with mistakes, because later steps may find further mistakes in them.
func parse(f File, r *report, nodes *budget) (docs []*document) {
	p, before := &parser{report: r, src: &origin{file: f.Name}, nodes: nodes}, r.mistakes
	for _, root := range r.documents(f, nodes, "error loading config file: ") {
		d := &document{at: p.at(root)}
		d.incomplete = !p.object(root, "the file", d)
		docs = append(docs, d)
	}
	if len(docs) == 0 && r.mistakes == before {
		p.mistake(inFile(f.Name), "config file cannot have empty domain: the file is empty; write \"domain: NAME\"")
	}
	return docs
}

// pausing calls pause before each Read. The YAML library reads pieces of 512 bytes.
type pausing struct {
	io.Reader
	pause func()
}

func (r pausing) Read(p []byte) (int, error) {
	r.pause()
	return r.Reader.Read(p)
}

// decode splits the text into YAML documents, up to the first syntax error.
func decode(text io.Reader) (roots []*yaml.Node, err error) {
	for decoder := yaml.NewDecoder(text); ; {
		var n yaml.Node
		switch err := decoder.Decode(&n); {
		case errors.Is(err, io.EOF):
			return roots, nil
		case err != nil:
			return roots, err
		}
		roots = append(roots, n.Content[0])
	}
}

// libraryLine matches the prefix of the YAML library's messages. Their line is often the start of the
// enclosing block, not the line of the mistake.
var libraryLine = regexp.MustCompile(`^yaml: (line \d+: )?`)

// syntax reports a syntax error of the YAML library at the first line that causes the error.
func (r *report) syntax(f File, start string, err error) {
	text := libraryLine.ReplaceAllString(err.Error(), "")
	lines := bytes.SplitAfter(f.Data, []byte("\n"))
	ends := make([]int, len(lines))
	for i, end := 0, 0; i < len(lines); i++ {
		end += len(lines[i])
		ends[i] = end
	}
	line := sort.Search(len(lines)-1, func(i int) bool {
		_, err := decode(bytes.NewReader(f.Data[:ends[i]]))
		return err != nil && libraryLine.ReplaceAllString(err.Error(), "") == text
	})
	r.incomplete = true
	column := len(lines[line]) - len(bytes.TrimLeft(lines[line], " \t"))
	at := place{src: &origin{file: f.Name}, line: int32(line + 1), column: int32(column + 1)}
	r.mistake(at, "%syaml: %s%s", start, text, syntaxAdvice(text))
}

// enter counts the children of n against the budget, and reports whether they may be read. Each successful
// call needs a call of leave.
func (p *parser) enter(n *yaml.Node) bool {
	if p.depth == maxDepth {
		p.mistake(p.at(n), "nested more than %d levels deep; make it flatter", maxDepth)
		return false
	}
	if !p.consume(n, len(n.Content)+1) {
		return false
	}
	p.depth++
	return true
}

func (p *parser) consume(n *yaml.Node, nodes int) bool {
	if p.nodes.left < 0 { // the mistake has been reported already
		return false
	}
	p.nodes.pause()
	if p.nodes.left -= int64(nodes); p.nodes.left < 0 {
		p.mistake(p.at(n), "the configuration has more than %d YAML nodes, with aliases followed; make it smaller", p.nodes.most)
		return false
	}
	return true
}

func (p *parser) leave() { p.depth-- }

type field interface {
	read(p *parser, key string, n *yaml.Node)
}

// object reads the mapping n into the struct that target points to. subject is the name of n in messages. A null
// value counts as missing, except for the key limit, whose type is names. object reports whether all keys could be
// read, even if some values could not.
func (p *parser) object(n *yaml.Node, subject string, target any) bool {
	v := reflect.ValueOf(target).Elem()
	level := levelOf(v.Type())
	before := p.mistakes
	entries := p.entries(n, subject, false)
	read := p.mistakes == before
	for _, e := range entries {
		i, known := level.field[e.key.Value]
		if !known {
			p.mistake(p.at(e.key), "%s", unknownKey(e.key.Value, level))
			read = false
			continue
		}
		f := v.Field(i).Addr().Interface().(field)
		if _, isNames := f.(*names); isNames || !isNull(e.value) {
			f.read(p, e.key.Value, e.value)
		}
	}
	return read
}

type entry struct{ key, value *yaml.Node }

// entries returns the entries of a mapping. Each key must be a string (or, with anyKey, any scalar) and must
// occur once. The entries of a "<<" come last, and only if the mapping itself does not have their keys.
func (p *parser) entries(n *yaml.Node, subject string, anyKey bool) (list []entry) {
	n = follow(n)
	if n.Kind != yaml.MappingNode {
		p.mistake(p.at(n), "%s must be a mapping, but is %s%s", subject, describe(n), mappingAdvice(subject, n))
		return nil
	}
	if !p.enter(n) {
		return nil
	}
	defer p.leave()
	list = make([]entry, 0, len(n.Content)/2)
	written := map[string]int{} // maps each key to its index in n.Content
	var merges []int
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := follow(n.Content[i])
		switch before, twice := written[key.Value]; {
		case key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge":
			merges = append(merges, i)
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" && !anyKey:
			p.mistake(p.at(n.Content[i]), "config error, key is not of type string: %s%s", plain(key), quoteAdvice(key))
		case twice:
			p.mistake(p.at(n.Content[i]), "key %q occurs twice in one mapping, first at %s; remove one", key.Value, p.at(n.Content[before]))
		default:
			written[key.Value] = i
			list = append(list, entry{key, n.Content[i+1]})
		}
	}
	for _, i := range merges {
		merged := p.merged(n.Content[i+1], anyKey)
		if !p.consume(n, len(merged)) {
			return nil
		}
		for _, e := range merged {
			switch before, have := written[e.key.Value]; {
			case !have:
				written[e.key.Value] = i
				list = append(list, e)
			case before < i && n.Content[before].Value == e.key.Value:
				p.warn(p.at(n.Content[before]), "key %q is before a \"<<\" that has it too: rlsidecar uses the key itself, and the reference server the merged one; put \"<<\" first", e.key.Value)
			}
		}
	}
	return list
}

// merged returns the entries that a "<<" adds. n is a mapping, or a list of mappings in which earlier items take
// precedence.
func (p *parser) merged(n *yaml.Node, anyKey bool) (list []entry) {
	n = follow(n)
	if n.Kind != yaml.SequenceNode {
		return p.entries(n, `the value of "<<"`, anyKey)
	}
	if !p.enter(n) {
		return nil
	}
	defer p.leave()
	for _, item := range n.Content {
		list = append(list, p.entries(item, `an item of "<<"`, anyKey)...)
	}
	return list
}

// list calls read for each item of the list n.
func (p *parser) list(key string, n *yaml.Node, read func(item *yaml.Node)) {
	at, n := p.at(n), follow(n)
	if n.Kind != yaml.SequenceNode {
		p.mistake(at, "%s must be a list, but is %s%s", key, describe(n), listAdvice(n))
		return
	}
	if !p.enter(n) {
		return
	}
	defer p.leave()
	for _, item := range n.Content {
		read(item)
	}
}

// each calls read for each item of the list n that is a mapping. It reports any other item as a mistake.
func (p *parser) each(key string, n *yaml.Node, read func(item *yaml.Node)) {
	p.list(key, n, func(item *yaml.Node) {
		if follow(item).Kind == yaml.MappingNode {
			read(item)
		} else {
			p.mistake(p.at(item), "config error, yaml file contains list of type other than map: %s%s", plain(item), itemAdvice(key, item))
		}
	})
}

func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	n = follow(n)
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// describe describes a node for messages, such as "a list" or "the number 7".
func describe(n *yaml.Node) string {
	n = follow(n)
	switch tag := n.ShortTag(); {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case tag == "!!null":
		return "nothing"
	case tag == "!!bool":
		return n.Value
	case tag == "!!int" || tag == "!!float":
		return "the number " + short(n.Value)
	case tag == "!!timestamp":
		return "the time " + short(n.Value)
	default:
		return "the text " + strconv.Quote(short(n.Value))
	}
}

// plain formats a node as the reference server does in its messages, but shortens scalars, and omits the content of
// mappings and lists.
func plain(n *yaml.Node) string {
	n = follow(n)
	switch {
	case isNull(n):
		return "<nil>"
	case n.Kind == yaml.ScalarNode:
		return short(n.Value)
	case n.Kind == yaml.MappingNode:
		return "map[…]"
	default:
		return "[…]"
	}
}

func short(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
