package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/reference/refenv"
	"github.com/rlsidecar/rlsidecar/internal/server"
)

func TestControlPlaneOfTheReferenceServersEnvironment(t *testing.T) {
	env := map[string]string{
		"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": "envoy-gateway:18001", "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit",
		"CONFIG_GRPC_XDS_NODE_METADATA": "a=b", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": "x-a:1",
		"CONFIG_GRPC_XDS_SERVER_USE_TLS": "true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": "/certs/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": "/certs/tls.key",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT": "/certs/ca.crt", "CONFIG_GRPC_XDS_SERVER_TLS_SAN": "gw", "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES": "77",
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL": "2s", "XDS_CLIENT_BACKOFF_MAX_INTERVAL": "3s", "FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
	}
	settings, err := refenv.Read(env, true)
	if err != nil {
		t.Fatal(err)
	}
	r := reference{settings, nil}
	got, err := (&serveCmd{}).controlPlane(r)
	want := server.XDS{
		Server: "envoy-gateway:18001", NodeID: "envoy-ratelimit", NodeMetadata: map[string]string{"a": "b"}, Headers: map[string]string{"x-a": "1"},
		TLS: true, CA: "/certs/ca.crt", Cert: "/certs/tls.crt", Key: "/certs/tls.key", ServerName: "gw",
		MaxMessage: 77, MinBackoff: 2 * time.Second, MaxBackoff: 3 * time.Second, StartWithout: true,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	settings.XDS.UseTLS = false
	if got, _ := (&serveCmd{}).controlPlane(r); got.CA != "" || got.Cert != "" || got.Key != "" || got.ServerName != "" {
		t.Errorf("got %+v; want no TLS files without TLS", got)
	}
	if got, err := (&serveCmd{Config: []string{"f"}}).controlPlane(r); err != nil || got.Server != "" {
		t.Errorf("with files: got %+v, %v; want no control plane", got, err)
	}
	own := &serveCmd{xdsFlags: xdsFlags{XDSServer: "x:1", XDSNodeMetadata: []string{"a=b=c", " d = e"}, XDSHeader: []string{"h:1:2"}}}
	got, err = own.controlPlane(r)
	if err != nil || got.Server != "x:1" || got.NodeMetadata["a"] != "b=c" || got.NodeMetadata["d"] != "e" || got.Headers["h"] != "1:2" || got.StartWithout {
		t.Errorf("with --xds-server: got %+v, %v; want only the values of the flags", got, err)
	}
}

func TestPairsDoNotShowSecrets(t *testing.T) {
	for _, f := range []xdsFlags{{XDSHeader: []string{"secret"}}, {XDSHeader: []string{":secret"}}, {XDSNodeMetadata: []string{"secret"}}} {
		if _, err := f.xds(); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: got %v; want an error that does not contain the secret", f, err)
		}
	}
}
