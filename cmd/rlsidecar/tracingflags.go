package main

import "github.com/rlsidecar/rlsidecar/internal/telemetry/tracing"

type tracingFlags struct {
	Tracing                  bool    `env:"RLSIDECAR_TRACING" help:"Send traces of decisions to the OpenTelemetry collector at OTEL_EXPORTER_OTLP_ENDPOINT."`
	TracingProtocol          string  `enum:"http,grpc" default:"http" env:"RLSIDECAR_TRACING_PROTOCOL" help:"OTLP over http or grpc (${default})."`
	TracingSamplingRate      float64 `default:"1" placeholder:"SHARE" env:"RLSIDECAR_TRACING_SAMPLING_RATE" help:"Sampling rate of traces that start here. A caller's sampling decision takes precedence (${default})."`
	TracingServiceName       string  `placeholder:"NAME" env:"RLSIDECAR_TRACING_SERVICE_NAME" help:"Name of this service in traces (OTEL_SERVICE_NAME, or rlsidecar)."`
	TracingServiceNamespace  string  `placeholder:"NAME" env:"RLSIDECAR_TRACING_SERVICE_NAMESPACE" help:"Namespace of this service in traces."`
	TracingServiceInstanceID string  `name:"tracing-service-instance-id" placeholder:"ID" env:"RLSIDECAR_TRACING_SERVICE_INSTANCE_ID" help:"ID of this instance of the service in traces."`
}

func (f tracingFlags) tracing(version string) *tracing.Config {
	if !f.Tracing {
		return nil
	}
	return &tracing.Config{
		Protocol: f.TracingProtocol, Share: f.TracingSamplingRate, Version: version,
		Service: f.TracingServiceName, Namespace: f.TracingServiceNamespace, Instance: f.TracingServiceInstanceID,
	}
}
