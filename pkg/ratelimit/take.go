package ratelimit

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const remembered = algorithms.Micros(Remembered / time.Microsecond)

// take asks for all, once where there is an id, or each time; or only looks.
func (l *Limiter) take(ctx context.Context, asks []Ask, look bool, id string) ([]Answer, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	c := limiter.Call{Request: limiter.Request{Domain: l.domain, Look: look}}
	if id != "" {
		c.Once = limiter.Once{ID: "call " + id, For: remembered}
	}
	for i := range asks {
		ask, err := l.ask(&asks[i])
		if err != nil {
			return nil, err
		}
		c.Limits = append(c.Limits, ask)
	}
	if err := l.limiter.Check(ctx, &c); err != nil {
		return nil, fmt.Errorf("limit %q: %w", asks[0].Name, err)
	}
	answers := make([]Answer, len(asks))
	var denied *limiter.Result
	for i := range c.Results {
		r := &c.Results[i]
		d := &r.Decision
		if d.Err != nil {
			return nil, fmt.Errorf("limit %q: %w", asks[i].Name, d.Err)
		}
		if !d.Allowed && (denied == nil || worse(d, &denied.Decision)) {
			denied = r
		}
		answers[i] = l.answer(&c, i, &asks[i], id)
	}
	if denied != nil {
		return nil, deny(&c, denied)
	}
	return answers, nil
}

// ask is what a asks of the limiter.
func (l *Limiter) ask(a *Ask) (limiter.LimitAsk, error) {
	p := l.named[a.Name]
	if p == nil {
		return limiter.LimitAsk{}, fmt.Errorf("%w: %q", ErrUnknown, a.Name)
	}
	reserve := a.Reserve && p.Limit.CanReserve()
	if a.Reserve && !reserve && p.Limit.Kind != algorithms.LeakyBucket { // which says when in any case
		return limiter.LimitAsk{}, fmt.Errorf("limit %q: %w", a.Name, ErrCannotReserve)
	}
	return limiter.LimitAsk{Name: a.Name, Key: a.Key, Count: a.cost(), Reserve: reserve}, nil
}

// cost is how many units are asked for.
func (a *Ask) cost() int64 {
	if a.Count == 0 {
		return 1
	}
	return a.Count
}

// answer is what result i of c says to a.
func (l *Limiter) answer(c *limiter.Call, i int, a *Ask, id string) Answer {
	d := &c.Results[i].Decision
	answer := Answer{Remaining: d.Remaining, ResetAfter: span(d.ResetAfter)}
	if a.Reserve || c.Results[i].Policy.Limit.Kind == algorithms.LeakyBucket {
		answer.Wait = span(d.Wait)
	}
	if c.Limits[i].Reserve && a.cost() >= 0 && !c.Look {
		answer.Reservation = l.reservation(a, i, id, d)
		answer.Reservation.Inflow = c.Results[i].Policy.Limit.Inflow()
	}
	return answer
}

// reservation is what ask i reserved; of a call that is made again it is the same.
func (l *Limiter) reservation(a *Ask, i int, id string, d *backend.Decision) Reservation {
	r := Reservation{Name: a.Name, Key: a.Key, Count: a.cost(), At: time.UnixMicro(int64(d.At)).UTC()}
	if id == "" {
		_, _ = rand.Read(r.ID[:]) // never fails
	} else {
		r.ID = backend.OnceID("reservation", l.domain, id, strconv.Itoa(i), r.At.String())
	}
	return r
}

// worse reports whether denial d says more than was.
func worse(d, was *backend.Decision) bool {
	return !was.Never && (d.Never || d.RetryAfter > was.RetryAfter)
}

// deny is the error of r, which denied c.
func deny(c *limiter.Call, r *limiter.Result) *Denied {
	ask := &c.Limits[r.Descriptor]
	denied := &Denied{Name: ask.Name, Key: ask.Key, RetryAfter: span(r.Decision.RetryAfter), Never: r.Decision.Never}
	reserve := true
	for i := range c.Results { // asks of one bucket are added up
		if other := &c.Results[i]; bytes.Equal(other.Key, r.Key) {
			denied.Count += other.Cost
			reserve = reserve && c.Limits[other.Descriptor].Reserve
		}
	}
	denied.Most = r.Policy.Limit.Most(reserve)
	return denied
}

func span(d algorithms.Micros) time.Duration {
	return time.Duration(min(d, math.MaxInt64/1000)) * time.Microsecond
}
