package e2e

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

type callTotals struct {
	mu       sync.Mutex // guards all fields below
	used     int        // tokens of all allowed calls
	allowed  int
	open     int // the sum of real costs beyond the estimate, over the calls in flight
	closed   int // the sum of real costs beyond the estimate, over the calls that have ended
	mostOpen int // the largest sum of real costs beyond the estimate, over calls that may have been in flight together
}

// heavyTail returns a random number of tokens: lognormal, with a mean of 1,500 and a 99th percentile of
// 8,000.
func heavyTail(random *rand.Rand) int {
	const sigma = 0.8865
	return max(1, int(math.Exp(math.Log(1500)-sigma*sigma/2+sigma*random.NormFloat64())))
}

// call starts a call with a random cost, and then calls the function between. If the call was allowed, it settles the
// real cost after that.
func (b *callTotals) call(t *testing.T, sidecars []*settler, random *rand.Rand, user string, between func(allowed bool)) (allowed bool) {
	const estimate = 1500
	tokens := heavyTail(random)
	excess := max(0, tokens-estimate)
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	id, err := sidecars[random.IntN(len(sidecars))].start("client=" + user)
	if allowed = err == nil; allowed {
		b.mu.Lock()
		b.used, b.allowed, b.open = b.used+tokens, b.allowed+1, b.open+excess
		b.mostOpen = max(b.mostOpen, b.open+b.closed-closed) // calls that ended after this request was sent count as in flight, too
		b.mu.Unlock()
	}
	between(allowed)
	if allowed {
		for range 1 + random.IntN(10)/9 { // repeats one of ten settlements, which must have no effect
			if err := sidecars[random.IntN(len(sidecars))].done(id, tokens); err != nil {
				t.Error(err)
			}
		}
		b.mu.Lock()
		b.open, b.closed = b.open-excess, b.closed+excess
		b.mu.Unlock()
	}
	return allowed
}

// TestAHundredParallelCallsKeepTheBudget lets a hundred clients of one user send calls at the same time,
// through real listeners. No call ends before the first hundred have started: of these, 66 estimates of 1,500
// fit into 100,000 tokens. At the end, the used tokens exceed the budget by at most the amount by which calls
// in flight exceeded their estimates.
func TestAHundredParallelCallsKeepTheBudget(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(t *testing.T) []*settler{
		"in memory": func(t *testing.T) []*settler { return []*settler{startSettler(t)} },
		"on Redis with two sidecars": func(t *testing.T) []*settler {
			url := "redis://" + redistest.Start(t).Addr
			return []*settler{
				startSettler(t, "--redis-url", url, "--backend-timeout", "10s"), startSettler(t, "--redis-url", url, "--backend-timeout", "10s"),
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			sidecars := serve(t)
			const clients, budget = 100, 100_000
			b := &callTotals{}
			var started, all sync.WaitGroup
			started.Add(clients)
			first := make(chan int, clients)
			for client := range clients {
				all.Go(func() {
					random := rand.New(rand.NewPCG(uint64(client), 20))
					b.call(t, sidecars, random, "bob", func(allowed bool) {
						if allowed {
							first <- client
						}
						started.Done()
						started.Wait()
					})
					for denied := 0; denied < 3; {
						if !b.call(t, sidecars, random, "bob", func(bool) {}) {
							denied++
						}
					}
				})
			}
			started.Wait()
			if n := len(first); n != budget/1500 {
				t.Errorf("%d of the first %d calls were allowed, want %d", n, clients, budget/1500)
			}
			all.Wait()
			for random := rand.New(rand.NewPCG(1, 1)); b.call(t, sidecars, random, "bob", func(bool) {}); {
			}
			t.Logf("%d calls used %d of %d tokens; calls in flight exceeded their estimates by up to %d", b.allowed, b.used, budget, b.mostOpen)
			if b.used > budget+b.mostOpen || b.used <= budget-1500 {
				t.Errorf("%d tokens were used; want more than %d, and at most %d", b.used, budget-1500, budget+b.mostOpen)
			}
			for i, s := range sidecars {
				if left, want := s.left("calls", "bob"), max(0, budget-b.used); left != want {
					t.Errorf("sidecar %d: %d are left, want %d", i, left, want)
				}
			}
		})
	}
}
