package limiter

import (
	"errors"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func (c *Call) fold() {
	for range max(len(c.Descriptors), len(c.Limits)) {
		c.Statuses = append(c.Statuses, Status{Result: -1})
	}
	c.foldSettlements()
	c.foldReturns()
	c.deniedUntilExpiry()
	quotas, quotasDenied := 0, 0
	denied, quotaFailed := false, false // a limit denies by itself without an error to answer (failed); a quota limit only with one
	for i := range c.Results {
		r := &c.Results[i]
		if r.charge >= 0 {
			r.Decision = c.decisions[r.charge]
			if r.payer > 0 && !r.local {
				c.foldAlternatives(r)
			}
			hideBlocked(&r.Decision)
			if r.isBlocked() && r.Decision.Err == nil { // a blocked Result has a charge only if an operator inspects the bucket
				r.block(c.adjusted.now())
			}
			c.Replayed = c.Replayed || r.Decision.Replayed
			r.Outcome = c.outcome(r)
		} else if r.Policy == nil {
			r.Outcome, r.Decision.Never = Denied, true
		}
		denies := r.Outcome.Denies()
		failed := denies && r.Decision.Err != nil && r.Policy.OnFailure == Error
		if !c.isQuota(r) {
			c.Denied, denied = c.Denied || denies, denied || denies && !failed
		} else if quotas++; denies {
			quotasDenied, quotaFailed = quotasDenied+1, quotaFailed || failed
		}
		c.updateStatus(i)
	}
	if c.config.Modes.Quota {
		quotas += c.descriptorsWithoutLimit()
	}
	if c.quotasDeny = quotas > 0 && quotas == quotasDenied; c.quotasDeny {
		c.Denied = true
	}
	if c.Missing != nil && !c.Inspect {
		c.denyMissing()
	}
	if c.config.Modes.Shadow && !c.blocked {
		c.WouldDeny, c.Denied, c.Err = c.Denied, false, nil
	}
	if c.Err != nil && (!c.Denied || denied || c.quotasDeny && !quotaFailed) {
		c.Err = nil // the error changes nothing, or could make a proxy allow a request that other limits deny
	}
	if c.Denied {
		c.setRetryAfter()
	} else if c.Request.MaxDelay > 0 {
		c.setDelay()
	}
}

// hideBlocked makes d report 0 remaining units while a penalty blocks the bucket, because no units are
// available before the block ends.
func hideBlocked(d *backend.Decision) {
	if d.Blocked > 0 {
		d.Remaining = 0
	}
}

func (c *Call) isQuota(r *Result) bool {
	if c.config.Modes.Quota {
		return r.Outcome != Unlimited && !r.isBlocked()
	}
	return r.Policy != nil && r.Policy.Quota && r.charge >= 0 && r.Outcome != Unlimited
}

func (c *Call) descriptorsWithoutLimit() (n int) {
	for i := range c.Statuses {
		if c.Statuses[i].Result < 0 {
			n++
		}
	}
	return n
}

func (c *Call) outcome(r *Result) Outcome {
	switch d := &r.Decision; {
	case r.isUnlimited() || r.payer > 0 && c.payers[r.payer-1].isUnlimited(): // it has a charge because an operator inspects the bucket
		d.RetryAfter, d.Blocked, d.Never = 0, 0, false
		return Unlimited
	case d.Err != nil && errors.Is(d.Err, backend.ErrTooLarge): // the request itself caused the error, so on_backend_failure does not apply
		*d = backend.Decision{Decision: algorithms.Decision{Never: true}}
		return Denied
	case d.Err != nil:
		return c.failed(r, d)
	case r.local && d.Allowed || r.local && r.Policy.Shadow:
		c.Failed = true
		return FailedAllowed
	case r.local:
		c.Failed = true
		return FailedDenied
	case d.Allowed:
		return Allowed
	case r.Policy.Shadow:
		return Shadowed
	default:
		return Denied
	}
}

func (c *Call) failed(r *Result, d *backend.Decision) Outcome {
	c.Failed = true
	p := r.Policy
	switch {
	case r.settle: // on_backend_failure does not apply, because the caller must repeat the settlement
		return FailedDenied
	case p.Shadow || p.OnFailure == Allow:
		return FailedAllowed
	case p.OnFailure == Error:
		c.Err = d.Err
		return FailedDenied
	default: // on_backend_failure is deny, or it is local and the local bucket could not decide either
		return FailedDenied
	}
}

// updateStatus makes Result i the Status of its descriptor if Result i is more restrictive than the current
// one. A denial is more restrictive than an allowance. Of two denials, the one with the longer wait is more
// restrictive, and Never is the longest wait. Of two allowances, the one with fewer remaining units is more
// restrictive, and Unlimited is the least restrictive.
func (c *Call) updateStatus(i int) {
	r := &c.Results[i]
	if r.Outcome == Replaced {
		return
	}
	s := &c.Statuses[r.Descriptor]
	denies := r.Outcome.Denies()
	if s.Result >= 0 {
		was := &c.Results[s.Result]
		switch {
		case denies != s.Denied:
			if s.Denied {
				return
			}
		case denies:
			if was.Decision.Never || !r.Decision.Never && r.Decision.RetryAfter <= was.Decision.RetryAfter {
				return
			}
		case r.Outcome == Unlimited || was.Outcome != Unlimited && r.Decision.Remaining >= was.Decision.Remaining:
			return
		}
	}
	s.Result, s.Denied = i, denies
}

func (c *Call) setDelay() {
	for i := range c.Results {
		if r := &c.Results[i]; r.Policy != nil && r.Policy.Extra().MaxDelay > 0 && r.Outcome == Allowed {
			c.Verdict.Delay = max(c.Verdict.Delay, min(r.Decision.Wait, c.Request.MaxDelay))
		}
	}
}

func (c *Call) setRetryAfter() {
	retry, quotas := algorithms.Retry{}, algorithms.Retry{Never: true} // one quota limit that allows the request is enough
	busy, unknown := false, false
	for i := range c.Results {
		// A limit that was charged although another one denied is allowed, and also has a retry time.
		r := &c.Results[i]
		if !c.Denies(r) && !r.Decision.Allowed {
			continue
		}
		busy = busy || r.Policy != nil && r.Policy.Limit.Kind == algorithms.Concurrency
		switch one := r.Decision.Retry(); {
		case !c.quotasDeny || !c.isQuota(r):
			retry = retry.Both(one)
		case one == algorithms.Retry{}:
			unknown = true
		default:
			quotas = quotas.Either(one)
		}
	}
	if c.quotasDeny && !(unknown && quotas.Never) {
		retry = retry.Both(quotas)
	}
	if c.Never = c.Never || retry.Never; !c.Never {
		c.RetryAfter = retry.After
	}
	c.Busy = busy && !c.Never && !c.Failed && c.RetryAfter == 0
}
