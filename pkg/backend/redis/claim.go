package redis

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A group of several slots, with a sharded bucket, or with buckets in another Redis too, cannot be taken
// and remembered in one step. Its ID is claimed first, then the group is taken, and then the claim becomes what was answered, or is
// dropped where nothing was taken. So it is taken once at the most: where a step in between gets no
// answer, or the process dies, the claim stays, and who asks again is told ErrPending until its time
// is over.
//
// A claim is a byte, 32 that tell what is asked, and 16 that tell who claimed it; an answer is a
// byte, the same 32, and for each charge the time and the answer.
const (
	claimed  = 'c'
	answered = 'a'
)

// claims are those of one Redis.
type claims struct {
	client     goredis.UniversalClient
	keys       keys
	background *backend.Background
}

// TakeClaimed implements backend.Claimer.
func (c claims) TakeClaimed(ctx context.Context, charges []backend.Charge, decisions []backend.Decision, take backend.TakeFunc) {
	once := charges[0].Once
	was, err := c.claim(ctx, once)
	switch {
	case err != nil:
		fail(decisions, unavailable(fmt.Errorf("claim an id: %w", err)))
		return
	case was != "":
		recall(was, once, decisions)
		return
	}
	plain := slices.Clone(charges)
	for i := range plain {
		plain[i].Once = nil
	}
	take(ctx, plain, decisions)
	switch name := c.keys.claim(once); {
	case backend.Took(plain, decisions):
		c.settle(ctx, func(ctx context.Context) error {
			return c.client.Set(ctx, name, answerOf(once, decisions), lasting(once)).Err()
		})
	case decisions[0].Err == nil:
		c.settle(ctx, func(ctx context.Context) error { return c.client.Del(ctx, name).Err() })
	}
}

// settle does what becomes of a claim; if there is no time for it now, then on its own time. Were it
// not done at all the claim stays, and nobody is charged twice.
func (c claims) settle(ctx context.Context, do func(context.Context) error) {
	if do(ctx) != nil {
		c.background.Do(func(ctx context.Context) { _ = do(ctx) })
	}
}

// claim claims an ID. It returns "", or what others have left there.
func (c claims) claim(ctx context.Context, once *backend.Once) (was string, err error) {
	var by [16]byte
	_, _ = rand.Read(by[:]) // never fails
	mine := string(claimed) + string(once.Of[:]) + string(by[:])
	name := c.keys.claim(once)
	var is *goredis.StringCmd
	_, err = c.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		pipe.SetNX(ctx, name, mine, lasting(once))
		is = pipe.Get(ctx, name)
		return nil
	})
	if err != nil {
		return "", err
	}
	if is.Val() == mine { // also where it was sent twice
		return "", nil
	}
	return is.Val(), nil
}

// answerOf is what is remembered of a group that was taken.
func answerOf(once *backend.Once, decisions []backend.Decision) []byte {
	b := append([]byte{answered}, once.Of[:]...)
	for i := range decisions {
		b = encode(doubles(b, float64(decisions[i].At)), &decisions[i])
	}
	return b
}

// recall answers what was, a claim of somebody else or what was answered.
func recall(was string, once *backend.Once, decisions []backend.Decision) {
	const head, size = 1 + len(once.Of), 8 + answerSize
	switch {
	case len(was) < head || was[1:head] != string(once.Of[:]):
		fail(decisions, backend.ErrReused)
	case was[0] == claimed:
		fail(decisions, backend.ErrPending)
	case len(was) != head+len(decisions)*size: // limits have changed their modes since
		fail(decisions, backend.ErrReused)
	default:
		for i := range decisions {
			said := was[head+i*size:]
			decisions[i] = decode(said[8:])
			decisions[i].At, decisions[i].Replayed = moment(said), true
		}
	}
}

// lasting is for how long a record is remembered.
func lasting(once *backend.Once) time.Duration {
	return time.Duration(lifetime(once)) * time.Millisecond
}

// claim is the name of a claim. It says by itself which slot it is in: what is asked with it does not
// matter.
func (k keys) claim(once *backend.Once) string {
	return k.prefix + "{}" + claimPrefix + string(once.ID[:])
}

// claimPrefix starts what follows the tag in the name of a claim.
const claimPrefix = "c"

func fail(decisions []backend.Decision, err error) {
	for i := range decisions {
		decisions[i] = backend.Decision{Err: err}
	}
}
