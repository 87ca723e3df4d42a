package algorithms

// Retry says when a denied request can succeed.
type Retry struct {
	After Micros // the exact time until then
	Never bool   // it cannot; After is 0
}

// Retry returns when the cost that d denied is available. It is zero if d allows the cost.
func (d *Decision) Retry() Retry {
	if d.Allowed {
		return Retry{}
	}
	return Retry{d.RetryAfter, d.Never}
}

// And returns when both can succeed: buckets that are charged together.
func (r Retry) And(o Retry) Retry {
	if r.Never || o.Never {
		return Retry{Never: true}
	}
	return Retry{After: max(r.After, o.After)}
}

// Or returns when one of the two can succeed: alternatives.
func (r Retry) Or(o Retry) Retry {
	if r.Never || !o.Never && o.After < r.After {
		return o
	}
	return r
}
