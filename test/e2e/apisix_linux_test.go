package e2e

import (
	"net/http"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// apisix is the part of APISIX's configuration that the example uses. The fields of the plugin are those of
// its schema, so that a misspelled field in the example is an error.
type apisix struct {
	Routes []struct {
		ID      string `yaml:"id"`
		URI     string `yaml:"uri"`
		Plugins struct {
			ForwardAuth struct {
				URI              string            `yaml:"uri"`
				AllowDegradation bool              `yaml:"allow_degradation"`
				StatusOnError    int               `yaml:"status_on_error"`
				RequestMethod    string            `yaml:"request_method"`
				RequestHeaders   []string          `yaml:"request_headers"`
				ExtraHeaders     map[string]string `yaml:"extra_headers"`
				UpstreamHeaders  []string          `yaml:"upstream_headers"`
				ClientHeaders    []string          `yaml:"client_headers"`
				Timeout          int               `yaml:"timeout"`
				Keepalive        bool              `yaml:"keepalive"`
				KeepaliveTimeout int               `yaml:"keepalive_timeout"`
				KeepalivePool    int               `yaml:"keepalive_pool"`
			} `yaml:"forward-auth"`
		} `yaml:"plugins"`
		Upstream struct {
			Type  string         `yaml:"type"`
			Nodes map[string]int `yaml:"nodes"`
		} `yaml:"upstream"`
	} `yaml:"routes"`
}

// TestAPISIXAuthRequests sends the requests that the plugin forward-auth makes from the configuration of the
// example. APISIX itself does not run.
func TestAPISIXAuthRequests(t *testing.T) {
	t.Parallel()
	s := startExample(t, "8000", "nginx/rlsidecar.yaml")
	var conf apisix
	decoder := yaml.NewDecoder(strings.NewReader(strings.ReplaceAll(example(t, "apisix/apisix.yaml"), "127.0.0.1", s.addr)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&conf); err != nil || len(conf.Routes) != 1 {
		t.Fatal(err)
	}
	plugin := conf.Routes[0].Plugins.ForwardAuth
	var denial http.Header
	perKey.drain(t, func() answer {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, plugin.URI, nil)
		if err != nil {
			t.Fatal(err)
		}
		output := map[string]string{"X-Forwarded-Proto": "http", "X-Forwarded-Method": "POST", "X-Forwarded-Host": "shop.test", "X-Forwarded-Uri": "/x?y=1", "X-Forwarded-For": "192.0.2.1"}
		for _, name := range plugin.RequestHeaders {
			output[name] = "alice"
		}
		for name, value := range output {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		denial = resp.Header
		return answer{resp.StatusCode, resp.Header, ""}
	})
	for _, name := range plugin.ClientHeaders {
		if denial.Get(name) == "" {
			t.Errorf("the example passes on the header %s, which a denial of rlsidecar lacks", name)
		}
	}
	if n := s.decisions("per_key", "denied"); n != 1 {
		t.Errorf("%d denials are counted, want 1", n)
	}
}
