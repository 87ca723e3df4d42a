package ratelimit

import (
	"errors"
	"fmt"

	"github.com/rlsidecar/rlsidecar/internal/weights"
)

// ErrNoWeights means that costs by kind were passed (Limiter.Cost, Request.Costs) for a limit without Weights.
var ErrNoWeights = errors.New("the limit has no weights")

// Cost returns the units that a request costs, by the Weights of a limit. costs has numbers of units by
// kind, such as input and output tokens; their weighted sum is rounded up once. Pass the result to AllowN,
// ReserveN or Settle. An unknown kind, a negative number and a sum above 2^53 are errors.
func (l *Limiter) Cost(name string, costs map[string]int64) (int64, error) {
	m := l.named[name]
	if m == nil {
		return 0, unknown(name)
	}
	return m.cost(costs)
}

func (m *limit) cost(costs map[string]int64) (int64, error) {
	w := m.policy.Extra().Weights
	if w == nil {
		return 0, fmt.Errorf("limit %q: %w", m.policy.Name, ErrNoWeights)
	}
	cost, err := w.Cost(costs)
	if err != nil {
		return 0, fmt.Errorf("limit %q: costs: %w", m.policy.Name, err)
	}
	return cost, nil
}

func (l Limit) weights() (*weights.Weights, error) {
	if l.Weights == nil {
		return nil, nil //nolint:nilnil // none
	}
	byName := make(map[string]weights.Weight, len(l.Weights))
	for name, text := range l.Weights {
		w, err := weights.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("weights: the weight of %q: %w", name, err)
		}
		byName[name] = w
	}
	w, err := weights.Compile(byName)
	if err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	return w, nil
}
