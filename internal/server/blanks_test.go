package server

import (
	"fmt"
	"net/http"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

// blank has spellings of the value k that an HTTP/1 application cannot distinguish. Envoy keeps the blanks
// of an HTTP/2 client.
var blank = []string{"k", "k ", "k  ", " k", "\tk", "k\t", " \t k \t "}

func valued(value string) *ratelimit.RateLimitDescriptor {
	return &ratelimit.RateLimitDescriptor{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "plain", Value: value}}}
}

func TestBlanksAtTheEndsOfValuesDoNotMakeBuckets(t *testing.T) {
	for keep, want := range map[bool]int{false: 2, true: 2 * len(blank)} {
		x := start(t, answers, func(c *Config) { c.Defaults = config.Options{KeepBlanks: keep} })
		allowed := 0
		for _, value := range blank {
			if x.put(t, request("d", valued(value))).OverallCode == rls.RateLimitResponse_OK {
				allowed++
			}
			if code, _ := post(t, x.HTTP, "/json", fmt.Sprintf(`{"domain": "d", "descriptors": [{"entries": [{"key": "plain", "value": %q}]}]}`, value)); code == http.StatusOK {
				allowed++
			}
		}
		if allowed != want {
			t.Errorf("kept %t: %d requests with spellings of one value were allowed by a limit of 2; want %d", keep, allowed, want)
		}
		// Blanks inside a value are part of it.
		expect(t, x.put(t, request("d", valued("a b"))), ok, "OK left 1 of 2/YEAR yearly reset")
		expect(t, x.put(t, request("d", valued("ab"))), ok, "OK left 1 of 2/YEAR yearly reset")
	}
}
