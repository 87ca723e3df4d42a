package stores

import (
	"sync"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Route is one of the Stores to which a Router sends groups.
type Route struct{ Store backend.Store }

// Router is a Store that sends each group of a batch to one of several Stores. All groups for one Store form
// one batch. A batch is not copied if all its groups are for one Store.
type Router struct {
	find      func(group []backend.Charge) *Route
	ended     func(b *backend.Batch)
	divisions sync.Pool
}

// NewRouter makes a Router. find returns the Route of a group, and must not block. If ended is not nil, the
// Router calls it with each batch that a Store has decided, before the caller of Submit gets the decisions.
func NewRouter(find func(group []backend.Charge) *Route, ended func(b *backend.Batch)) *Router {
	r := &Router{find: find, ended: ended}
	r.divisions.New = func() any { return &division{router: r} }
	return r
}

// Submit implements Store.
func (r *Router) Submit(b *backend.Batch) {
	if len(b.Charges) == 0 {
		b.Done(b)
		return
	}
	n := backend.GroupLen(b.Charges)
	route := r.find(b.Charges[:n])
	for n < len(b.Charges) {
		more := backend.GroupLen(b.Charges[n:])
		if other := r.find(b.Charges[n : n+more]); other != route {
			r.divide(b, n, route, other)
			return
		}
		n += more
	}
	if r.ended == nil {
		route.Store.Submit(b)
		return
	}
	d := r.divisions.Get().(*division)
	d.outer = b
	p := d.part(route)
	p.batch = *b
	p.batch.Done = p.done
	d.submit()
}

// divide submits b as several batches. The first same charges of b belong to route, and the group that
// follows belongs to other.
func (r *Router) divide(b *backend.Batch, same int, route, other *Route) {
	d := r.divisions.Get().(*division)
	d.outer = b
	// All routes are found before any charge is copied. Each search reads memory that is rarely in a cache. In
	// a short loop, the processor waits for several of these reads at the same time.
	d.routes = append(d.routes[:0], other)
	for at := same + backend.GroupLen(b.Charges[same:]); at < len(b.Charges); {
		n := backend.GroupLen(b.Charges[at:])
		d.routes = append(d.routes, r.find(b.Charges[at:at+n]))
		at += n
	}
	d.part(route).inner.add(b.Charges[:same], 0)
	at := same
	for _, route := range d.routes {
		group := b.Charges[at:][:backend.GroupLen(b.Charges[at:])]
		d.part(route).inner.add(group, at)
		at += len(group)
	}
	for _, p := range d.parts[:d.used] {
		p.inner.prepare()
		p.batch = backend.Batch{
			Charges: p.inner.charges, Decisions: p.inner.decisions, Known: p.inner.known, OnKnown: p.onKnown,
			Deadline: b.Deadline, Detached: b.Detached, Waits: b.Waits && d.used == 1, Source: b.Source, Done: p.done,
		}
	}
	d.submit()
}

// division is a batch in flight in one or several Stores. Divisions are reused.
type division struct {
	router  *Router
	outer   *backend.Batch
	parts   []*divisionPart
	used    int          // the number of parts in use
	routes  []*Route     // the routes of the groups; used only by divide
	pending atomic.Int32 // the number of parts that have not ended
}

// divisionPart has the groups of a batch that are for one Store.
type divisionPart struct {
	division *division
	route    *Route
	batch    backend.Batch
	inner    excerpt // empty if the batch shares the slices of the outer one
	done     func(*backend.Batch)
	onKnown  func(from, to int)
}

// part returns the part for route. It makes the part if there is none.
func (d *division) part(route *Route) *divisionPart {
	for _, p := range d.parts[:d.used] {
		if p.route == route {
			return p
		}
	}
	if d.used == len(d.parts) {
		p := &divisionPart{division: d}
		p.done = p.ended
		p.onKnown = func(from, to int) { p.inner.pass(d.outer, from, to) }
		d.parts = append(d.parts, p)
	}
	p := d.parts[d.used]
	d.used++
	p.route = route
	return p
}

// submit submits all parts. When it returns, d may already be reused for another batch.
func (d *division) submit() {
	n := d.used
	d.pending.Store(int32(n))
	for i := range n {
		p := d.parts[i]
		p.route.Store.Submit(&p.batch)
	}
}

// ended is the Done function of a part's batch.
func (p *divisionPart) ended(*backend.Batch) {
	d := p.division
	if ended := d.router.ended; ended != nil {
		ended(&p.batch)
	}
	if d.pending.Load() > 1 {
		p.inner.pass(d.outer, 0, len(p.inner.charges))
	} else { // no part is left, so the whole batch ends now
		p.inner.fill(d.outer)
	}
	p.inner.reset()
	p.batch, p.route = backend.Batch{}, nil
	if d.pending.Add(-1) > 0 {
		return
	}
	b := d.outer
	d.outer, d.used = nil, 0
	d.router.divisions.Put(d)
	b.Done(b)
}
