package migrate

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

type review struct {
	file   string
	notes  []Note
	limits int // the number of limits in the current document that can deny
}

func (r *review) note(at *yaml.Node, kind Kind, format string, args ...any) {
	r.notes = append(r.notes, Note{r.file, at.Line, at.Column, kind, fmt.Sprintf(format, args...)})
}

func (r *review) document(root *yaml.Node, i int) {
	if i > 0 {
		r.note(root, Differs, "the reference server reads only the first document of a file, and rlsidecar reads this one too; remove it if it must have no effect")
	}
	r.limits = 0
	r.mapping(root, top)
	at := root
	for k := 0; k+1 < len(root.Content); k += 2 {
		if root.Content[k].Value == "domain" {
			at = root.Content[k]
		}
	}
	if r.limits > 1 && find(root, "consume") == nil {
		r.note(at, Differs, "a denied request consumes nothing from any of its limits; in the reference server it consumes from all. Write \"consume: each\" to keep that")
	}
	if r.limits > 0 && find(root, "on_backend_failure") == nil {
		r.note(at, Differs, "requests are denied while Redis is unreachable; in the reference server they are errors, and the proxy's failure mode decides. Write \"on_backend_failure: error\" to keep that")
	}
}

func (r *review) mapping(n *yaml.Node, l *level) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case l.ignored(key.Value):
			r.note(key, Refused, "%q has no effect here in the reference server, and rlsidecar rejects it; remove it, or move it to its proper level", key.Value)
			continue
		case again(n, i):
			// Compile reports the second occurrence. A note at that place replaces its message, see Review.
			r.note(second(n, i), Refused, "%q occurs twice; the reference server uses the last one, and rlsidecar rejects both; remove the one in line %d", key.Value, key.Line)
		}
		r.key(key, value, l)
		if below := l.below[key.Value]; below != nil {
			siblings := names(value)
			each(value, func(n *yaml.Node) {
				if below == descriptor {
					r.descriptor(n, siblings)
				}
				r.mapping(n, below)
			})
		}
	}
}

func (r *review) key(key, value *yaml.Node, l *level) {
	switch {
	case l == descriptor && key.Value == "rate_limit":
		if unlimited := find(value, "unlimited"); unlimited == nil || unlimited.Value != "true" {
			r.limits++
		}
	case (key.Value == "detailed_metric" || key.Value == "value_to_metric") && value.Value == "true":
		r.note(key, Differs, "at most 10,000 metric series are named after values of requests; further values count under the configured name")
	}
}

// descriptor adds a note about a key that matches more entries in the reference server.
func (r *review) descriptor(n *yaml.Node, siblings []string) {
	key := find(n, "key")
	if key == nil || find(n, "value") != nil {
		return
	}
	if other, ok := splits(key.Value, siblings); ok {
		r.note(key, Differs, "in the reference server an entry %s=%s also matches this, before %q; here only the key %q does", other, key.Value[len(other)+1:], other, key.Value)
	}
}

// second returns the next occurrence of the key at i. There must be one.
func second(n *yaml.Node, i int) *yaml.Node {
	for j := i + 2; ; j += 2 {
		if n.Content[j].Value == n.Content[i].Value {
			return n.Content[j]
		}
	}
}
