package server

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	conf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.uber.org/zap"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rlsidecar/rlsidecar/internal/grpcapi"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/xdstest"
)

type plane struct{ *xdstest.Plane }

func newPlane(t *testing.T, address string) *plane {
	t.Helper()
	return &plane{xdstest.Start(t, address)}
}

// Without descriptors, set removes the domain.
func (p *plane) set(t *testing.T, version string, list ...*conf.RateLimitDescriptor) {
	t.Helper()
	var configs []*conf.RateLimitConfig
	if len(list) > 0 {
		configs = append(configs, &conf.RateLimitConfig{Name: "d", Domain: "d", Descriptors: list})
	}
	p.Set(t, "n", version, configs...)
}

func perUnit(key string, n uint32, unit conf.RateLimitUnit) *conf.RateLimitDescriptor {
	return &conf.RateLimitDescriptor{Key: key, RateLimit: &conf.RateLimitPolicy{Unit: unit, RequestsPerUnit: n}}
}

const year = conf.RateLimitUnit(6) // the published Go module lacks this unit

func from(p *plane, edit ...func(*XDS)) func(*Config) {
	return func(c *Config) {
		c.Paths, c.XDS = nil, XDS{Server: p.Address, NodeID: "n", MinBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond}
		for _, e := range edit {
			e(&c.XDS)
		}
	}
}

func (x *instance) shows(t *testing.T, line string) {
	t.Helper()
	eventually(t, line, func() bool { return strings.Contains(x.metrics(t), "\n"+line+"\n") })
}

// left returns the remaining units of a descriptor after one more request, and whether a limit applies to it.
func (x *instance) left(t *testing.T, text string) (rest uint32, limited bool) {
	t.Helper()
	s := x.send(t, text).Statuses[0]
	return s.LimitRemaining, s.CurrentLimit != nil
}

func TestControlPlaneSetsLimits(t *testing.T) {
	p := newPlane(t, "")
	p.set(t, "1", perUnit("k", 2, year))
	x := start(t, "", from(p), func(c *Config) { c.Defaults.ConsumeEach = true }) // the third request below counts, although it is denied
	var got []rls.RateLimitResponse_Code
	for range 3 {
		got = append(got, x.send(t, "k=v").OverallCode)
	}
	if !slices.Equal(got, []rls.RateLimitResponse_Code{ok, ok, over}) {
		t.Errorf("got %v; want %v", got, []rls.RateLimitResponse_Code{ok, ok, over})
	}
	if page := body(t, get(t, x.Admin, "/configuration")); !strings.Contains(page, "xds:"+p.Address) {
		t.Errorf("the page does not show the control plane:\n%s; want a text that contains %q", page, "xds:"+p.Address)
	}
	x.shows(t, "rlsidecar_xds_connected 1")
	x.shows(t, `rlsidecar_config_reloads_total{result="success"} 1`)

	// A higher limit applies, and consumption stays.
	p.set(t, "2", perUnit("k", 4, year))
	x.shows(t, `rlsidecar_config_reloads_total{result="success"} 2`)
	if rest, limited := x.left(t, "k=v"); rest != 0 || !limited {
		t.Errorf("%d left, limited %t; want 0 left, and limited", rest, limited)
	}

	// A configuration with a mistake is rejected, and the previous one stays in use.
	p.set(t, "3", perUnit("k", 9, year), perUnit("z", 9, 99))
	const mistake = "xds:d: descriptors[1](z).rate_limit: invalid rate limit unit"
	if why, page := receive(t, p.Refused), body(t, get(t, x.Admin, "/configuration")); !strings.Contains(why, mistake) || !strings.Contains(page, mistake) {
		t.Errorf("got the rejection\n%s\nwant it, and the page, to contain %s", why, mistake)
	}
	x.shows(t, "rlsidecar_config_last_reload_successful 0")
	if a := x.send(t, "k=v"); a.Statuses[0].CurrentLimit.GetRequestsPerUnit() != 4 {
		t.Errorf("got %v; want 4", a)
	}
	if x.logs.FilterMessageSnippet("configuration refused").Len() == 0 {
		t.Error("the log has no line about the refused configuration; want one")
	}

	// An empty configuration is valid too.
	p.set(t, "4")
	x.shows(t, "rlsidecar_config_last_reload_successful 1")
	if _, limited := x.left(t, "k=v"); limited {
		t.Error("the descriptor is still limited; want no limit")
	}
	eventually(t, "the log reports the empty configuration", func() bool { return x.logs.FilterMessageSnippet("NO REQUEST IS LIMITED").Len() == 1 })
}

func receive(t *testing.T, from <-chan string) string {
	t.Helper()
	select {
	case s := <-from:
		return s
	case <-time.After(time.Minute):
		t.Fatal("no rejection was received within a minute; want one")
		return ""
	}
}

func TestLimitsOutliveTheControlPlane(t *testing.T) {
	p := newPlane(t, "")
	p.set(t, "1", perUnit("k", 1, year))
	x := start(t, "", from(p))
	p.Stop()
	x.shows(t, "rlsidecar_xds_connected 0")
	eventually(t, "the condition is reported", func() bool {
		return strings.HasPrefix(x.conditions(t), "degraded control-plane-away: There is no stream from the xDS server "+p.Address)
	})
	if first, second := x.send(t, "k=v").OverallCode, x.send(t, "k=v").OverallCode; first != ok || second != over {
		t.Errorf("got %v, %v; want OK and OVER_LIMIT", first, second)
	}
	if code := get(t, x.HTTP, "/healthcheck").StatusCode; code != 200 {
		t.Errorf("/healthcheck: status %d, want 200", code)
	}
	p = newPlane(t, p.Address)
	p.set(t, "1", perUnit("k", 7, year))
	eventually(t, "the new limit", func() bool {
		return x.send(t, "k=v").Statuses[0].CurrentLimit.GetRequestsPerUnit() == 7
	})
	eventually(t, "no condition when the control plane is back", func() bool { return x.conditions(t) == "" })
}

func TestStartWithoutConfiguration(t *testing.T) {
	p := newPlane(t, "")
	x := start(t, "", from(p, func(x *XDS) { x.StartWithout = true }))
	if x.Snapshot != nil {
		t.Error("Running has a snapshot before the first configuration; want nil")
	}
	health := func(service string) healthpb.HealthCheckResponse_ServingStatus {
		r, err := x.health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status
	}
	if code := get(t, x.HTTP, "/readyz").StatusCode; code != 503 {
		t.Errorf("/readyz: %d, want 503", code)
	}
	if a := x.send(t, "k=v", "other=v"); a.OverallCode != over || len(a.Statuses) != 2 || a.Statuses[0].Code != over || a.Statuses[0].CurrentLimit != nil {
		t.Errorf("got %v; want OVER_LIMIT with two statuses, the first without a limit", a)
	}
	x.shows(t, `rlsidecar_requests_refused_total{reason="no_config"} 1`)
	if page := body(t, get(t, x.Admin, "/")); !strings.Contains(page, "There is no configuration yet") {
		t.Errorf("the page:\n%s; want a text that contains %q", page, "There is no configuration yet")
	}

	// An invalid configuration changes nothing.
	p.set(t, "1", perUnit("", 1, year))
	receive(t, p.Refused)
	if a := x.send(t, "k=v"); a.OverallCode != over || health("") != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("got %v; want OVER_LIMIT and health(\"\") %v", a, healthpb.HealthCheckResponse_NOT_SERVING)
	}
	p.set(t, "2", perUnit("k", 1, year))
	for _, name := range []string{"", "ratelimit", grpcapi.ServiceName} {
		eventually(t, name+" is ready", func() bool { return health(name) == healthpb.HealthCheckResponse_SERVING })
	}
	if a := x.send(t, "k=v"); a.OverallCode != ok || get(t, x.HTTP, "/readyz").StatusCode != 200 {
		t.Errorf("got %v; want OK, and a server that is ready", a)
	}

	// A server that was never ready stops without an error, too.
	without := func(c *Config) {
		c.XDS.NodeID, c.XDS.StartWithout, c.Defaults.OnFailure = "unknown", true, limiter.Allow
	}
	if a := start(t, "", from(p), without).send(t, "k=v"); a.OverallCode != ok {
		t.Errorf("with the default allow: got %v; want OK", a)
	}
}

func TestStartWaitsForTheFirstConfiguration(t *testing.T) {
	p := newPlane(t, "")
	c := Config{GRPC: "127.0.0.1:0"}
	from(p)(&c)
	ctx, cancel := context.WithCancel(t.Context())
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- Run(ctx, c, zap.NewNop(), func(Running) { close(started) }) }()
	p.set(t, "1", perUnit("", 1, year))
	receive(t, p.Refused) // the server has rejected the first configuration, and must wait for another
	select {
	case <-started:
		t.Error("the server started without a configuration; want it to wait")
	default:
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run, stopped while it waited: %v; want no error", err)
	}
}

// A gateway sends the check of a call with 0 hits, and its cost as a second call.
func TestAnOverlayReservesForTheChecksOfAGateway(t *testing.T) {
	p := newPlane(t, "")
	p.set(t, "1", perUnit("k", 10, year))
	overlay := filepath.Join(t.TempDir(), "overlay.yaml")
	writeFile(t, overlay, "domain: d\nconsume: together\ndescriptors: [{key: k, rate_limit: {settle: {by: bucket, estimate: 4}}}]\n")
	x := start(t, "", from(p, func(c *XDS) { c.Overlay = overlay }))
	for _, want := range []uint32{6, 2} {
		if a := x.send(t, "k=v;hits=0"); a.OverallCode != ok || a.Statuses[0].LimitRemaining != want {
			t.Errorf("got %v, want OK and %d left", a, want)
		}
	}
}
