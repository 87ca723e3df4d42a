package e2e

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	conf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/xdstest"
)

// aiNode is the xDS node id of the rate limit service in Envoy AI Gateway.
const aiNode = "envoy-ai-gateway-ratelimit"

// aiQuota returns the configuration that Envoy AI Gateway sends for a QuotaPolicy of one backend. The model
// small has one quota. The model large has a quota for each tenant, and one for requests without a tenant.
func aiQuota(perHour uint32) *conf.RateLimitConfig {
	quota := func(key, value string, hourly uint32) *conf.RateLimitDescriptor {
		d := &conf.RateLimitDescriptor{Key: key, Value: value, RateLimit: &conf.RateLimitPolicy{Unit: conf.RateLimitUnit_HOUR, RequestsPerUnit: hourly}}
		d.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.VarintType), 1)) // quota_mode: true; the Go type lacks this field
		return d
	}
	const rest = "rule-1-match--1"
	return &conf.RateLimitConfig{Name: "ai-gateway-quota", Domain: "ai-gateway-quota", Descriptors: []*conf.RateLimitDescriptor{{
		Key: "backend_name", Value: "default/openai", Descriptors: []*conf.RateLimitDescriptor{
			quota("model_name_override", "small", perHour),
			{Key: "model_name_override", Value: "large", Descriptors: []*conf.RateLimitDescriptor{
				quota("rule-0-x-tenant-match-0", "", perHour),
				quota(rest, rest, 1000*perHour),
			}},
		},
	}}}
}

// TestEnvoyAIGatewayDeployment starts the program with the environment of Envoy AI Gateway's rate limit
// deployment. The test acts as its configuration server and as its proxies. A proxy sends 1 hit when a
// request starts, and as many hits as the answer has tokens when it ends.
func TestEnvoyAIGatewayDeployment(t *testing.T) {
	t.Parallel()
	addr := loopback()
	plane := xdstest.Start(t, addr+":18002")
	redis := redistest.Start(t)
	cmd := exec.Command(sidecarProgram)
	cmd.Args = []string{"/bin/ratelimit"} // the command of the deployment
	cmd.Env = append(os.Environ(),
		"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+plane.Address, "CONFIG_GRPC_XDS_NODE_ID="+aiNode,
		"FORCE_START_WITHOUT_INITIAL_CONFIG=true", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Addr, "USE_STATSD=false", "LOG_LEVEL=info",
		"GRPC_HOST="+addr, "HOST="+addr, "DEBUG_HOST="+addr,
		"RLSIDECAR_METRICS_LISTEN="+addr+":9090", "RLSIDECAR_BACKEND_TIMEOUT=1s", "RLSIDECAR_DRAIN_DELAY=0s",
	)
	sidecar := startCommand(t, cmd)
	awaitPort(t, sidecar, "tcp", net.JoinHostPort(addr, "8081"))
	service := rls.NewRateLimitServiceClient(dial(t, addr+":8081"))
	send := func(descriptor string, hits uint64) string {
		t.Helper()
		d := rlstest.Descriptor(descriptor)
		d.HitsAddend = wrapperspb.UInt64(hits)
		answer, err := service.ShouldRateLimit(t.Context(), rlstest.Request("ai-gateway-quota", d))
		if err != nil {
			t.Fatal(err)
		}
		return answer.OverallCode.String()
	}
	plane.Set(t, aiNode, "1", aiQuota(10))
	const small, large = "backend_name=default/openai,model_name_override=small", "backend_name=default/openai,model_name_override=large"
	eventually(t, "the quotas are in use", func() bool {
		answer, err := service.ShouldRateLimit(t.Context(), rlstest.Request("ai-gateway-quota", rlstest.Descriptor(small)))
		return err == nil && answer.OverallCode == rls.RateLimitResponse_OK && answer.Statuses[0].CurrentLimit != nil
	})

	for _, step := range []struct {
		descriptor string
		hits       uint64
		want       string
		why        string
	}{
		{large + ",rule-0-x-tenant-match-0=ann", 1, "OK", "the first request"},
		{large + ",rule-0-x-tenant-match-0=ann", 20, "OVER_LIMIT", "its tokens: more than the quota, and charged"},
		{large + ",rule-0-x-tenant-match-0=ann", 1, "OVER_LIMIT", "ann's next request"},
		{large + ",rule-0-x-tenant-match-0=bob", 1, "OK", "bob has a quota of his own"},
		{large + ",rule-1-match--1=rule-1-match--1", 1, "OK", "a request without a tenant"},
		{small, 20, "OVER_LIMIT", "the tokens of the request that found the quotas in use"},
		{small, 1, "OVER_LIMIT", "the next request for this model"},
		{"backend_name=default/other,model_name_override=small", 1, "OK", "a backend without a quota"},
	} {
		if got := send(step.descriptor, step.hits); got != step.want {
			t.Errorf("%s: %s %d: %s, want %s", step.why, step.descriptor, step.hits, got, step.want)
		}
	}

	// An update of the policy applies to a tenant that has used up the old quota.
	plane.Set(t, aiNode, "2", aiQuota(100))
	eventually(t, "ann has units of the new quota left", func() bool { return send(large+",rule-0-x-tenant-match-0=ann", 0) == "OK" })
	if keys := redis.Do("keys", "*"); !strings.Contains(keys, "ann") {
		t.Errorf("the quotas are not in Redis: %s", keys)
	}
}
