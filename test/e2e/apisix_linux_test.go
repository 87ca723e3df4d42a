package e2e

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// forwardAuth are the fields in the schema of the plugin. A misspelled field in the example is an error.
var forwardAuth = strings.Fields(`uri allow_degradation status_on_error request_method request_headers extra_headers
	upstream_headers client_headers timeout keepalive keepalive_timeout keepalive_pool`)

// TestAPISIXAuthRequests sends the requests that the plugin forward-auth makes from the configuration of the
// example. APISIX itself does not run.
func TestAPISIXAuthRequests(t *testing.T) {
	t.Parallel()
	s := startExample(t, "8000", "nginx/rlsidecar.yaml")
	var conf object
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(example(t, "apisix/apisix.yaml"), "127.0.0.1", s.addr)), &conf); err != nil {
		t.Fatal(err)
	}
	plugin := at[object](t, at[[]any](t, conf, "routes")[0].(object), "plugins", "forward-auth")
	for name := range plugin {
		if !slices.Contains(forwardAuth, name) {
			t.Errorf("the plugin has no field %s", name)
		}
	}
	uri, err := url.Parse(at[string](t, plugin, "uri"))
	if err != nil {
		t.Fatal(err)
	}
	s.port = uri.Port()
	headers := []string{"X-Forwarded-Proto: http", "X-Forwarded-Method: POST", "X-Forwarded-Host: shop.test", "X-Forwarded-Uri: /x?y=1", "X-Forwarded-For: 192.0.2.1"}
	for _, name := range at[[]any](t, plugin, "request_headers") {
		headers = append(headers, name.(string)+": alice")
	}
	denial := perKey.drain(t, func() answer { return s.get(t, "", uri.Path, headers...) }).header
	for _, name := range at[[]any](t, plugin, "client_headers") {
		if denial.Get(name.(string)) == "" {
			t.Errorf("the example passes on the header %s, which a denial of rlsidecar lacks", name)
		}
	}
	if n := s.decisions("per_key", "denied"); n != 1 {
		t.Errorf("%d denials are counted, want 1", n)
	}
}
