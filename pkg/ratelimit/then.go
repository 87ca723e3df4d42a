package ratelimit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// A limit with "then" names another limit, the payer. The payer is charged for the requests that the limit does
// not allow. Only package limitsfile makes such limits. Both limits are charged in one step. The limiter of
// sidecars can do that and limiter.Direct cannot, so the limiter of sidecars decides such calls.

// bindPayers makes each limit with "then" refer to the compiled limit that pays. It returns an error for each
// payer that is missing.
func bindPayers(named map[string]*limit) (problems []error) {
	for _, name := range slices.Sorted(maps.Keys(named)) {
		m := named[name]
		then := m.then()
		if then == nil {
			continue
		}
		payer := named[then.Name]
		if payer == nil {
			problems = append(problems, fmt.Errorf("ratelimit: limit %q: limit %q, which pays for what it does not allow, is not in Config.Limits; add it", name, then.Name))
			continue
		}
		extras := *m.policy.Extras // shared by all Limiters with this configuration
		extras.Then = &payer.policy
		m.policy.Extras = &extras
	}
	return problems
}

// then returns the limit that pays for what m does not allow, or nil.
func (m *limit) then() *limiter.Policy { return m.policy.Extra().Then }

func (l *Limiter) oneOrPayer(ctx context.Context, m *limit, key []string, terms algorithms.Charge) (Result, error) {
	c := limiter.Call{Request: limiter.Request{
		Domain: l.domain, DryRun: terms.DryRun,
		Limits: []limiter.NamedCharge{{Name: m.policy.Name, Key: clone(key), Count: terms.Cost}},
	}}
	if err := l.limiter.Check(ctx, &c); err != nil {
		return Result{}, err
	}
	_, result, err := l.outcomeOf(m, &c.Results[0])
	return result, err
}

// clone returns a copy of key, so that the keys of calls that limiter.Direct decides stay on the stack.
func clone(key []string) (copied []string) {
	for _, value := range key {
		copied = append(copied, strings.Clone(value))
	}
	return copied
}

// outcomeOf converts r, the result of a request for limit m. It returns the limit that was charged: m, or its payer.
// The Result and the error are those of that limit.
func (l *Limiter) outcomeOf(m *limit, r *limiter.Result) (*limit, Result, error) {
	if r.For == nil {
		result, err := m.outcome(&r.Decision)
		return m, result, err
	}
	payer := l.named[r.Policy.Name]
	result, err := payer.outcome(&r.Decision)
	result.Payer = payer.policy.Name
	return payer, result, err
}
