package main

import (
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/server"
)

// parsedServe returns the settings that serve has with env and args.
func parsedServe(t *testing.T, env map[string]string, args ...string) serveSettings {
	t.Helper()
	for name, value := range env {
		t.Setenv(name, value)
	}
	var c commands
	r := readEnvironment(false)
	parser, err := newParser(&c, r, io.Discard, io.Discard, func(int) {})
	if err == nil && r.err == nil {
		_, err = parser.Parse(append([]string{"serve"}, args...))
	}
	if err != nil || r.err != nil {
		t.Fatal(err, r.err)
	}
	return c.Serve.serveSettings
}

func TestSourcesOfTheConfiguration(t *testing.T) {
	env := map[string]string{
		"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": "envoy-gateway:18001", "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit",
		"CONFIG_GRPC_XDS_NODE_METADATA": "a=b, c:d", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": "x-a:1,x-b:2=3:4",
		"CONFIG_GRPC_XDS_SERVER_USE_TLS": "true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": "/certs/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": "/certs/tls.key",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT": "/certs/ca.crt", "CONFIG_GRPC_XDS_SERVER_TLS_SAN": "gw", "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES": "77",
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL": "2s", "XDS_CLIENT_BACKOFF_MAX_INTERVAL": "3s", "FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
	}
	plain := maps.Clone(env)
	plain["CONFIG_GRPC_XDS_SERVER_USE_TLS"] = "false"
	own := maps.Clone(env)
	maps.Copy(own, map[string]string{"RLSIDECAR_XDS_NODE_METADATA": "a=b=c, d = e", "RLSIDECAR_XDS_HEADER": "h:1:2"})
	gateway := server.XDS{
		Server: "envoy-gateway:18001", NodeID: "envoy-ratelimit", NodeMetadata: map[string]string{"a": "b", "c": "d"}, Headers: map[string]string{"x-a": "1", "x-b": "2=3:4"},
		MaxMessage: 77, MinBackoff: 2 * time.Second, MaxBackoff: 3 * time.Second, StartWithout: true,
	}
	secured := gateway
	secured.TLS, secured.CA, secured.Cert, secured.Key, secured.ServerName = true, "/certs/ca.crt", "/certs/tls.crt", "/certs/tls.key", "gw"
	for name, c := range map[string]struct {
		env   map[string]string
		args  []string
		want  server.XDS
		files []string
	}{
		"a control plane over TLS": {env: env, want: secured},
		"the files need TLS":       {env: plain, want: gateway},
		"own files":                {env: env, args: []string{"--config", "f"}, files: []string{"f"}},
		"an own control plane": {env: own, args: []string{"--xds-server", "x:1"}, want: server.XDS{
			Server: "x:1", NodeID: "default", NodeMetadata: map[string]string{"a": "b=c", "d": "e"}, Headers: map[string]string{"h": "1:2"},
			MinBackoff: time.Second, MaxBackoff: 30 * time.Second,
		}},
		"an own control plane, not files": {env: map[string]string{"RUNTIME_ROOT": "/r"}, args: []string{"--xds-server", "x:1"}, want: server.XDS{
			Server: "x:1", NodeID: "default", NodeMetadata: map[string]string{}, Headers: map[string]string{}, MinBackoff: time.Second, MaxBackoff: 30 * time.Second,
		}},
		"files of the reference server": {env: map[string]string{"RUNTIME_ROOT": "/r,s"}, files: []string{"/r,s/config/**"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := parsedServe(t, c.env, c.args...)
			if got, err := s.xds(); err != nil || !reflect.DeepEqual(got, c.want) || !slices.Equal(s.Paths, c.files) {
				t.Errorf("got %+v, %v and the files %q; want %+v and %q", got, err, s.Paths, c.want, c.files)
			}
		})
	}
}

func TestPairsDoNotShowSecrets(t *testing.T) {
	for _, s := range []serveSettings{{XDSHeader: "secret"}, {XDSHeader: ":secret"}, {XDSNodeMetadata: "secret"}} {
		s.XDS.Server = "x"
		if _, err := s.xds(); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "RLSIDECAR_XDS_") {
			t.Errorf("%+v: got %v; want an error that names the variable and does not contain the secret", s, err)
		}
	}
}
