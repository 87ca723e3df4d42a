package server

import (
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// Another program writes arbitrary values to the key of a bucket. Requests for that bucket are allowed or
// denied, and never get an error. Other buckets are not affected.
func TestForeignValuesInRedisAffectOneBucketOnly(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	x := start(t, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1000000}}]\n", onRedis("redis://"+redis.Addr))
	x.send(t, "k=bad")
	key := strings.Trim(redis.Do("KEYS", "rl:*bad*"), "[]")
	if key == "" || strings.Contains(key, " ") {
		t.Fatalf("got the keys %q; want exactly one", key)
	}
	state := redis.Do("GET", key)
	for name, write := range map[string][]any{
		"nothing":            {"SET", key, ""},
		"a text":             {"SET", key, "x"},
		"digits":             {"SET", key, "99999999999999999999999999999999999999"},
		"a state and more":   {"SET", key, state + "x"},
		"a part of a state":  {"SET", key, state[:len(state)/2]},
		"bytes":              {"SET", key, strings.Repeat("\xff", len(state))},
		"zeros":              {"SET", key, strings.Repeat("\x00", len(state))},
		"a megabyte":         {"SET", key, strings.Repeat("z", 1<<20)},
		"another type":       {"RPUSH", key, "x"},
		"a script's own sum": {"INCRBYFLOAT", key, "1.5"},
	} {
		redis.Do("DEL", key)
		redis.Do(write...)
		for range 10 { // five failures in a row would open the circuit breaker
			answer := x.send(t, "k=bad")
			if decided := answer.Statuses[0].CurrentLimit != nil; !decided && answer.OverallCode != rls.RateLimitResponse_OVER_LIMIT {
				t.Errorf("%s: got %v; want an answer by the limit, or OVER_LIMIT", name, answer)
			}
			if good := x.send(t, "k=good"); good.OverallCode != rls.RateLimitResponse_OK || good.Statuses[0].CurrentLimit == nil {
				t.Errorf("%s: a request for another bucket got %v; want OK by its limit", name, good)
			}
		}
		t.Logf("%s: %v", name, x.send(t, "k=bad").OverallCode)
	}
	redis.Do("DEL", key)
	if answer := x.send(t, "k=bad"); answer.OverallCode != rls.RateLimitResponse_OK {
		t.Errorf("afterwards: %v; want OK", answer)
	}
}
