package limitsfile_test

import (
	"context"
	"fmt"

	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit"
	"github.com/rlsidecar/rlsidecar/pkg/ratelimit/limitsfile"
)

func Example() {
	config, err := limitsfile.Load("", "../../../examples/http-api/limits.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	config.Store = memory.New(memory.Config{}) // or a Redis store, shared with sidecars
	limiter, err := ratelimit.New(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := limiter.Allow(context.Background(), "send_message", "bob")
	fmt.Println(result.Remaining, "of", result.Limit, "left", err)
	// Output: 9 of 10 left <nil>
}
