package xds

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

func limited(n int) (list []*ratelimit.RateLimitDescriptor) {
	for i := range n {
		list = append(list, &ratelimit.RateLimitDescriptor{Key: "k", Value: fmt.Sprint(i), RateLimit: &ratelimit.RateLimitPolicy{Unit: ratelimit.RateLimitUnit_DAY, RequestsPerUnit: 1}})
	}
	return list
}

// TestLargeResponsesAreRefusedBeforeTheyAreDecoded refuses a response with five times as many limits as RLSIDECAR_MAX_LIMITS
// allows. The refusal must need much less memory than the response itself.
func TestLargeResponsesAreRefusedBeforeTheyAreDecoded(t *testing.T) {
	const most = 20_000
	list := resources(t, &ratelimit.RateLimitConfig{Name: "n", Domain: "d", Descriptors: limited(5 * most)})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := answer(&discovery.DiscoveryResponse{TypeUrl: TypeURL, VersionInfo: "2", Resources: list}, "1", most, func(messages []config.Message, problems config.Problems) error {
		if len(messages) != 1 || !messages[0].Unreadable || !problems.Bad() {
			t.Errorf("got %d messages and %v; want one that is unreadable, and a mistake", len(messages), problems)
		}
		return errors.New(problems.Error())
	})
	runtime.ReadMemStats(&after)
	if allocated, size := after.TotalAlloc-before.TotalAlloc, len(list[0].GetValue()); allocated > uint64(size)/4 {
		t.Errorf("the refusal of %d bytes allocated %d bytes; want at most a quarter of them", size, allocated)
	}
	if text := r.GetErrorDetail().GetMessage(); r.VersionInfo != "1" || !strings.Contains(text, "100000 limits, more than the 20000 that RLSIDECAR_MAX_LIMITS allows") {
		t.Errorf("got version %s and %q; want version 1, the numbers and RLSIDECAR_MAX_LIMITS", r.VersionInfo, text)
	}
}

func TestSizeOfAResponse(t *testing.T) {
	deep := &ratelimit.RateLimitDescriptor{Key: "k"}
	for range 30 {
		deep = &ratelimit.RateLimitDescriptor{Key: "k", Descriptors: []*ratelimit.RateLimitDescriptor{deep}}
	}
	metadata, err := structpb.NewStruct(map[string]any{"a": []any{1.0, "x", map[string]any{"b": []any{true, true, true, true, true, true, true, true}}}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(metadata)
	if err != nil {
		t.Fatal(err)
	}
	data = protowire.AppendBytes(protowire.AppendTag(nil, fieldMetadata, protowire.BytesType), data)
	replacing := limited(1)
	for range 11 {
		replacing[0].RateLimit.Replaces = append(replacing[0].RateLimit.Replaces, &ratelimit.RateLimitReplace{})
	}
	config := func(list ...*ratelimit.RateLimitDescriptor) *ratelimit.RateLimitConfig {
		return &ratelimit.RateLimitConfig{Domain: "d", Descriptors: list}
	}
	for name, c := range map[string]struct {
		resources []*anypb.Any
		most      int
		want      string // "" means that most is enough, and that one less is not
	}{
		"limits":                   {resources(t, config(limited(7)...)), 7, "7 limits, more than the 6 "},
		"limits of two resources":  {resources(t, config(limited(3)...), config(limited(4)...)), 7, "7 limits"},
		"nested limits":            {resources(t, config(&ratelimit.RateLimitDescriptor{Descriptors: limited(3)}, limited(1)[0])), 4, "4 limits"},
		"descriptors":              {resources(t, config(deep)), 16, "32 descriptors, more than the 30 "},
		"resources":                {resources(t, config(), config(), config()), 2, "3 descriptors, more than the 2 "},
		"values of metadata":       {resources(t, with(data), config(limited(2)...)), 3, ""},
		"too many values":          {resources(t, with(data)), 2, "13 values of metadata and replaces, more than the 10 "},
		"too many limits replaced": {resources(t, config(replacing...)), 2, "11 values of metadata and replaces, more than the 10 "},
	} {
		if why := tooLarge(c.resources, c.most); why != "" {
			t.Errorf("%s: got %q with a bound of %d; want no mistake", name, why, c.most)
		}
		if why := tooLarge(c.resources, c.most-1); c.want != "" && !strings.Contains(why, c.want) {
			t.Errorf("%s: got %q with a bound of %d; want %q", name, why, c.most-1, c.want)
		}
	}
}
