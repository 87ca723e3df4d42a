package limiter

import "github.com/rlsidecar/rlsidecar/pkg/algorithms"

// retry is the time after which a denied request can succeed.
type retry struct {
	after algorithms.Micros
	never bool // the request can never succeed; after is then 0
}

func retryOf(d *algorithms.Decision) retry {
	if d.Allowed {
		return retry{}
	}
	return retry{d.RetryAfter, d.Never}
}

// both returns the time after which r and other can both succeed. It combines buckets that are charged together.
func (r retry) both(other retry) retry {
	if r.never || other.never {
		return retry{never: true}
	}
	return retry{after: max(r.after, other.after)}
}

// either returns the earlier of r and other. It combines alternatives, of which one must succeed.
func (r retry) either(other retry) retry {
	if r.never || !other.never && other.after < r.after {
		return other
	}
	return r
}
