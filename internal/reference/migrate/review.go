package migrate

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// review is the walk through one file.
type review struct {
	file   string
	notes  []Note
	limits int
}

func (r *review) note(at *yaml.Node, kind Kind, format string, args ...any) {
	r.notes = append(r.notes, Note{r.file, at.Line, at.Column, kind, fmt.Sprintf(format, args...)})
}

// document reviews the i-th of the file.
func (r *review) document(root *yaml.Node, i int) {
	if i > 0 {
		r.note(root, Differs, "the reference server reads the first document of a file only; here this one is in effect too: remove it if it is not meant to be")
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
		r.note(at, Differs, "a request that is denied consumes nothing here, of any of its limits; there it consumed of all. \"consume: each\" is that server's way")
	}
	if r.limits > 0 && find(root, "on_backend_failure") == nil {
		r.note(at, Differs, "while Redis is away requests are denied here; there they were errors, and the proxy's failure mode decided. \"on_backend_failure: error\" is that server's way")
	}
}

func (r *review) mapping(n *yaml.Node, l *level) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case l.ignored(key.Value):
			r.note(key, Refused, "%q has no effect at this place there, and is refused here: remove it, or move it to where it belongs", key.Value)
			continue
		case again(n, i):
			// The second is where `check` sees the mistake.
			r.note(second(n, i), Refused, "%q is given twice: there the last one counts, here it is a mistake; remove the one in line %d", key.Value, key.Line)
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

// key notes what a key in its place does differently.
func (r *review) key(key, value *yaml.Node, l *level) {
	switch {
	case l == descriptor && key.Value == "rate_limit":
		if unlimited := find(value, "unlimited"); unlimited == nil || unlimited.Value != "true" {
			r.limits++
		}
	case (key.Value == "detailed_metric" || key.Value == "value_to_metric") && value.Value == "true":
		r.note(key, Differs, "series named after requests are at most 10,000 here; what exceeds them is counted under the name that the configuration gives")
	}
}

// descriptor notes a key that means more there than it says.
func (r *review) descriptor(n *yaml.Node, siblings []string) {
	key := find(n, "key")
	if key == nil || find(n, "value") != nil {
		return
	}
	if other, ok := splits(key.Value, siblings); ok {
		r.note(key, Differs, "there this is also met by an entry %s=%s, before %q is; here by the key %q alone", other, key.Value[len(other)+1:], other, key.Value)
	}
}

// second is the next place of the key at i, which is there again.
func second(n *yaml.Node, i int) *yaml.Node {
	for j := i + 2; ; j += 2 {
		if n.Content[j].Value == n.Content[i].Value {
			return n.Content[j]
		}
	}
}
