// Package migrate reports what rlsidecar does differently for a configuration of the reference server,
// envoyproxy/ratelimit.
package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

// Kind says how rlsidecar treats what a Note describes.
type Kind string

const (
	Refused Kind = "refused" // rlsidecar rejects it; the reference server may reject it, too
	Differs Kind = "differs" // rlsidecar accepts it, with another effect
)

// Note is a difference that an operator should know before the migration.
type Note struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
}

// String returns file:line:column: kind: message.
func (n Note) String() string {
	return fmt.Sprintf("%s:%d:%d: %s: %s", n.File, n.Line, n.Column, n.Kind, n.Message)
}

// Review returns the notes for files, which are one configuration.
func Review(files []config.File) []Note {
	var notes []Note
	for _, f := range files {
		r := &review{file: f.Name}
		docs, _ := config.Documents(f) // Compile reports mistakes in the syntax
		for i, doc := range docs {
			if doc.Kind == yaml.MappingNode {
				r.document(doc, i)
			}
		}
		notes = append(notes, r.notes...)
	}
	_, problems := config.Compile(files, config.Options{})
	for _, p := range problems {
		// Some mistakes already have a more detailed note at the same place.
		noted := slices.ContainsFunc(notes, func(n Note) bool {
			return n.Kind == Refused && n.File == p.File && n.Line == p.Line && n.Column == p.Column
		})
		if !p.Warning && !noted {
			notes = append(notes, Note{p.File, p.Line, p.Column, Refused, p.Message})
		}
	}
	order := map[string]int{}
	for i, f := range files {
		order[f.Name] = i
	}
	slices.SortStableFunc(notes, func(a, b Note) int {
		return cmp.Or(order[a.File]-order[b.File], a.Line-b.Line, a.Column-b.Column)
	})
	return notes
}

type level struct {
	keys  []string // the keys that have a meaning for the reference server at this level
	below map[string]*level
}

var (
	replaces   = &level{keys: []string{"name"}}
	limit      = &level{keys: []string{"unit", "requests_per_unit", "unlimited", "name", "replaces"}, below: map[string]*level{"replaces": replaces}}
	descriptor = &level{keys: []string{
		"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata",
	}}
	top = &level{keys: []string{"domain", "descriptors"}}
)

func init() {
	descriptor.below = map[string]*level{"rate_limit": limit, "descriptors": descriptor}
	top.below = map[string]*level{"descriptors": descriptor}
}

// ignored reports whether the reference server accepts key at l and ignores it, because the key belongs to another
// level.
func (l *level) ignored(key string) bool {
	if slices.Contains(l.keys, key) {
		return false
	}
	for _, other := range []*level{top, descriptor, limit, replaces} {
		if slices.Contains(other.keys, key) {
			return true
		}
	}
	return false
}

// each calls f for n if n is a mapping, or for each mapping in the list n.
func each(n *yaml.Node, f func(*yaml.Node)) {
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		items = n.Content
	}
	for _, item := range items {
		if item.Kind == yaml.MappingNode {
			f(item)
		}
	}
}

func find(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// again reports whether a later key of the mapping n equals the key at i. It reports false for the merge key <<,
// which may occur repeatedly.
func again(n *yaml.Node, i int) bool {
	for j := i + 2; j+1 < len(n.Content); j += 2 {
		if n.Content[j].Value == n.Content[i].Value && n.Content[i].Value != "<<" {
			return true
		}
	}
	return false
}

func names(list *yaml.Node) (keys []string) {
	each(list, func(n *yaml.Node) {
		if key := find(n, "key"); key != nil {
			keys = append(keys, key.Value)
		}
	})
	return keys
}

// splits returns one of keys, shorter, if key has the form shorter_value. The reference server joins a key and its value
// by "_", so it cannot distinguish the entry shorter=value from key. ok is false if there is no such key.
func splits(key string, keys []string) (shorter string, ok bool) {
	for _, k := range keys {
		if k != "" && strings.HasPrefix(key, k+"_") {
			return k, true
		}
	}
	return "", false
}
