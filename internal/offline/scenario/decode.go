package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

type decoder struct {
	file     string
	problems config.Problems
}

func place(n *yaml.Node) Place { return Place{n.Line, n.Column} }

func (d *decoder) mistake(n *yaml.Node, format string, args ...any) {
	d.problems = append(d.problems, config.Problem{
		File: d.file, Line: n.Line, Column: n.Column, Message: fmt.Sprintf(format, args...),
	})
}

type fields map[string]func(value *yaml.Node)

func (d *decoder) mapping(n *yaml.Node, what string, known fields, required ...string) {
	n = aliased(n)
	if n.Kind != yaml.MappingNode {
		d.mistake(n, "%s must be a mapping of keys to values", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read := known[key.Value]
		switch {
		case read == nil:
			d.mistake(key, "%s has no key %q; it has %s", what, key.Value, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case seen[key.Value]:
			d.mistake(key, "%s has %s twice", what, key.Value)
		default:
			seen[key.Value] = true
			read(aliased(value))
		}
	}
	for _, key := range required {
		if !seen[key] {
			d.mistake(n, "%s needs %s", what, key)
		}
	}
}

func aliased(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func (d *decoder) list(n *yaml.Node, what string, item func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		d.mistake(n, "%s must be a list", what)
		return
	}
	for _, one := range n.Content {
		item(aliased(one))
	}
}

func (d *decoder) texts(n *yaml.Node, what string) (all []string) {
	if n.Kind != yaml.SequenceNode {
		return []string{d.text(n, what)}
	}
	d.list(n, what, func(one *yaml.Node) { all = append(all, d.text(one, what)) })
	return all
}

func (d *decoder) text(n *yaml.Node, what string) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		d.mistake(n, "%s must be text", what)
		return ""
	}
	return n.Value
}

func (d *decoder) integer(n *yaml.Node, what string) int64 {
	i, err := strconv.ParseInt(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil {
		d.mistake(n, "%s must be a whole number", what)
	}
	return i
}

func (d *decoder) boolean(n *yaml.Node, what string) bool {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
		d.mistake(n, "%s must be true or false", what)
	}
	return strings.EqualFold(n.Value, "true") // YAML also has True and TRUE
}

func (d *decoder) span(n *yaml.Node, what string) algorithms.Micros {
	at, err := duration.Parse(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil && n.Value != "0s" {
		d.mistake(n, "%s must be a time such as 0s, 200ms, 1m30s or 1d, to the microsecond", what)
	}
	return at
}

func (d *decoder) moment(n *yaml.Node, what string) algorithms.Micros {
	t, err := time.Parse(time.RFC3339Nano, n.Value)
	at := algorithms.Micros(t.UnixMicro())
	if n.Kind != yaml.ScalarNode || err != nil || at < 0 || at > algorithms.MaxTime {
		d.mistake(n, "%s must be a moment such as 2026-01-01T00:00:00Z", what)
		return 0
	}
	return at
}
