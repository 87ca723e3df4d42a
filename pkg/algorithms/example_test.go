package algorithms_test

import (
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Take returns the next state of a bucket, which the caller stores. The zero State is a new bucket.
func ExampleLimit_Take() {
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 2, Period: 10 * algorithms.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	var state algorithms.State
	for at := range algorithms.Micros(4) {
		now := 1_767_225_600*algorithms.Second + at*algorithms.Second
		var d algorithms.Decision
		state, d = limit.Take(state, now, algorithms.Charge{Cost: 1})
		fmt.Println(d.Allowed, d.Remaining, time.Duration(d.RetryAfter)*time.Microsecond)
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 3s
	// false 0 2s
}

// Decide two limits together: if one denies, none is charged.
func ExampleTakeAll() {
	perUser, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: algorithms.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	perTeam, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 3, Period: algorithms.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	cost := algorithms.Charge{Cost: 2}
	buckets := []algorithms.Bucket{{Limit: &perUser, Charge: cost}, {Limit: &perTeam, Charge: cost}} // both are new
	for range 2 {
		allowed := algorithms.TakeAll(1_767_225_600*algorithms.Second, buckets)
		fmt.Println(allowed, buckets[0].Decision.Remaining, buckets[1].Decision.Remaining)
	}
	// Output:
	// true 8 1
	// false 8 1
}
