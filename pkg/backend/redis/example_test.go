package redis_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend/redis"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
)

// Share limits with other processes, and with sidecars whose configuration has the same domain and limit
// names. (This example needs a Redis server, so it is compiled but not run.)
func ExampleOpen() {
	store, err := redis.Open(redis.Config{URL: "redis://127.0.0.1:6379", Timeout: 20 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := ratelimit.New(ratelimit.Config{
		Store: store, Domain: "edge", Limits: ratelimit.Limits{"send": ratelimit.TokenBucket(10, time.Minute)},
	})
	if err != nil {
		log.Fatal(err)
	}
	result, err := limiter.Allow(context.Background(), "send", "bob")
	fmt.Println(result.Remaining, err)
}
