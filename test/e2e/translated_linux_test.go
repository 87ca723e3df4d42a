package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// translated has the resources that a gateway's own code makes from a recipe and sends to Envoy.
type translated struct{ Listeners, Routes, Clusters []object }

// listener returns the first listener that gets its routes from the gateway (rds), and its connection manager.
func (r translated) listener(t *testing.T) (l, manager object) {
	t.Helper()
	for _, l := range r.Listeners {
		chains, _ := l["filter_chains"].([]any)
		if last, ok := l["default_filter_chain"]; ok {
			chains = append(chains, last)
		}
		for _, chain := range chains {
			for _, filter := range at[[]any](t, chain.(object), "filters") {
				config, _ := filter.(object)["typed_config"].(object)
				if _, dynamic := config["rds"]; dynamic {
					return l, config
				}
			}
		}
	}
	t.Fatal("no listener gets its routes from the gateway")
	return nil, nil
}

func (r translated) filter(t *testing.T) object {
	t.Helper()
	_, manager := r.listener(t)
	for _, f := range at[[]any](t, manager, "http_filters") {
		config, _ := f.(object)["typed_config"].(object)
		if config["@type"] == "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit" {
			return config
		}
	}
	t.Fatal("no rate limit filter")
	return nil
}

// translatedFile writes r for an Envoy without a control plane. The listener gets its routes, and clusters
// their addresses, from the file. Requests may have any host name. filters replace the listener filters of r.
func (s *stack) translatedFile(t *testing.T, r translated, filters ...any) string {
	t.Helper()
	l, manager := r.listener(t)
	cluster := at[string](t, r.filter(t), "rate_limit_service", "grpc_service", "envoy_grpc", "cluster_name")
	name := at[string](t, manager, "rds", "route_config_name")
	which := slices.IndexFunc(r.Routes, func(o object) bool { return o["name"] == name })
	if which < 0 {
		t.Fatalf("no routes %s", name)
	}
	delete(manager, "rds")
	manager["route_config"] = r.Routes[which]
	for _, host := range at[[]any](t, r.Routes[which], "virtual_hosts") {
		host.(object)["domains"] = []any{"*"}
	}
	if len(filters) > 0 {
		l["listener_filters"] = filters
	}
	used, err := yaml.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	var clusters []any
	for _, c := range r.Clusters {
		if !strings.Contains(string(used), fmt.Sprint(": ", c["name"], "\n")) {
			continue // a cluster that only Envoy's own ports use
		}
		port := 9000
		if c["name"] == cluster {
			port = 8081
		}
		delete(c, "eds_cluster_config")
		clusters = append(clusters, s.static(c, port))
	}
	if len(clusters) != 2 {
		t.Fatalf("%d clusters, want those of the application and of rlsidecar", len(clusters))
	}
	return s.envoyFile(t, l, clusters...)
}
