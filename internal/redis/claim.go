package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Some groups with an idempotency key cannot be charged and stored under the key's ID in one step. These are groups
// with buckets in several slots, groups with a sharded bucket, and groups that also have buckets in another Redis.
// For such a group, this process first claims the ID: it stores a claim under the ID. Then it charges the group.
// Finally it replaces the claim by the answer, or deletes the claim if nothing was consumed. If slots were taken and
// must be returned, it deletes the claim after that: a repeated request takes slots with the same ID.
//
// So the group is charged at most once. If the outcome of the charge is unknown, or the process dies, the claim stays.
// A repeated group then gets ErrPending until the claim expires.
//
// A claim consists of one byte, 32 bytes that identify the request, and 16 bytes that identify the claiming
// call. An answer consists of one byte, the same 32 bytes, and the time and the decision of each charge.
const (
	claimed  = 'c'
	answered = 'a'
)

// maxClaims bounds the groups that are charged with a claim at the same time.
const maxClaims = 1024

// Claimed implements stores.Claimer.
func (s *Store) Claimed(next backend.Store, undos *stores.Undos) backend.Store {
	c := &claimedStore{s, next, []*stores.Undos{s.undos}}
	if undos != s.undos {
		c.returns = append(c.returns, undos)
	}
	return c
}

type claimedStore struct {
	*Store
	next    backend.Store
	returns []*stores.Undos // these return slots that next has taken
}

func (s *claimedStore) Submit(b *backend.Batch) {
	var groups []*claimedGroup
	pending := new(atomic.Int64)
	for at := 0; at < len(b.Charges); {
		n := backend.GroupLen(b.Charges[at:])
		g := &claimedGroup{
			claimedStore: s, outer: b, at: at, pending: pending, once: b.Charges[at].IdempotencyKey,
			charges: slices.Clone(b.Charges[at : at+n]), decisions: b.Decisions[at : at+n],
		}
		for i := range g.charges {
			g.charges[i].IdempotencyKey = nil
		}
		groups = append(groups, g)
		at += n
	}
	pending.Store(int64(len(groups)))
	for _, g := range groups {
		if s.underway.Add(1) > maxClaims {
			g.end(fmt.Errorf("%w: too many claims of idempotency keys are in flight", backend.ErrNotTaken))
			continue
		}
		s.spawn(g.run)
	}
}

type claimedGroup struct {
	*claimedStore

	outer     *backend.Batch
	at        int           // the index of the group's first charge in outer
	pending   *atomic.Int64 // the number of groups of outer that have not ended; all these groups share it
	once      *backend.IdempotencyKey
	mine      string           // the claim of this call
	charges   []backend.Charge // the charges without their idempotency key
	decisions []backend.Decision
	inner     backend.Batch
	// afterReturns calls end after the returns of the slots that next has taken (stores.Undos.AfterReturns). It is nil
	// if the group takes no slots.
	afterReturns func(end func())
}

func (g *claimedGroup) run() {
	ctx, cancel := g.bound()
	defer cancel()
	if end, _ := ctx.Deadline(); !g.clock.Now().Before(end) {
		g.end(fmt.Errorf("%w: not sent in time", backend.ErrNotTaken))
		return
	}
	g.mine = g.newClaim(g.once)
	var was string
	claim := func() (err error) {
		was, err = g.claim(ctx, g.once, g.mine)
		return err
	}
	err := error(nil)
	if l := g.senderTo(g.keys.claimCharge(g.once)); l == nil {
		err = claim()
	} else {
		err = l.guard(ctx, claim) // while the circuit of the server is open, the claim fails at once
	}
	switch {
	case err != nil:
		if err = unavailable(fmt.Errorf("claim an idempotency key: %w", err)); !errors.Is(err, backend.ErrNotTaken) {
			g.replaceLater(g.once, g.mine, nil)
		}
		g.end(err)
	case was != g.mine:
		answerFromStored(was, g.once, g.decisions)
		g.end(nil)
	default:
		g.watchReturns()
		g.inner = backend.Batch{
			Charges: g.charges, Decisions: g.decisions, Deadline: g.outer.Deadline, Detached: g.outer.Detached,
			Done: g.decided,
		}
		g.next.Submit(&g.inner)
	}
}

func (g *claimedGroup) watchReturns() {
	slot := slices.IndexFunc(g.charges, func(c backend.Charge) bool { return c.Terms.Slot != nil })
	if slot < 0 {
		return
	}
	g.afterReturns = func(end func()) { end() }
	for _, undos := range g.returns {
		before, after := g.afterReturns, undos.AfterReturns(g.charges[slot].Terms.Slot.ID)
		g.afterReturns = func(end func()) { before(func() { after(end) }) }
	}
}

// decided is the Done function of inner. If the group consumed units, it stores the answer in place of the claim.
// If the group certainly consumed nothing, it deletes the claim. Otherwise the claim stays.
func (g *claimedGroup) decided(*backend.Batch) {
	deletion := func() {}
	switch err := g.decisions[0].Err; {
	case backend.ConsumedAny(g.charges, g.decisions):
		answer := answerOf(g.once, g.decisions)
		g.spawn(func() { g.store(answer) })
	case err != nil && !errors.Is(err, backend.ErrNotTaken):
		g.end(nil)
	case g.afterReturns == nil:
		g.spawn(func() { g.store(nil) })
	default:
		once := *g.once
		deletion = func() { g.replaceLater(&once, g.mine, nil) }
		g.end(nil) // the answer does not wait for the returns: the time of its caller may end before
	}
	if g.afterReturns != nil {
		g.afterReturns(deletion)
	}
}

// store replaces the claim by the answer, or deletes it if answer is nil. If that fails, for example because there is
// no time left, store tries once more in the background. If that fails, too, the claim stays: then a repeated request
// is not charged.
func (g *claimedGroup) store(answer []byte) {
	ctx, cancel := g.bound()
	defer cancel()
	if g.replace(ctx, g.once, g.mine, answer) != nil {
		g.replaceLater(g.once, g.mine, answer)
	}
	g.end(nil)
}

func (g *claimedGroup) bound() (context.Context, context.CancelFunc) {
	if g.outer.Deadline.IsZero() {
		return context.WithDeadline(context.Background(), g.clock.Now().Add(g.config.Timeout))
	}
	return context.WithDeadline(context.Background(), g.outer.Deadline)
}

func (g *claimedGroup) end(err error) {
	defer func() {
		if p := recover(); p != nil { // a panic in Done must not affect other batches
			g.config.Panicked(p)
		}
	}()
	g.underway.Add(-1)
	if err != nil {
		fail(g.decisions, err)
	}
	g.outer.SetKnown(g.at, g.at+len(g.charges))
	if g.pending.Add(-1) == 0 {
		g.outer.Finish()
	}
}

// replaceLater runs replace in the background. If too many calls run there already, it does nothing, and the claim
// stays. The caller may reuse the memory of the idempotency key after the call.
func (s *Store) replaceLater(once *backend.IdempotencyKey, claim string, answer []byte) {
	if !s.undos.Begin() {
		return
	}
	own := *once
	s.spawn(func() {
		defer s.undos.End()
		ctx, cancel := context.WithDeadline(context.Background(), s.clock.Now().Add(s.undos.Timeout()))
		defer cancel()
		_ = s.replace(ctx, &own, claim, answer)
	})
}

// replaceClaim replaces a claim by an answer, or deletes the claim if the answer is empty. It does nothing if
// the key no longer has the claim as its value. This happens if the command arrives late or twice: the claim
// was replaced, or it expired and another caller claimed the ID.
var replaceClaim = goredis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then return redis.call('DEL', KEYS[1]) end
redis.call('PSETEX', KEYS[1], ARGV[3], ARGV[2])
return 1`)

func (s *Store) replace(ctx context.Context, once *backend.IdempotencyKey, claim string, answer []byte) error {
	return replaceClaim.Run(ctx, s.client, []string{s.keys.claim(once)}, claim, answer, lifetime(once)).Err()
}

func (s *Store) newClaim(once *backend.IdempotencyKey) string {
	var by [16]byte
	s.random(by[:])
	return string(claimed) + string(once.Digest[:]) + string(by[:])
}

// claim writes own, the claim of this call, under the ID, if the ID has no value yet. It returns the value that the ID
// has afterwards: own, or what another call wrote before.
func (s *Store) claim(ctx context.Context, once *backend.IdempotencyKey, own string) (stored string, err error) {
	name := s.keys.claim(once)
	var get *goredis.StringCmd
	_, err = s.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		pipe.SetNX(ctx, name, own, lifetimeDuration(once)) // go-redis may send it twice without harm
		get = pipe.Get(ctx, name)
		return nil
	})
	if err != nil {
		return "", err
	}
	return get.Val(), nil
}

func answerOf(once *backend.IdempotencyKey, decisions []backend.Decision) []byte {
	b := append([]byte{answered}, once.Digest[:]...)
	for i := range decisions {
		b = encode(doubles(b, float64(decisions[i].At)), &decisions[i])
	}
	return b
}

func answerFromStored(was string, once *backend.IdempotencyKey, decisions []backend.Decision) {
	const head, size = 1 + len(once.Digest), 8 + answerSize
	switch {
	case len(was) < head || was[1:head] != string(once.Digest[:]):
		fail(decisions, backend.ErrReused)
	case was[0] == claimed:
		fail(decisions, backend.ErrPending)
	case len(was) != head+len(decisions)*size: // the limits have changed since, so that the group has another number of charges
		fail(decisions, backend.ErrReused)
	default:
		for i := range decisions {
			encoded := was[head+i*size:]
			decode(encoded[8:], &decisions[i])
			decisions[i].At, decisions[i].Replayed = moment(encoded), true
		}
	}
}

func lifetimeDuration(once *backend.IdempotencyKey) time.Duration {
	return time.Duration(lifetime(once)) * time.Millisecond
}

// claim returns the Redis key of a claim. Its slot depends only on the ID, so all processes find the claim.
func (k keys) claim(once *backend.IdempotencyKey) string {
	return k.name(k.claimCharge(once))
}

// claimCharge returns a charge whose bucket has the Redis key of a claim.
func (keys) claimCharge(once *backend.IdempotencyKey) *backend.Charge {
	return &backend.Charge{Key: append([]byte(claimPrefix), once.ID[:]...)}
}

// claimPrefix starts the part of a claim's Redis key that follows the braces. In the name of a bucket, a digit
// follows there, so a claim and a bucket never have the same name.
const claimPrefix = "c"

func fail(decisions []backend.Decision, err error) {
	for i := range decisions {
		decisions[i] = backend.Decision{Err: err}
	}
}
