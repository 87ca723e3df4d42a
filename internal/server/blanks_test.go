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

func postJSON(t *testing.T, x *instance, value string) int {
	t.Helper()
	code, _ := post(t, x.HTTP, "/json", fmt.Sprintf(`{"domain": "d", "descriptors": [{"entries": [{"key": "plain", "value": %q}]}]}`, value))
	return code
}

func TestBlanksAtTheEndsOfValuesDoNotMakeBuckets(t *testing.T) {
	x := start(t, answers)
	allowed := 0
	for _, value := range blank {
		if x.put(t, request("d", valued(value))).OverallCode == rls.RateLimitResponse_OK {
			allowed++
		}
	}
	if allowed != 2 {
		t.Errorf("%d spellings of one value were allowed by a limit of 2; want allowed 2", allowed)
	}
	for _, value := range blank {
		if code := postJSON(t, x, value); code != http.StatusTooManyRequests {
			t.Errorf("%q over /json: %d; want code 429", value, code)
		}
	}
	// Blanks inside a value are part of it.
	expect(t, x.put(t, request("d", valued("a b"))), ok, "OK left 1 of 2/YEAR yearly reset")
	expect(t, x.put(t, request("d", valued("ab"))), ok, "OK left 1 of 2/YEAR yearly reset")
}

func TestBlanksAreKeptIfConfigured(t *testing.T) {
	x := start(t, answers, func(c *Config) { c.Defaults = config.Options{KeepBlanks: true} })
	for _, value := range blank {
		expect(t, x.put(t, request("d", valued(value))), ok, "OK left 1 of 2/YEAR yearly reset")
	}
	for _, value := range blank {
		if code := postJSON(t, x, value); code != http.StatusOK {
			t.Errorf("%q over /json: %d; want code 200", value, code)
		}
	}
}
