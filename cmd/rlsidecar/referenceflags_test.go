package main

import (
	"testing"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/internal/reference/refenv"
)

func TestReferenceFlagsExist(t *testing.T) {
	parser, err := kong.New(&commands{}, kong.Name("x"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"": true}
	for _, flag := range parser.Model.Children[0].Flags { // serve
		known[flag.Name] = true
	}
	for _, v := range refenv.Variables() {
		if !known[v.Sets] {
			t.Errorf("%s sets %s, which serve does not have", v.Name, v.Sets)
		}
	}
	settings, err := refenv.Read(map[string]string{
		"USE_PROMETHEUS": "true", "REDIS_URL": "h:1", "REDIS_TLS": "true", "REDIS_TLS_CACERT": "a", "REDIS_TLS_CLIENT_CERT": "c",
		"REDIS_TLS_CLIENT_KEY": "k", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "true", "CACHE_KEY_PREFIX": "p", "GRPC_SERVER_USE_TLS": "true",
		"GRPC_SERVER_TLS_CERT": "c", "GRPC_SERVER_TLS_KEY": "k", "GRPC_CLIENT_TLS_CACERT": "a", "GRPC_CLIENT_TLS_SAN": "n",
		"REDIS_PERSECOND": "true", "USE_DOG_STATSD": "true", "EXTRA_TAGS": "a:b", "TRACING_ENABLED": "true",
		"TRACING_SERVICE_NAMESPACE": "n", "TRACING_SERVICE_INSTANCE_ID": "i",
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	for name := range settings.Values {
		if !known[name] {
			t.Errorf("serve has no --%s", name)
		}
	}
}
