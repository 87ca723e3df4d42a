package config

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/weights"
)

// read reads a mapping of names to weights. A number with a decimal point is read from its text, so that it
// is exact.
func (w *weightMap) read(p *parser, key string, n *yaml.Node) {
	before := p.mistakes
	byName := map[string]weights.Weight{}
	for _, e := range p.entries(n, key, false) {
		v, name := follow(e.value), e.key.Value
		tag := v.ShortTag()
		if v.Kind != yaml.ScalarNode || tag != "!!int" && tag != "!!float" && tag != "!!str" {
			p.mistake(p.at(e.value), "%s: the weight of %q must be a number such as 4, 0.1 or 1/10, but is %s", key, short(name), describe(v))
			continue
		}
		weight, err := weights.Parse(v.Value)
		if err != nil {
			p.mistake(p.at(e.value), "%s: the weight of %q: %v", key, short(name), err)
			continue
		}
		if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
			p.mistake(p.at(e.key), "%s: the name %q must be printable ASCII", key, short(name))
			continue
		}
		byName[name] = weight
	}
	if p.mistakes > before {
		w.set(p, n, nil, false)
		return
	}
	compiled, err := weights.Compile(byName)
	if err != nil {
		p.mistake(p.at(n), "%s: %v", key, err)
	}
	w.set(p, n, compiled, err == nil)
}

// mostEnvoyHits is the largest number of hits in a descriptor that Envoy sends. Envoy omits descriptors with
// more hits.
const mostEnvoyHits = 1e9

func (c *compiler) warnHits(at place, p *draft) {
	if !p.Unlimited && p.Limit.Capacity > 1000*mostEnvoyHits {
		c.warn(at, "Envoy leaves out a descriptor with more than 1000000000 hits, so that it would not charge a request that costs more; "+
			"this limit holds %d units: count in larger units", p.Limit.Capacity)
	}
}
