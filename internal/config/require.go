package config

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/spelling"
)

// Each item of the list is a key, or a list of alternative keys.
func (r *requirements) read(p *parser, key string, n *yaml.Node) {
	before := p.mistakes
	v := follow(n)
	if v.Kind != yaml.SequenceNode || len(v.Content) == 0 {
		is := describe(n)
		if v.Kind == yaml.SequenceNode {
			is = "an empty list"
		}
		p.mistake(p.at(n), "%s must be a list of keys, such as [user], or [[user, team], model] where user or team is enough, but is %s", key, is)
		r.set(p, n, nil, false)
		return
	}
	var all [][]text
	for _, item := range v.Content {
		alternatives := []*yaml.Node{item}
		if list := follow(item); list.Kind == yaml.SequenceNode {
			if alternatives = list.Content; len(alternatives) == 0 {
				p.mistake(p.at(item), "%s has an empty list of alternatives; write keys, or remove it", key)
			}
		}
		var keys []text
		for _, one := range alternatives {
			var t text
			if t.read(p, key, one); t.ok && t.value == "" {
				p.mistake(p.at(one), "%s names an empty key; write the key of a descriptor's entry", key)
			}
			keys = append(keys, t)
		}
		all = append(all, keys)
	}
	r.set(p, n, all, p.mistakes == before)
}

func (r *requirements) compiled() (all []limiter.Requirement) {
	for _, alternatives := range r.value {
		var keys limiter.Requirement
		for _, t := range alternatives {
			keys = append(keys, t.value)
		}
		all = append(all, keys)
	}
	return all
}

func (c *compiler) warnRequire(d *domain) {
	if !d.require.ok || c.incomplete {
		return
	}
	known, first, patterns := map[string]bool{}, map[string]bool{}, false
	for _, doc := range d.docs {
		list := doc.descriptors()
		for _, one := range list {
			first[one.Key.value] = true
		}
		addEntryKeys(list, known)
	}
	for key := range known {
		patterns = patterns || strings.Contains(key, "*")
	}
	required := map[string]bool{}
	for _, alternatives := range d.require.value {
		for _, t := range alternatives {
			required[t.value] = true
			if !known[t.value] && !patterns {
				c.warn(t.at, "require: no descriptor of domain %q has the key %q%s", d.Name, t.value, spelling.DidYouMean(t.value, sortedKeys(known)))
			}
		}
	}
	overHTTP := slices.ContainsFunc(d.docs, func(doc *document) bool { return doc.Auth.value != nil })
	for key := range first {
		if !required[key] {
			return
		}
	}
	if !overHTTP && len(first) > 0 {
		c.warn(d.require.at, "require: every descriptor of domain %q starts with a required key, and Envoy does not call rlsidecar if it can build no descriptor, "+
			"so it allows requests without the key; add a descriptor that it can always build, in Envoy as a generic_key, and here as \"- key: generic_key\"", d.Name)
	}
}

func addEntryKeys(list []*descriptor, known map[string]bool) {
	for _, one := range list {
		known[one.Key.value] = true
		addEntryKeys(one.Descriptors.value, known)
	}
}
