package limiter

import (
	"fmt"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
)

// weigh is what costs come to by the weights of p. The error is an *AskError.
func weigh(p *descriptors.Policy, costs map[string]int64) (int64, error) {
	w := p.Extra().Weights
	if w == nil {
		return 0, &RequestError{Problem: fmt.Sprintf("limit %q has no weights, so it cannot take costs; send count, or add weights to the limit", descriptors.Printable(p.Name))}
	}
	cost, err := w.Cost(costs)
	if err != nil {
		return 0, &RequestError{Problem: fmt.Sprintf("limit %q: costs: %v", descriptors.Printable(p.Name), err)}
	}
	return cost, nil
}

// Weigh is what costs of kinds of units come to by the weights of a named limit, which may have come with a request
// (inline). An error is an *AskError or ErrNoConfig.
func (l *Limiter) Weigh(domain, name string, inline *descriptors.Policy, costs map[string]int64) (int64, error) {
	s := l.Current()
	if s == nil {
		return 0, ErrNoConfig
	}
	_, p, err := s.limit(domain, &NamedCharge{Name: name, Inline: inline})
	if err != nil {
		return 0, err
	}
	return weigh(p, costs)
}
