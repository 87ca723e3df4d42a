package ratelimit

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const remembered = algorithms.Micros(Remembered / time.Microsecond)

// once is what makes asks ones that are taken once.
func (l *Limiter) once(id string, asks []Ask) *backend.Once {
	parts := make([]string, 0, 4*len(asks))
	for i := range asks {
		a := &asks[i]
		parts = append(parts, a.Name, strconv.FormatInt(a.Count, 10), strconv.FormatBool(a.Reserve), strconv.Itoa(len(a.Key)))
		parts = append(parts, a.Key...)
	}
	return &backend.Once{ID: backend.OnceID("call", l.domain, id), Of: backend.Digest(parts...), For: remembered}
}

// take asks for all, once or each time, or only looks.
func (l *Limiter) take(ctx context.Context, asks []Ask, look bool, once *backend.Once) ([]Answer, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	charges := make([]backend.Charge, 0, len(asks))
	of := make([]int, len(asks)) // the charge that an ask is part of
	for i := range asks {
		c, err := l.charge(&asks[i], look)
		if err != nil {
			return nil, err
		}
		c.Once = once
		charges, of[i] = together(charges, c)
	}
	for i := range asks { // a mistake: it charges nothing, not even limits that charge what they deny
		if c := &charges[of[i]]; c.NeverFits() {
			return nil, deny(&asks[i], c, &backend.Decision{Decision: algorithms.Decision{Never: true}})
		}
	}
	decisions := make([]backend.Decision, len(charges))
	backend.Take(ctx, l.store, charges, decisions)
	answers, denied := make([]Answer, len(asks)), -1
	for i := range asks {
		d := &decisions[of[i]]
		if d.Err != nil {
			return nil, fmt.Errorf("limit %q: %w", asks[i].Name, d.Err)
		}
		if !d.Allowed && (denied < 0 || worse(d, &decisions[of[denied]])) {
			denied = i
		}
		answers[i] = Answer{Remaining: d.Remaining, ResetAfter: span(d.ResetAfter)}
		if asks[i].Reserve || charges[of[i]].Limit.Kind == algorithms.LeakyBucket {
			answers[i].Wait = span(d.Wait)
		}
		if charge := &charges[of[i]]; charge.Ask.Reserve && asks[i].cost() >= 0 && !look {
			answers[i].Reservation = reservation(&asks[i], i, once, d)
		}
	}
	if denied >= 0 {
		return nil, deny(&asks[denied], &charges[of[denied]], &decisions[of[denied]])
	}
	return answers, nil
}

// charge is what a asks of a Store.
func (l *Limiter) charge(a *Ask, look bool) (backend.Charge, error) {
	p := l.policies[a.Name]
	if p == nil {
		return backend.Charge{}, fmt.Errorf("%w: %q", ErrUnknown, a.Name)
	}
	reserve := a.Reserve && p.Limit.CanReserve()
	if a.Reserve && !reserve && p.Limit.Kind != algorithms.LeakyBucket { // which says when in any case
		return backend.Charge{}, fmt.Errorf("limit %q: %w", a.Name, ErrCannotReserve)
	}
	c := charge(p, a.Key)
	c.Ask.Cost, c.Ask.Reserve, c.Ask.Look = a.cost(), reserve, look
	return c, nil
}

// cost is how many units are asked for.
func (a *Ask) cost() int64 {
	if a.Count == 0 {
		return 1
	}
	return a.Count
}

// reservation is what ask i reserved; of a call that is made again it is the same.
func reservation(a *Ask, i int, once *backend.Once, d *backend.Decision) Reservation {
	r := Reservation{Name: a.Name, Key: a.Key, Count: a.cost(), At: time.UnixMicro(int64(d.At)).UTC()}
	if once == nil {
		_, _ = rand.Read(r.ID[:]) // never fails
	} else {
		r.ID = backend.OnceID("reservation", string(once.ID[:]), strconv.Itoa(i), r.At.String())
	}
	return r
}

// together adds c to charges, or to the charge of the same bucket: costs are added up, and it is
// reserved only if each is. It returns the number of c's charge.
func together(charges []backend.Charge, c backend.Charge) ([]backend.Charge, int) {
	i := slices.IndexFunc(charges, func(have backend.Charge) bool { return bytes.Equal(have.Key, c.Key) })
	if i < 0 {
		return append(charges, c), len(charges)
	}
	charges[i].Ask = charges[i].Ask.Plus(c.Ask)
	return charges, i
}

// worse tells whether denial d says more than was.
func worse(d, was *backend.Decision) bool {
	return !was.Never && (d.Never || d.RetryAfter > was.RetryAfter)
}

func deny(a *Ask, c *backend.Charge, d *backend.Decision) *Denied {
	return &Denied{
		Name: a.Name, Key: a.Key, RetryAfter: span(d.RetryAfter), Never: d.Never,
		Count: c.Ask.Cost, Most: c.Limit.Most(c.Ask.Reserve),
	}
}

func span(d algorithms.Micros) time.Duration {
	return time.Duration(min(d, math.MaxInt64/1000)) * time.Microsecond
}
