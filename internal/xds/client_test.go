package xds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/xdstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const node = "node-1"

type plane struct{ *xdstest.Plane }

func newPlane(t *testing.T, address string, options ...grpc.ServerOption) *plane {
	t.Helper()
	return &plane{xdstest.Start(t, address, options...)}
}

func (p *plane) set(t *testing.T, version string, configs ...*ratelimit.RateLimitConfig) {
	t.Helper()
	p.Set(t, node, version, configs...)
}

func (p *plane) next(t *testing.T) *discovery.DiscoveryRequest {
	t.Helper()
	return receive(t, "a request", p.Requests)
}

func receive[T any](t *testing.T, what string, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(time.Minute):
		t.Fatalf("%s did not arrive within a minute; want it", what)
	}
	return value
}

type use struct {
	messages []config.Message
	problems config.Problems
}

// follow runs a Client until the test ends. It rejects configurations with problems, or with a descriptor
// "bad".
func follow(t *testing.T, c Config) <-chan use {
	t.Helper()
	c.NodeID = node
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.MinBackoff == 0 {
		c.MinBackoff, c.MaxBackoff = time.Millisecond, 20*time.Millisecond
	}
	client, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	uses := make(chan use, 100)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		client.Run(ctx, func(messages []config.Message, problems config.Problems) error {
			uses <- use{messages, problems}
			if len(problems) > 0 {
				return problems
			}
			for _, m := range messages {
				for _, d := range m.Descriptors {
					if d.Key == "bad" {
						return fmt.Errorf("%s is bad", m.Domain)
					}
				}
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return uses
}

func domain(name string, keys ...string) *ratelimit.RateLimitConfig {
	c := &ratelimit.RateLimitConfig{Name: name, Domain: name}
	for _, key := range keys {
		c.Descriptors = append(c.Descriptors, &ratelimit.RateLimitDescriptor{
			Key: key, RateLimit: &ratelimit.RateLimitPolicy{Unit: ratelimit.RateLimitUnit_MINUTE, RequestsPerUnit: 5},
		})
	}
	return c
}

func TestEveryResponseIsTheWholeConfiguration(t *testing.T) {
	p := newPlane(t, "")
	uses := follow(t, Config{
		Server: p.Address, Version: "1.2.3", NodeMetadata: map[string]string{"zone": "a"}, Headers: map[string]string{"X-Team": "edge"},
	})
	if got := receive(t, "a stream", p.Opened); len(got["x-team"]) != 1 || got["x-team"][0] != "edge" {
		t.Errorf("got the headers %v; want x-team: edge", got)
	}
	first := p.next(t)
	n := first.GetNode()
	if first.TypeUrl != TypeURL || len(first.ResourceNames) > 0 || first.VersionInfo != "" || first.ResponseNonce != "" ||
		n.GetId() != node || n.GetUserAgentName() != "rlsidecar" || n.GetUserAgentVersion() != "1.2.3" || n.GetMetadata().AsMap()["zone"] != "a" {
		t.Errorf("got the first request %v; want one with the node and the type, and without version and nonce", first)
	}
	nonces := map[string]bool{}
	for version, configs := range [][]*ratelimit.RateLimitConfig{{domain("a", "x"), domain("b", "y")}, {domain("b", "y", "z")}, {}} {
		version := fmt.Sprint(version)
		p.set(t, version, configs...)
		if got := receive(t, "a configuration", uses); len(got.messages) != len(configs) || len(got.problems) > 0 {
			t.Errorf("version %s: got %v; want %d messages without problems", version, got, len(configs))
		}
		ack := p.next(t)
		if ack.VersionInfo != version || ack.ResponseNonce == "" || nonces[ack.ResponseNonce] || ack.ErrorDetail != nil || ack.TypeUrl != TypeURL {
			t.Errorf("version %s: got the answer %v; want an ACK of the version with a new nonce", version, ack)
		}
		nonces[ack.ResponseNonce] = true
	}
}

func TestARefusalNamesItsCause(t *testing.T) {
	p := newPlane(t, "")
	uses := follow(t, Config{Server: p.Address})
	p.set(t, "1", domain("a", "x"))
	receive(t, "a configuration", uses)
	p.next(t)
	p.next(t)
	p.set(t, "2", domain("a", "bad"))
	receive(t, "a configuration", uses)
	if nack := p.next(t); nack.VersionInfo != "1" || nack.ResponseNonce == "" || nack.ErrorDetail.GetMessage() != "a is bad" {
		t.Errorf("got %v; want a rejection (NACK) with version 1 and the error \"a is bad\"", nack)
	}
	p.set(t, "3", domain("a", "y"))
	for ack := p.next(t); ack.VersionInfo != "3"; ack = p.next(t) { // until then the server sends version 2 repeatedly
		if ack.VersionInfo != "1" || ack.ErrorDetail == nil {
			t.Errorf("got %v; want a rejection (NACK) with version 1", ack)
		}
	}
}

// The control plane sends a rejected version again at once. The client rejects it again only after a pause.
func TestRefusedAgainIsAnsweredLater(t *testing.T) {
	p := newPlane(t, "")
	p.set(t, "1", domain("a", "bad"))
	uses := follow(t, Config{Server: p.Address, MinBackoff: time.Hour, MaxBackoff: 1000 * time.Hour})
	receive(t, "a configuration", uses)
	receive(t, "the same again", uses)
	select {
	case <-uses:
		t.Error("the rejected version arrived a third time within 200 ms; want a pause")
	case <-time.After(200 * time.Millisecond):
	}
}

// The restarted server counts its versions from the beginning, so version 1 is another configuration.
func TestServerAwayAndBack(t *testing.T) {
	p := newPlane(t, "")
	connected := make(chan bool, 100)
	uses := follow(t, Config{Server: p.Address, Connected: func(up bool) { connected <- up }})
	p.set(t, "1", domain("a", "x"))
	receive(t, "a configuration", uses)
	p.Stop()
	if up, down := receive(t, "up", connected), receive(t, "down", connected); !up || down {
		t.Errorf("Connected was called with %t, then %t; want true, then false", up, down)
	}
	time.Sleep(50 * time.Millisecond) // time for some failed attempts
	p = newPlane(t, p.Address)
	p.set(t, "1", domain("a", "y"))
	if got := receive(t, "a configuration", uses); got.messages[0].Descriptors[0].Key != "y" {
		t.Errorf("got %v; want the key y", got)
	}
	if first := p.next(t); first.VersionInfo != "" || first.ResponseNonce != "" {
		t.Errorf("got %v; want a first request without version and nonce", first)
	}
}

func TestResponseTooLarge(t *testing.T) {
	p := newPlane(t, "")
	p.set(t, "1", domain("a", strings.Repeat("x", 2000)))
	uses := follow(t, Config{Server: p.Address, MaxMessage: 1000})
	receive(t, "a stream", p.Opened)
	receive(t, "another", p.Opened)
	p.set(t, "2", domain("a", "x"))
	if got := receive(t, "a configuration", uses); got.messages[0].Descriptors[0].Key != "x" {
		t.Errorf("got %v; want the key x", got)
	}
}

func TestForeignTypeIsRefused(t *testing.T) {
	used := func([]config.Message, config.Problems) error {
		t.Error("the configuration was used; want it rejected")
		return nil
	}
	r := answer(&discovery.DiscoveryResponse{TypeUrl: resource.ClusterType, VersionInfo: "2", Nonce: "n"}, "1", config.DefaultMaxLimits, used)
	if r.VersionInfo != "1" || r.ResponseNonce != "n" || !strings.Contains(r.ErrorDetail.GetMessage(), TypeURL) {
		t.Errorf("got %v; want a rejection (NACK) with version 1, nonce n and the type's URL in the error", r)
	}
}

func TestPauseGrowsUpToItsBound(t *testing.T) {
	c := Client{config: Config{MinBackoff: DefaultMinBackoff, MaxBackoff: DefaultMaxBackoff}}
	for failures, most := range map[int]time.Duration{0: time.Second, 1: 2 * time.Second, 4: 16 * time.Second, 5: 30 * time.Second, 40: 30 * time.Second, 1 << 20: 30 * time.Second} {
		var longest, shortest time.Duration = 0, most
		for range 2000 {
			d := c.backoff(failures)
			longest, shortest = max(longest, d), min(shortest, d)
		}
		if longest > most || longest < most*9/10 || shortest > most/10 {
			t.Errorf("after %d: %s to %s, want 0 to %s", failures, shortest, longest, most)
		}
	}
}

func TestHeadersThatCannotBeSent(t *testing.T) {
	for name, value := range map[string]string{"": "x", "a b": "x", ":path": "x", "grpc-timeout": "1S", "a": "x\n", "b": "é", "c": "x\x7f", "Grpc-Timeout": "1S"} {
		if err := CheckHeader(name, value); err == nil {
			t.Errorf("%q: got %q; want an error from CheckHeader", name, value)
		}
		if _, err := New(Config{Server: "localhost:1", Headers: map[string]string{name: value}}); err == nil {
			t.Errorf("%q: got %q; want an error from New", name, value)
		}
	}
	for name, value := range map[string]string{"Authorization": "Bearer x y", "az-AZ_0.9": " !~"} {
		if err := CheckHeader(name, value); err != nil {
			t.Error(err)
		}
	}
}

func TestDefaultsOfTheClient(t *testing.T) {
	c, err := New(Config{Server: "localhost:1"})
	if err != nil {
		t.Fatal(err)
	}
	if c.config.MinBackoff != DefaultMinBackoff || c.config.MaxBackoff != DefaultMaxBackoff || c.config.MaxMessage != DefaultMaxMessage {
		t.Errorf("got %+v; want the defaults", c.config)
	}
}

func TestALongRefusalIsCut(t *testing.T) {
	longest, inTheMiddle := strings.Repeat("x", maxRefusal), strings.Repeat("x", maxRefusal-1) // the bound is in the middle of an é
	for text, want := range map[string]string{longest: longest, longest + "x": longest + "…", inTheMiddle + "é": inTheMiddle + "\ufffd…"} {
		r := answer(&discovery.DiscoveryResponse{TypeUrl: TypeURL}, "", config.DefaultMaxLimits, func([]config.Message, config.Problems) error { return errors.New(text) })
		if got := r.ErrorDetail.GetMessage(); got != want {
			t.Errorf("%d bytes: %d bytes that end in %q; want %d that end in %q", len(text), len(got), got[len(got)-5:], len(want), want[len(want)-5:])
		}
	}
}

func TestVersionsThatAreRejectedAgain(t *testing.T) {
	var r rejections
	for i, c := range []struct {
		version  string
		accepted bool
		earlier  int
		again    bool
	}{
		{"1", false, 0, false}, {"1", false, 0, true}, {"1", false, 1, true}, {"1", false, 2, true},
		{"2", false, 0, false}, {"2", false, 0, true}, {"3", true, 0, false}, {"2", false, 0, false},
		{"2", false, 0, true}, {"1", true, 0, false}, {"1", false, 0, false},
	} {
		if earlier, again := r.add(c.version, c.accepted); earlier != c.earlier || again != c.again {
			t.Errorf("step %d: got %d, %t; want %d, %t", i, earlier, again, c.earlier, c.again)
		}
	}
}

func TestAControlPlaneOnAUnixSocketEndsAStream(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "xds")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		tooltest.Impossible(t, err.Error())
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		return status.Error(codes.PermissionDenied, "an unknown node")
	}))
	served := make(chan error)
	go func() { served <- server.Serve(listener) }()
	defer func() { server.Stop(); _ = <-served }()
	client, err := New(Config{Server: "unix:" + socket, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if answered, err := client.stream(t.Context(), nil); answered || status.Code(err) != codes.PermissionDenied {
		t.Errorf("got %t, %v; want the error of the control plane, and no answer", answered, err)
	}
}

func TestAServerThatIsNoTarget(t *testing.T) {
	if _, err := New(Config{Server: "%%"}); err == nil || !strings.Contains(err.Error(), `xDS server "%%"`) {
		t.Errorf("got %v; want an error with the server", err)
	}
}
