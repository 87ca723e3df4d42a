// Package tracing sends spans to an OpenTelemetry collector, one for each sampled call of ShouldRateLimit. The span
// continues the trace of the caller (W3C or B3 headers). The standard OTEL_… environment variables configure the
// exporter and the resource.
//
// Spans contain no texts from requests: no keys, no values, and only configured domains.
package tracing

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/logthrottle"
)

// Config configures Start. OpenTelemetry's variables apply to what the fields leave out. OTEL_EXPORTER_OTLP_ENDPOINT is
// the address of the collector.
type Config struct {
	// Protocol is "http" or "grpc". If it is empty, OTEL_EXPORTER_OTLP_PROTOCOL applies.
	Protocol string
	// Share is how many of the traces that start here are sampled, from 0 (none) to 1 (all). For a trace that
	// a caller started, the caller's decision applies. If Share is nil or 1, OTEL_TRACES_SAMPLER applies.
	Share *float64
	// Service, Namespace and Instance identify this process. If they are empty, OTEL_SERVICE_NAME and
	// OTEL_RESOURCE_ATTRIBUTES apply.
	Service, Namespace, Instance string
	Version                      string
}

// Check returns an error if c is invalid.
func (c *Config) Check() error {
	switch protocol := c.protocol(); {
	case protocol != "http" && protocol != "http/protobuf" && protocol != "grpc":
		return fmt.Errorf("tracing: the protocol is %q; set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf or grpc", protocol)
	case c.Share != nil && !(*c.Share >= 0 && *c.Share <= 1):
		return fmt.Errorf("tracing: the share of traces is %v; write a number from 0 to 1", *c.Share)
	}
	return nil
}

func (c *Config) protocol() string {
	return cmp.Or(c.Protocol, os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http")
}

// Tracing sends spans. Its queue is bounded to a few thousand spans. Further spans are dropped, for example
// while the collector cannot be reached.
type Tracing struct {
	provider   *trace.TracerProvider
	propagator propagation.TextMapPropagator
	tracer     api.Tracer
}

// timeout bounds each attempt to reach the collector, and the duration of Stop.
const timeout = 5 * time.Second

// Start returns a Tracing. It does not wait for the collector. Later errors are logged, at most once a
// minute. Start returns an error if OTEL_RESOURCE_ATTRIBUTES is not valid. OpenTelemetry logs other invalid
// variables, and ignores them.
func Start(ctx context.Context, c Config, log *zap.Logger) (*Tracing, error) {
	var client otlptrace.Client
	if c.protocol() == "grpc" {
		client = otlptracegrpc.NewClient(otlptracegrpc.WithTimeout(timeout))
	} else {
		client = otlptracehttp.NewClient(otlptracehttp.WithTimeout(timeout))
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	own, err := c.resource(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	options := []trace.TracerProviderOption{trace.WithBatcher(exporter), trace.WithResource(own)}
	if c.Share != nil && *c.Share < 1 {
		options = append(options, trace.WithSampler(trace.ParentBased(trace.TraceIDRatioBased(*c.Share))))
	}
	log = logthrottle.Log(log, time.Minute)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("traces cannot be sent; check OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_PROTOCOL", zap.Error(err))
	}))
	t := &Tracing{
		provider:   trace.NewTracerProvider(options...),
		propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, b3.New()),
	}
	t.tracer = t.provider.Tracer("github.com/rlsidecar/rlsidecar")
	return t, nil
}

// resource describes this process. A later attribute replaces an earlier one.
func (c *Config) resource(ctx context.Context) (*resource.Resource, error) {
	var own []attribute.KeyValue
	for key, value := range map[string]string{
		"service.name": c.Service, "service.namespace": c.Namespace, "service.instance.id": c.Instance, "service.version": c.Version,
	} {
		if value != "" {
			own = append(own, attribute.String(key, value))
		}
	}
	return resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(attribute.String("service.name", "rlsidecar")),
		resource.WithFromEnv(), resource.WithAttributes(own...))
}

// Stop sends the queued spans. It takes at most the duration timeout.
func (t *Tracing) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // the error handler logs errors
}

// Caller returns the caller's span for Start, from the header fields of its request. field returns the value of a
// field, or "".
func (t *Tracing) Caller(field func(name string) string) any {
	return t.propagator.Extract(context.Background(), carrier(field))
}

type carrier func(name string) string

func (c carrier) Get(name string) string { return c(strings.ToLower(name)) }

func (carrier) Set(string, string) {}

func (carrier) Keys() []string { return nil }

const (
	service = "envoy.service.ratelimit.v3.RateLimitService"
	method  = "ShouldRateLimit"
)

// Span is the span of a call. The zero Span is that of a call that is not sampled.
type Span struct{ span api.Span }

// Start starts the span of a call that has arrived at the given time. caller is the result of Caller, or nil. If t is
// nil, the call is not sampled.
func (t *Tracing) Start(caller any, arrived time.Time) Span {
	if t == nil {
		return Span{}
	}
	parent, ok := caller.(context.Context)
	if !ok {
		parent = context.Background()
	}
	_, span := t.tracer.Start(parent, service+"/"+method, api.WithSpanKind(api.SpanKindServer), api.WithTimestamp(arrived))
	if !span.IsRecording() {
		return Span{}
	}
	span.SetAttributes(attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service), attribute.String("rpc.method", method))
	return Span{span}
}

// mostNames bounds the number of limit names in one span.
const mostNames = 8

// End ends the span of c. err is the gRPC status of the answer, or nil. If c has a delay, the span includes it. All
// names in the span come from the configuration.
func (s Span) End(c *limiter.Call, denied bool, err error) {
	if s.span == nil {
		return
	}
	code := grpcstatus.Code(err)
	s.span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(code)))
	switch {
	case err != nil:
		s.span.SetStatus(codes.Error, code.String())
	case denied:
		s.span.SetAttributes(attribute.String("ratelimit.code", "OVER_LIMIT"))
	default:
		s.span.SetAttributes(attribute.String("ratelimit.code", "OK"))
	}
	if c.Verdict.Domain != nil {
		s.span.SetAttributes(attribute.String("ratelimit.domain", c.Verdict.Domain.Name))
	}
	var by []string
	for i := range c.Results {
		r := &c.Results[i]
		if r.Outcome.Denies() && r.Policy != nil && len(by) < mostNames {
			by = append(by, r.Policy.Name)
		}
	}
	if by != nil {
		s.span.SetAttributes(attribute.StringSlice("ratelimit.denied_by", by))
	}
	s.span.SetAttributes(attribute.Int("ratelimit.limits", len(c.Results)))
	if c.Failed {
		s.span.SetAttributes(attribute.Bool("ratelimit.backend_failure", true))
	}
	s.span.End(api.WithTimestamp(time.Now().Add(time.Duration(c.Verdict.Delay) * time.Microsecond)))
}
