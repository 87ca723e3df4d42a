package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// newLimiter is what the examples share. Its clock stands still, so that they say the same each time;
// a program leaves it out.
func newLimiter(limits ratelimit.Limits) *ratelimit.Limiter {
	clock := func() algorithms.Micros { return 1_767_225_600 * algorithms.Second }
	l, err := ratelimit.New(ratelimit.Config{Store: memory.New(memory.Config{Clock: clock}), Limits: limits})
	if err != nil {
		panic(err)
	}
	return l
}

func ExampleLimiter_Limit() {
	limiter := newLimiter(ratelimit.Limits{"send_message": ratelimit.Per(algorithms.TokenBucket, 2, time.Minute)})
	for range 3 {
		err := limiter.Limit(context.Background(), "send_message", "bob")
		if denied, ok := errors.AsType[*ratelimit.Denied](err); ok {
			fmt.Println("too many; come back in", denied.RetryAfter)
			continue
		}
		fmt.Println("sent", err)
	}
	// Output:
	// sent <nil>
	// sent <nil>
	// too many; come back in 30s
}

// Failed logins: look first, charge what failed, forget what succeeded. Looking alone lets a burst of
// guesses in at once; where that matters, charge first and give back (Count: -1) on success.
func ExampleLimiter_Check() {
	limiter := newLimiter(ratelimit.Limits{"failed_logins": ratelimit.Per(algorithms.SlidingLog, 2, time.Hour)})
	login := func(ctx context.Context, user, password string) string {
		if limiter.Check(ctx, "failed_logins", user) != nil {
			return "locked"
		}
		if password != "right" {
			_ = limiter.Limit(ctx, "failed_logins", user) // that it is the last one is no matter now
			return "wrong"
		}
		_ = limiter.Reset(ctx, "failed_logins", user) // else it is forgotten within the hour
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

// Tokens of a language model: what does not fit now is scheduled.
func ExampleLimiter_Reserve() {
	limiter := newLimiter(ratelimit.Limits{"llm_tokens": ratelimit.Per(algorithms.TokenBucket, 40_000, time.Minute)})
	for _, tokens := range []int64{30_000, 30_000, 4_000} {
		wait, err := limiter.Reserve(context.Background(), tokens, "llm_tokens")
		fmt.Println(tokens, "tokens in", wait, err) // time.AfterFunc(wait, work)
	}
	// Output:
	// 30000 tokens in 0s <nil>
	// 30000 tokens in 30s <nil>
	// 4000 tokens in 36s <nil>
}

// What the work came to is known when it is done: the difference is given back, or taken.
func ExampleLimiter_Settle() {
	limiter := newLimiter(ratelimit.Limits{"llm_tokens": ratelimit.Per(algorithms.TokenBucket, 40_000, time.Minute)})
	answers, err := limiter.All(context.Background(), ratelimit.Ask{Name: "llm_tokens", Count: 30_000, Reserve: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	settled, err := limiter.Settle(context.Background(), answers[0].Reservation, 12_500) // counted in the answer
	fmt.Println(answers[0].Remaining, "left, then", settled.Remaining, err)
	// Output:
	// 10000 left, then 27500 <nil>
}

// A call that got no answer can be made again under its id: it is charged once.
func ExampleLimiter_Once() {
	limiter := newLimiter(ratelimit.Limits{"send_message": ratelimit.Per(algorithms.TokenBucket, 10, time.Minute)})
	for range 2 {
		answers, err := limiter.Once(context.Background(), "message 4711", ratelimit.Ask{Name: "send_message", Key: []string{"bob"}})
		fmt.Println(answers[0].Remaining, "left", err)
	}
	// Output:
	// 9 left <nil>
	// 9 left <nil>
}

// Several limits at once: none is charged where one denies.
func ExampleLimiter_All() {
	limiter := newLimiter(ratelimit.Limits{
		"from": ratelimit.Per(algorithms.TokenBucket, 10, time.Minute),
		"to":   ratelimit.Per(algorithms.TokenBucket, 1, time.Minute),
	})
	for _, to := range []string{"alice", "alice", "carol"} {
		answers, err := limiter.All(context.Background(),
			ratelimit.Ask{Name: "from", Key: []string{"bob"}},
			ratelimit.Ask{Name: "to", Key: []string{"bob", to}},
		)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("bob has", answers[0].Remaining, "left")
	}
	// Output:
	// bob has 9 left
	// limit "to": denied for another 1m0s
	// bob has 8 left
}

// limited is net/http middleware: one limit, by the client's address. Behind a proxy the address is
// the proxy's: take what your proxy vouches for instead.
func limited(limiter *ratelimit.Limiter, name string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		err := limiter.Limit(r.Context(), name, client)
		denied, ok := errors.AsType[*ratelimit.Denied](err)
		switch {
		case ok:
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(denied.RetryAfter.Seconds()))))
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		case err != nil: // the Store is away: fail closed
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func Example_middleware() {
	limiter := newLimiter(ratelimit.Limits{"requests": ratelimit.Per(algorithms.TokenBucket, 1, 1500*time.Millisecond)})
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	handler := limited(limiter, "requests", hello)
	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 ""
	// 429 "2"
}

// interceptor is a gRPC interceptor: one limit, by user and method.
func interceptor(limiter *ratelimit.Limiter, name string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		user := ""
		if values := metadata.ValueFromIncomingContext(ctx, "user"); len(values) > 0 {
			user = values[0]
		}
		err := limiter.Limit(ctx, name, user, info.FullMethod)
		denied, ok := errors.AsType[*ratelimit.Denied](err)
		switch {
		case ok:
			// Clients with a retry policy wait for as long.
			pushback := strconv.FormatInt(denied.RetryAfter.Milliseconds()+1, 10)
			_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", pushback))
			return nil, status.Error(codes.ResourceExhausted, denied.Error())
		case err != nil:
			return nil, status.Error(codes.Unavailable, "the rate limit could not be asked")
		default:
			return handle(ctx, request)
		}
	}
}

func Example_interceptor() {
	limiter := newLimiter(ratelimit.Limits{"calls": ratelimit.Per(algorithms.TokenBucket, 1, time.Second)})
	intercept := interceptor(limiter, "calls") // grpc.NewServer(grpc.UnaryInterceptor(intercept))
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs("user", "bob"))
	for range 2 {
		answer, err := intercept(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/chat.Chat/Send"},
			func(context.Context, any) (any, error) { return "sent", nil })
		fmt.Println(answer, status.Code(err))
	}
	// Output:
	// sent OK
	// <nil> ResourceExhausted
}
