package stores

import (
	"sync"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Route is one of the Stores to which a Router sends groups.
type Route struct{ Store backend.Store }

// Router is a Store that sends each group of a batch to one of several Stores. All groups for one Store form
// one batch. If all groups of a batch are for one Store, the charges are not copied.
type Router struct {
	find      func(group []backend.Charge) *Route
	ended     func(b *backend.Batch)
	divisions sync.Pool
}

// NewRouter makes a Router. find returns the Route of a group, and must not block. If ended is not nil, the
// Router calls it with each batch that a Store has decided, before Done of the batch that was submitted.
func NewRouter(find func(group []backend.Charge) *Route, ended func(b *backend.Batch)) *Router {
	r := &Router{find: find, ended: ended}
	r.divisions.New = func() any {
		d := &division{router: r}
		d.decided = func(p *divisionPart, from, to int) { p.inner.pass(d.outer, from, to) }
		d.done = d.conclude
		return d
	}
	return r
}

// Submit implements Store.
func (r *Router) Submit(b *backend.Batch) {
	if len(b.Charges) == 0 {
		b.Done(b)
		return
	}
	d := r.divisions.Get().(*division)
	d.outer = b
	// All routes are found before any charge is copied. Each search reads memory that is rarely in a cache. In
	// a short loop, the processor waits for several of these reads at the same time.
	several := false
	for at := 0; at < len(b.Charges); {
		n := backend.GroupLen(b.Charges[at:])
		d.routes = append(d.routes, r.find(b.Charges[at:at+n]))
		several = several || d.routes[len(d.routes)-1] != d.routes[0]
		at += n
	}
	if !several {
		p := d.part(d.routes[0])
		p.batch = *b
		p.batch.Done = p.done
		d.pendingParts.Store(1)
		p.route.Store.Submit(&p.batch)
		return
	}
	at := 0
	for _, route := range d.routes {
		group := b.Charges[at:][:backend.GroupLen(b.Charges[at:])]
		d.part(route).inner.add(group, at)
		at += len(group)
	}
	d.submit()
}

// division is a batch in flight in one or several Stores. Divisions are reused.
type division struct {
	router       *Router
	outer        *backend.Batch
	parts        []*divisionPart
	usedParts    int
	routes       []*Route // of each group; empty in Parts
	pendingParts atomic.Int32

	// decided is called with decisions that become known before the last part ends: p.inner.decisions[from:to].
	decided func(p *divisionPart, from, to int)
	done    func() // called when the last part has ended
}

// divisionPart has the charges of a batch that are for one Store.
type divisionPart struct {
	route   *Route
	batch   backend.Batch
	inner   excerpt // empty if the batch shares the slices of the outer one
	done    func(*backend.Batch)
	onKnown func(from, to int)
}

func (d *division) part(route *Route) *divisionPart {
	for _, p := range d.parts[:d.usedParts] {
		if p.route == route {
			return p
		}
	}
	if d.usedParts == len(d.parts) {
		p := &divisionPart{}
		p.done = func(*backend.Batch) { d.ended(p) }
		p.onKnown = func(from, to int) { d.decided(p, from, to) }
		d.parts = append(d.parts, p)
	}
	p := d.parts[d.usedParts]
	d.usedParts++
	p.route = route
	return p
}

// submit submits the parts of d. When it returns, d may already be reused for another batch.
func (d *division) submit() {
	parts, b := d.parts[:d.usedParts], d.outer
	for _, p := range parts {
		p.inner.prepare()
		p.batch = backend.Batch{
			Charges: p.inner.charges, Decisions: p.inner.decisions, Known: p.inner.known, OnKnown: p.onKnown,
			Deadline: b.Deadline, Detached: b.Detached, Source: b.Source, Done: p.done,
		}
	}
	d.pendingParts.Store(int32(len(parts)))
	for _, p := range parts {
		p.route.Store.Submit(&p.batch)
	}
}

// ended is called when p has ended. If other parts have not ended, ended passes on the decisions of p that were not
// known before. Otherwise it ends the whole batch.
func (d *division) ended(p *divisionPart) {
	if ended := d.router.ended; ended != nil {
		ended(&p.batch)
	}
	if d.pendingParts.Load() > 1 { // otherwise this is the last part
		for from, to := range p.inner.groups() {
			if !p.batch.IsKnown(from) {
				d.decided(p, from, to)
			}
		}
	}
	if d.pendingParts.Add(-1) == 0 {
		d.done()
	}
}

// conclude is the done function of the divisions of a Router. It ends the batch. Parts has another done function.
func (d *division) conclude() {
	b := d.outer
	for _, p := range d.parts[:d.usedParts] {
		p.inner.fill(b, 0, len(p.inner.charges))
	}
	d.reset()
	d.router.divisions.Put(d)
	b.Done(b)
}

func (d *division) reset() {
	for _, p := range d.parts[:d.usedParts] {
		p.inner.reset()
		p.batch, p.route = backend.Batch{}, nil
	}
	d.outer, d.usedParts, d.routes = nil, 0, d.routes[:0]
}
