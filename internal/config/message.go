package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// Message is a domain, or a part of one, that a control plane has sent as a RateLimitConfig.
type Message struct {
	Name        string // the name of the resource
	Domain      string
	Descriptors []MessageDescriptor
	// Unreadable means that the resource could not be decoded. The mistake has been reported. Domain or Name
	// may still be known.
	Unreadable bool
}

// MessageDescriptor is a descriptor of a Message.
type MessageDescriptor struct {
	Key, Value              string
	Limit                   *MessageLimit // nil means that there is no limit
	Descriptors             []MessageDescriptor
	Shadow, Quota, Detailed bool
	Metadata                map[string]any // the value of a protobuf Struct
	// Unknown lists the numbers of protobuf fields that this program does not know. The fields have no effect.
	Unknown []int32
}

// MessageLimit is the limit of a descriptor, in the reference form.
type MessageLimit struct {
	Unit            string // "" means that the message has no unit
	RequestsPerUnit uint32
	Unlimited       bool
	Name            string
	Replaces        []string
	Unknown         []int32
}

// maxMessageDepth is the maximum nesting of descriptors in a Message. In a file, maxDepth has the same effect.
const maxMessageDepth = (maxDepth - 4) / 2

// CompileMessages compiles messages of a control plane. The File of a Problem is the result of MessageFile. If a
// descriptor causes the Problem, its Message starts with the place of the descriptor. The order of messages has no
// influence, because control planes send them in any order.
func CompileMessages(messages []Message, o Options) (*limiter.Snapshot, Problems) {
	s := readMessages(messages)
	s.overlay(o.Overlay, &o)
	return s.compile(o)
}

// The mistakes of Unreadable messages have been reported already.
func readMessages(messages []Message) *source {
	messages = slices.Clone(messages)
	slices.SortStableFunc(messages, func(a, b Message) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
	})
	// Marshal fails only for numbers that JSON cannot represent. They are rejected below.
	text, _ := json.Marshal(messages)
	s := &source{hash: hash([]File{{Data: text}})}
	for i := range messages {
		m := &messages[i]
		r := reader{report: &s.report, file: MessageFile(m.Domain, m.Name)}
		s.files = append(s.files, r.file)
		if !m.Unreadable {
			s.docs = append(s.docs, r.document(m))
		}
		s.incomplete = s.incomplete || m.Unreadable
	}
	return s
}

// MessageFile returns the name of a message in problems. It contains the domain or, without a domain, the
// name of the resource.
func MessageFile(domain, resource string) string { return "xds:" + short(cmp.Or(domain, resource)) }

// reader converts one Message to the structs that a file is parsed to.
type reader struct {
	*report
	file string
}

// at returns the place of path in the message. A message has no lines, but the place of a stated value needs
// a line.
func (r *reader) at(path string) place { return place{src: &origin{r.file, path}, line: 1} }

func (r *reader) document(m *Message) *document {
	d := &document{at: inFile(r.file)}
	r.text(&d.Domain, "domain", m.Domain)
	d.Descriptors.given = given[[]*descriptor]{r.at("descriptors"), r.descriptors("", 1, m.Descriptors), true}
	return d
}

func (r *reader) descriptors(above string, depth int, list []MessageDescriptor) (read []*descriptor) {
	for i := range list {
		m := &list[i]
		name := m.Key
		if m.Value != "" {
			name += "=" + m.Value
		}
		path := fmt.Sprintf("%sdescriptors[%d](%s)", above, i, short(name))
		if depth > maxMessageDepth {
			r.mistake(r.at(path), "nested more than %d descriptors deep; make it flatter", maxMessageDepth)
			return read
		}
		read = append(read, r.descriptor(path, depth, m))
	}
	return read
}

func (r *reader) descriptor(path string, depth int, m *MessageDescriptor) *descriptor {
	d := &descriptor{at: r.at(path)}
	r.text(&d.Key, path, m.Key)
	r.text(&d.Value, path, m.Value)
	if m.Limit != nil {
		at := path + ".rate_limit"
		d.RateLimit.given = given[[]*limit]{r.at(at), []*limit{r.limit(at, m.Limit)}, true}
	}
	d.Descriptors.given = given[[]*descriptor]{d.at, r.descriptors(path+".", depth+1, m.Descriptors), true}
	r.flag(&d.Shadow, path, m.Shadow)
	r.flag(&d.Quota, path, m.Quota)
	r.flag(&d.Detailed, path, m.Detailed)
	if m.Metadata != nil {
		at := r.at(path + ".metadata")
		if !finite(m.Metadata) {
			r.mistake(at, "error parsing metadata: a number that is not finite cannot be sent; send it as text")
		}
		d.Metadata.given = given[map[string]any]{at, m.Metadata, true}
	}
	r.unknown(path, m.Unknown)
	return d
}

func (r *reader) limit(path string, m *MessageLimit) *limit {
	l := &limit{at: r.at(path)}
	before := r.mistakes
	r.text(&l.Unit, path, m.Unit)
	r.text(&l.Name, path, m.Name)
	r.flag(&l.Unlimited, path, m.Unlimited)
	l.RequestsPerUnit.given = given[int64]{l.at, int64(m.RequestsPerUnit), true}
	for i, name := range m.Replaces {
		one := &replacement{at: r.at(fmt.Sprintf("%s.replaces[%d]", path, i))}
		r.text(&one.Name, one.at.src.path, name)
		l.Replaces.value = append(l.Replaces.value, one)
	}
	r.unknown(path, m.Unknown)
	l.broken = r.mistakes > before
	return l
}

// text sets t to s. An empty s counts as not stated, because protobuf does not distinguish the two.
func (r *reader) text(t *text, path, s string) {
	if s != "" {
		t.given = given[string]{r.at(path), s, true}
	}
}

func (r *reader) flag(f *boolean, path string, value bool) {
	if value {
		f.given = given[bool]{r.at(path), true, true}
	}
}

// unknown warns, because a later version of the protocol may define the fields.
func (r *reader) unknown(path string, fields []int32) {
	for _, field := range fields {
		r.warn(r.at(path), "field %d is not known to this version and has no effect", field)
	}
}

func finite(v any) bool {
	switch v := v.(type) {
	case float64:
		return !math.IsNaN(v) && !math.IsInf(v, 0)
	case []any:
		return !slices.ContainsFunc(v, func(item any) bool { return !finite(item) })
	case map[string]any:
		for _, item := range v {
			if !finite(item) {
				return false
			}
		}
	}
	return true
}
