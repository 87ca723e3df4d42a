package redis

import (
	"context"
	"crypto/rand"
	"errors"
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
	mine := newClaim(once)
	was, err := c.claim(ctx, once, mine)
	switch {
	case err != nil:
		if err = unavailable(fmt.Errorf("claim an id: %w", err)); !errors.Is(err, backend.ErrNotTaken) {
			c.background.Do(func(ctx context.Context) { _ = c.replace(ctx, once, mine, nil) })
		}
		fail(decisions, err)
		return
	case was != mine:
		recall(was, once, decisions)
		return
	}
	plain := slices.Clone(charges)
	for i := range plain {
		plain[i].Once = nil
	}
	take(ctx, plain, decisions)
	switch err := decisions[0].Err; {
	case backend.Took(plain, decisions):
		c.settle(ctx, once, mine, answerOf(once, decisions))
	case err == nil || errors.Is(err, backend.ErrNotTaken):
		c.settle(ctx, once, mine, nil)
	}
}

// settle replaces a claim, in the background if there is no time for it now. If that fails too, the claim
// stays, and nobody is charged twice.
func (c claims) settle(ctx context.Context, once *backend.Once, mine string, answer []byte) {
	if c.replace(ctx, once, mine, answer) != nil {
		c.background.Do(func(ctx context.Context) { _ = c.replace(ctx, once, mine, answer) })
	}
}

// replaceClaim puts an answer in the place of a claim, or deletes the claim if the answer is empty. It
// changes nothing where there is another value: a call may arrive late, or twice, when the claim has been
// replaced or has expired and the key belongs to another caller.
var replaceClaim = goredis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then return redis.call('DEL', KEYS[1]) end
redis.call('PSETEX', KEYS[1], ARGV[3], ARGV[2])
return 1`)

// replace runs replaceClaim.
func (c claims) replace(ctx context.Context, once *backend.Once, mine string, answer []byte) error {
	return replaceClaim.Run(ctx, c.client, []string{c.keys.claim(once)}, mine, answer, lifetime(once)).Err()
}

// newClaim returns a claim that no other call makes.
func newClaim(once *backend.Once) string {
	var by [16]byte
	_, _ = rand.Read(by[:]) // never fails
	return string(claimed) + string(once.Of[:]) + string(by[:])
}

// claim claims an ID for mine. It returns mine, or what another call has left there.
func (c claims) claim(ctx context.Context, once *backend.Once, mine string) (is string, err error) {
	name := c.keys.claim(once)
	var get *goredis.StringCmd
	_, err = c.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		pipe.SetNX(ctx, name, mine, lasting(once)) // may be sent twice
		get = pipe.Get(ctx, name)
		return nil
	})
	if err != nil {
		return "", err
	}
	return get.Val(), nil
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
