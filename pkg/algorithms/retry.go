package algorithms

// Retry is the time after which a denied request can succeed. The zero Retry means at once. It is for Stores and
// for wrappers that combine Decisions.
type Retry struct {
	After Micros
	// Never means that the request can never succeed; After is then 0.
	Never bool
}

// Retry returns the time after which the same charge can succeed. It is zero if the charge is allowed, unless its
// limit charged it although another bucket of the group denied (see TakeAll).
func (d *Decision) Retry() Retry { return Retry{d.RetryAfter, d.Never} }

// Both returns the time after which r and other can both succeed. It combines buckets that are charged together.
func (r Retry) Both(other Retry) Retry {
	if r.Never || other.Never {
		return Retry{Never: true}
	}
	return Retry{After: max(r.After, other.After)}
}

// Either returns the earlier of r and other. It combines alternatives, of which one must succeed.
func (r Retry) Either(other Retry) Retry {
	if r.Never || !other.Never && other.After < r.After {
		return other
	}
	return r
}
