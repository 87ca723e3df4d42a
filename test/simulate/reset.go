package simulate

import (
	"context"
	"math/rand/v2"
	"strconv"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Operators reset buckets, between the requests that charge, top up and settle them. A bucket may then admit its
// capacity once more. A reservation from before the reset refunds nothing to the new bucket.

// resetMark has the numbers of the bucket that package limiter charges with a reset.
var resetMark = func() *algorithms.Limit {
	l, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Day, MaxReserved: new(int64), Overdraw: true})
	if err != nil {
		panic(err)
	}
	return &l
}()

var resetNames = []struct{ domain, limit string }{
	{"plans", "plan"}, {"plans", "pace"}, {"plans", "credits"}, {"sim", "tokens"}, {"sim", "budget"}, {"sim", "meter"}, {"sim", "brief"},
	{"sim", "slots"}, {"sim", "rooms"},
}

func (w *world) reset(rng *rand.Rand, p *process) {
	of := resetNames[rng.IntN(len(resetNames))]
	key := strconv.Itoa(rng.IntN(2))
	w.after(0, p, func() { p.reset(of.domain, of.limit, key) })
}

func (p *process) reset(domain, limit, key string) {
	if p.crashed {
		return
	}
	p.w.judge.resets[cost{limit: limit, value: key}]++
	c := &limiter.Call{}
	c.Request.Domain = domain
	c.Limits = append(c.Limits, limiter.NamedCharge{Name: limit, Key: []string{key}})
	err := p.limiter.Reset(context.Background(), c)
	if err == nil {
		p.w.seen(sawReset)
	}
	p.w.note("%s: reset of %s %s: %v", p.name, limit, key, err)
}
