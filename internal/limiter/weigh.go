package limiter

import (
	"fmt"

	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// weightedCost returns the cost in units of the numbers in costs, by the weights of p. The error is a *RequestError.
func weightedCost(p *Policy, costs map[string]int64) (int64, error) {
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
