package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// newLimiter makes a Limiter for the examples. The clock of its Store stands still, so that the output is
// always the same. Programs use memory.Config{}.
func newLimiter(limits ratelimit.Limits) *ratelimit.Limiter {
	clock := func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }
	l, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{Clock: clock}), Limits: limits, Clock: clock})
	if err != nil {
		panic(err)
	}
	return l
}

func ExampleLimiter_Allow() {
	limiter := newLimiter(ratelimit.Limits{"send_message": ratelimit.TokenBucket(2, time.Minute)})
	for range 3 {
		result, err := limiter.Allow(context.Background(), "send_message", "bob")
		switch {
		case errors.Is(err, ratelimit.ErrDenied):
			fmt.Println("denied, try again after", result.RetryAfter)
		case err != nil:
			fmt.Println("the store could not decide:", err)
		default:
			fmt.Println("sent,", result.Remaining, "left")
		}
	}
	// Output:
	// sent, 1 left
	// sent, 0 left
	// denied, try again after 30s
}

// Count failed logins only: Peek before the password is checked, Allow after a failure, Reset after a success. Several
// guesses at the same time may all pass Peek. To prevent that, call Allow first, and Refund after a success.
func ExampleLimiter_Peek() {
	limiter := newLimiter(ratelimit.Limits{"failed_logins": ratelimit.SlidingLog(2, time.Hour)})
	login := func(ctx context.Context, user, password string) string {
		if _, err := limiter.Peek(ctx, 1, "failed_logins", user); err != nil {
			return "locked"
		}
		if password != "right" {
			_, _ = limiter.Allow(ctx, "failed_logins", user) // the next Peek shows the result
			return "wrong"
		}
		_ = limiter.Reset(ctx, "failed_logins", user) // otherwise the failures expire within the hour
		return "welcome"
	}
	for _, password := range []string{"a", "right", "b", "c", "right"} {
		fmt.Println(login(context.Background(), "bob", password))
	}
	// Output:
	// wrong
	// welcome
	// wrong
	// wrong
	// locked
}

// Schedule work for which no units are available now.
func ExampleLimiter_ReserveN() {
	limiter := newLimiter(ratelimit.Limits{"llm_tokens": ratelimit.TokenBucket(40_000, time.Minute)})
	for _, tokens := range []int64{30_000, 30_000, 4_000} {
		reservation, err := limiter.ReserveN(context.Background(), tokens, "llm_tokens")
		fmt.Println(tokens, "tokens in", reservation.Delay().Round(time.Second), err) // time.AfterFunc(reservation.Delay(), work)
	}
	// Output:
	// 30000 tokens in 0s <nil>
	// 30000 tokens in 30s <nil>
	// 4000 tokens in 36s <nil>
}

// Reserve an estimate, do the work, and settle the real cost. The reservation may be passed to another
// process as text.
func ExampleLimiter_Settle() {
	ctx := context.Background()
	limiter := newLimiter(ratelimit.Limits{"llm_tokens": ratelimit.TokenBucket(40_000, time.Minute)})
	reservation, err := limiter.ReserveN(ctx, 30_000, "llm_tokens", "bob")
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := reservation.MarshalText()
	if err != nil {
		fmt.Println(err)
		return
	}

	var received ratelimit.Reservation
	if err := received.UnmarshalText(text); err != nil {
		fmt.Println(err)
		return
	}
	result, err := limiter.Settle(ctx, received, 12_500)
	fmt.Println(result.Remaining, "left", err)
	// Output: 27500 left <nil>
}

// Parallel calls share a budget of tokens. Each call reserves an estimate, and settles the number of tokens that it has
// used.
func ExampleLimit_settles() {
	ctx, none := context.Background(), int64(0)
	budget := ratelimit.FixedWindow(10_000, 30*24*time.Hour)
	budget.Settles, budget.MaxReserved = true, &none // a call that does not fit now is denied
	budget.Weights = map[string]string{"input": "1", "output": "4"}
	limiter := newLimiter(ratelimit.Limits{"llm_tokens": budget})

	first, err := limiter.ReserveN(ctx, 6_000, "llm_tokens", "bob")
	fmt.Println("first:", err)
	_, err = limiter.ReserveN(ctx, 6_000, "llm_tokens", "bob")
	fmt.Println("second, meanwhile, is denied:", errors.Is(err, ratelimit.ErrDenied))

	used, err := limiter.Cost("llm_tokens", map[string]int64{"input": 1200, "output": 300})
	fmt.Println("the first used", used, err)
	result, err := limiter.Settle(ctx, first, used)
	fmt.Println(result.Remaining, "left", err)
	// Output:
	// first: <nil>
	// second, meanwhile, is denied: true
	// the first used 2400 <nil>
	// 7600 left <nil>
}

// Charge several kinds of units by the weights of a limit.
func ExampleLimiter_Cost() {
	limit := ratelimit.FixedWindow(1000, 30*24*time.Hour)
	limit.Weights = map[string]string{"input": "1", "cached": "1/10", "output": "4"}
	limiter := newLimiter(ratelimit.Limits{"llm_tokens": limit})

	used := map[string]int64{"input": 100, "cached": 55, "output": 25}
	cost, err := limiter.Cost("llm_tokens", used) // 100 + 5.5 + 100, rounded up once
	fmt.Println(cost, err)

	requests := []ratelimit.Request{{Name: "llm_tokens", Key: []string{"bob"}, Costs: used}} // the same in one call
	err = limiter.AllowAll(context.Background(), requests)
	fmt.Println(requests[0].N, "charged,", requests[0].Result.Remaining, "left", err)
	// Output:
	// 206 <nil>
	// 206 charged, 794 left <nil>
}

// Wait until a unit is available instead of failing.
func ExampleLimiter_Wait() {
	limiter, err := ratelimit.New(ratelimit.Config{
		Store:  memory.New(memory.Config{}),
		Limits: ratelimit.Limits{"outgoing": ratelimit.TokenBucket(1, 10*time.Millisecond)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	start := time.Now()
	for range 3 {
		if err := limiter.Wait(context.Background(), "outgoing"); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println("three requests took at least 20ms:", time.Since(start).Round(time.Millisecond) >= 20*time.Millisecond)
	// Output: three requests took at least 20ms: true
}

// Repeat a call with the same id when its answer was lost: it is charged once.
func ExampleLimiter_AllowOnce() {
	limiter := newLimiter(ratelimit.Limits{"send_message": ratelimit.TokenBucket(10, time.Minute)})
	for range 2 {
		requests := []ratelimit.Request{{Name: "send_message", Key: []string{"bob"}, N: 1}}
		err := limiter.AllowOnce(context.Background(), "message 4711", requests)
		fmt.Println(requests[0].Result.Remaining, "left", err)
	}
	// Output:
	// 9 left <nil>
	// 9 left <nil>
}

// Charge several limits together: if one denies, none is charged.
func ExampleLimiter_AllowAll() {
	limiter := newLimiter(ratelimit.Limits{
		"from": ratelimit.TokenBucket(10, time.Minute),
		"to":   ratelimit.TokenBucket(1, time.Minute),
	})
	for _, to := range []string{"alice", "alice", "carol"} {
		requests := []ratelimit.Request{
			{Name: "from", Key: []string{"bob"}, N: 1},
			{Name: "to", Key: []string{"bob", to}, N: 1},
		}
		if err := limiter.AllowAll(context.Background(), requests); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("sent,", requests[0].Result.Remaining, "left")
	}
	// Output:
	// sent, 9 left
	// the rate limit was reached; try again after 1m0s
	// sent, 8 left
}

// A limit whose numbers the program keeps elsewhere, such as those that a tenant has paid for.
func ExampleRequest_limit() {
	limiter := newLimiter(ratelimit.Limits{"all": ratelimit.TokenBucket(1000, time.Minute)})
	paid := map[string]int64{"acme": 500, "blue": 20}
	for _, tenant := range []string{"acme", "blue"} {
		limit := ratelimit.TokenBucket(paid[tenant], time.Minute)
		requests := []ratelimit.Request{
			{Name: "all", N: 1},
			{Name: "tenant", Key: []string{tenant}, N: 1, Limit: &limit},
		}
		err := limiter.AllowAll(context.Background(), requests)
		fmt.Println(tenant, "has", requests[1].Result.Remaining, "left", err)
	}
	// Output:
	// acme has 499 left <nil>
	// blue has 19 left <nil>
}
