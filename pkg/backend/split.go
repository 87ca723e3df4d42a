package backend

import (
	"context"
	"fmt"
	"time"
)

const (
	// MaxBatch is the most charges that go to a server in one call, unless a single group has more. A server
	// serves nobody else meanwhile, and a call that is too long for its timeout counts as a failure.
	MaxBatch = 256
	// MaxGroup is the most charges of one group that Split sends on.
	MaxGroup = 1024
)

// Split divides large Takes so that next gets at most 256 charges in each, or one group; the pieces go one
// after the other, so that Takes of others come in between. A group of more than MaxGroup charges cannot be
// divided: it is answered ErrTooLarge. timeout bounds the pieces that Start sends, as a context bounds
// those of Take.
func Split(next Taker, timeout time.Duration) Taker { return &split{next, timeout} }

type split struct {
	next    Taker
	timeout time.Duration
}

// Take implements Store.
func (s *split) Take(ctx context.Context, charges []Charge, decisions []Decision) {
	for len(charges) > MaxBatch {
		n, err := piece(charges)
		if err != nil {
			failAll(decisions[:n], err)
		} else {
			s.next.Take(ctx, charges[:n], decisions[:n])
		}
		charges, decisions = charges[n:], decisions[n:]
	}
	if len(charges) > 0 {
		s.next.Take(ctx, charges, decisions)
	}
}

// piece returns how many charges form the first piece, and an error if they are too many.
func piece(charges []Charge) (n int, err error) {
	n = GroupLen(charges)
	if n > MaxGroup {
		return n, fmt.Errorf("%w: %d, the most is %d", ErrTooLarge, n, MaxGroup)
	}
	for n < len(charges) {
		more := n + GroupLen(charges[n:])
		if more > MaxBatch {
			break
		}
		n = more
	}
	return n, nil
}

// Start implements Starter where the Store below does, but for a group of more than MaxBatch charges.
func (s *split) Start(charges []Charge, decisions []Decision, done func()) bool {
	if len(charges) <= MaxBatch {
		return Start(s.next, charges, decisions, done)
	}
	for rest := charges; len(rest) > 0; {
		n := GroupLen(rest)
		if n > MaxBatch {
			return false
		}
		rest = rest[n:]
	}
	p := &pieces{split: s, charges: charges, decisions: decisions, done: done, until: time.Now().Add(s.timeout)}
	return p.start()
}

// pieces is a Take that Start has divided.
type pieces struct {
	*split
	charges   []Charge // not yet answered, but those of the piece in flight
	decisions []Decision
	done      func()
	until     time.Time // when the last piece is sent
}

// start sends the next piece. It returns false where no piece is left, or it cannot be sent; then all
// decisions are there. Once a piece is sent p belongs to another.
func (p *pieces) start() bool {
	if len(p.charges) == 0 {
		return false
	}
	n, _ := piece(p.charges) // no group is too large
	charges, decisions := p.charges[:n], p.decisions[:n]
	rest := p.decisions
	p.charges, p.decisions = p.charges[n:], p.decisions[n:]
	if Start(p.next, charges, decisions, p.another) {
		return true
	}
	failAll(rest, fmt.Errorf("%w: too many requests wait for it", ErrNotTaken))
	return false
}

// another follows a piece that has been answered.
func (p *pieces) another() {
	if time.Now().After(p.until) {
		failAll(p.decisions, fmt.Errorf("%w: not sent in time", ErrNotTaken))
		p.done()
		return
	}
	if !p.start() {
		p.done()
	}
}
