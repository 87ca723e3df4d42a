package server

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/tracing"
)

type sink struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (s *sink) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.got <- r
	return &collector.ExportTraceServiceResponse{}, nil
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	message := &collector.ExportTraceServiceRequest{}
	if err != nil || proto.Unmarshal(body, message) != nil {
		http.Error(w, "no traces", http.StatusBadRequest)
		return
	}
	s.got <- message
}

func newSink(t *testing.T, protocol string) (*sink, string) {
	t.Helper()
	s := &sink{got: make(chan *collector.ExportTraceServiceRequest, 100)}
	if protocol == "http" {
		there := httptest.NewServer(s)
		t.Cleanup(there.Close)
		return s, there.URL
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	collector.RegisterTraceServiceServer(g, s)
	go func() { _ = g.Serve(listener) }()
	t.Cleanup(g.Stop)
	return s, "http://" + listener.Addr().String()
}

// spans returns all received spans by name, and the attributes of the process. It may be called once, after the sidecar
// has stopped.
func (s *sink) spans(t *testing.T) (byName map[string][]*trace.Span, process string) {
	t.Helper()
	close(s.got)
	byName = map[string][]*trace.Span{}
	for r := range s.got {
		for _, of := range r.ResourceSpans {
			process = of.Resource.String()
			for _, scope := range of.ScopeSpans {
				for _, span := range scope.Spans {
					byName[span.Name] = append(byName[span.Name], span)
				}
			}
		}
	}
	return byName, process
}

func inTrace(spans []*trace.Span, id string) (in []*trace.Span) {
	for _, span := range spans {
		if hex.EncodeToString(span.TraceId) == id {
			in = append(in, span)
		}
	}
	return in
}

const traced = `
domain: d
descriptors:
  - {key: zero, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 2}}
`

func TestDecisionsAreTraced(t *testing.T) {
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			s, url := newSink(t, protocol)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "zone=eu,service.namespace=other")
			x := start(t, traced, func(c *Config) {
				c.Tracing = &tracing.Config{Protocol: protocol, Service: "RateLimit", Namespace: "edge", Instance: "i1"}
			})
			const marker, caller, callerSpan = "zq7client", "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
			send := func(headers ...string) {
				t.Helper()
				ctx := metadata.AppendToOutgoingContext(t.Context(), headers...)
				r := request("d", "zero="+marker, marker+"="+marker, "plain="+marker)
				if _, err := x.rls.ShouldRateLimit(ctx, r); err != nil {
					t.Fatal(err)
				}
			}
			send("traceparent", "00-"+caller+"-"+callerSpan+"-01")
			send("b3", caller+"-"+callerSpan+"-1")
			send("traceparent", "00-"+caller+"-"+callerSpan+"-00") // the caller's trace is not sampled
			x.put(t, request(marker, "a="+marker))
			if _, err := x.rls.ShouldRateLimit(t.Context(), request("")); err == nil {
				t.Error("a request without a domain: no error; want one")
			}
			if err := x.stop(); err != nil {
				t.Fatal(err)
			}
			spans, process := s.spans(t)
			for _, want := range []string{"RateLimit", "edge", "i1", "eu"} {
				if !strings.Contains(process, `string_value:"`+want+`"`) {
					t.Errorf("the process %s lacks the value %s", process, want)
				}
			}
			calls := spans["envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"]
			if len(calls) != 4 || len(spans) != 1 {
				t.Fatalf("%d calls of %d names; want 4 of one name", len(calls), len(spans))
			}
			of := inTrace(calls, caller)
			if len(of) != 2 {
				t.Fatalf("%d calls are in their caller's trace, want 2: %v", len(of), calls)
			}
			for _, span := range of {
				if hex.EncodeToString(span.ParentSpanId) != callerSpan || span.Kind != trace.Span_SPAN_KIND_SERVER || span.EndTimeUnixNano < span.StartTimeUnixNano {
					t.Errorf("got the span %v; want a span of a server whose parent is the caller's span", span)
				}
				for _, want := range []string{"OVER_LIMIT", `"ratelimit.domain"`, `"d"`, `"ratelimit.denied_by"`, `"zero"`, `"rpc.system"`, `"rpc.grpc.status_code"`} {
					if !strings.Contains(span.String(), want) {
						t.Errorf("the span %s lacks %s", span, want)
					}
				}
			}
			failed := 0
			for _, span := range calls {
				if strings.Contains(span.String(), marker) {
					t.Errorf("the span %s contains the client's text %q; want none of its text", span, marker)
				}
				if span.Status.GetCode() == trace.Status_STATUS_CODE_ERROR {
					failed++
				}
			}
			if failed != 1 {
				t.Errorf("%d calls have failed, want 1: the request without a domain", failed)
			}
		})
	}
}
