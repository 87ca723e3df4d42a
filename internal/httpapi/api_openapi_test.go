package httpapi

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

type document struct {
	t    *testing.T
	root map[string]any
	c    *jsonschema.Compiler
}

func openDocument(t *testing.T, text []byte) *document {
	t.Helper()
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	d := &document{t: t, root: root.(map[string]any), c: jsonschema.NewCompiler()}
	if err := d.c.AddResource("openapi.json", root); err != nil {
		t.Fatal(err)
	}
	return d
}

// at returns the value at a path in the document, and its final path. It follows references.
func (d *document) at(place ...string) (map[string]any, []string) {
	d.t.Helper()
	var v any = d.root
	for _, name := range place {
		if v = v.(map[string]any)[name]; v == nil {
			d.t.Fatalf("openapi.json has nothing at %q", place)
		}
	}
	found := v.(map[string]any)
	if to, ok := found["$ref"].(string); ok {
		return d.at(strings.Split(strings.TrimPrefix(to, "#/"), "/")...)
	}
	return found, place
}

func (d *document) validate(text []byte, place ...string) error {
	d.t.Helper()
	var pointer strings.Builder
	for _, name := range place {
		pointer.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(name))
	}
	schema, err := d.c.Compile("openapi.json#" + pointer.String())
	if err != nil {
		d.t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

// sample is a request whose answer the document describes.
type sample struct {
	h                  http.Handler
	method, path, body string
	header             []string
}

func (s sample) send() *httptest.ResponseRecorder {
	return call(s.h, s.method, s.path, s.body, s.header...)
}

// samples returns a request for each described status of each path, except 408.
func samples(t *testing.T) map[string]map[string]map[int]sample {
	t.Helper()
	h, clock := onClock(t)
	old := reserve(t, h, `{"name":"tokens","key":"old","reserve":true}`)
	clock.Set(storetest.Start + 3601*algorithms.Second)
	taken := reserve(t, h, `{"name":"tokens","key":"taken","reserve":true}`)
	for _, body := range []string{settleBody(taken, "1"), `{"name":"send","request_id":"r"}`} {
		if w := call(h, "POST", "/v1/limit", body); w.Code != 200 {
			t.Fatalf("%s: got %d %s; want status 200", body, w.Code, w.Body)
		}
	}
	slot := reserve(t, h, `{"name":"upload","key":"kept"}`)
	lost := reserve(t, h, `{"name":"upload","key":"lost"}`)
	if w := call(h, "POST", "/v1/limit", settleBody(lost, "0")); w.Code != 200 {
		t.Fatalf("got %d %s; want status 200", w.Code, w.Body)
	}
	away := apiOver(t, broken{backend.ErrUnavailable})
	token := apiOver(t, memory.New(memory.Config{}), func(a *API) { a.Token = httpauth.FixedToken("s3cret") })
	foreign := []string{"Origin", "https://elsewhere.example"}
	const all = `{"name":"few","key":["a",{"base64":"/w=="}],"count":3}`
	common := func(method, path, body string) map[int]sample {
		return map[int]sample{
			200: {h: h, method: method, path: path, body: body},
			401: {h: token, method: method, path: path, body: body},
			403: {h: h, method: method, path: path, body: body, header: []string{"Host", "elsewhere.example"}},
			405: {h: h, method: "DELETE", path: path},
			503: {h: away, method: method, path: path, body: body},
		}
	}
	post := func(path, body string) map[int]sample {
		m := common("POST", path, body)
		m[400] = sample{h: h, method: "POST", path: path, body: `{"nope":1}`}
		m[403] = sample{h: h, method: "POST", path: path, body: body, header: foreign}
		m[404] = sample{h: h, method: "POST", path: path, body: `{"name":"nope"}`}
		m[415] = sample{h: h, method: "POST", path: path, body: body, header: []string{"Content-Type", "text/plain"}}
		m[413] = sample{h: h, method: "POST", path: path, body: strings.Repeat(" ", maxRequestBody+1)}
		return m
	}
	send := func(path string) map[int]sample {
		t.Helper()
		m := post(path, `{"limits":[{"name":"send","key":"x"},{"name":"tokens","count":2,"reserve":true}]}`)
		if w := call(h, "POST", "/v1/limit", all); w.Code != 200 && w.Code != 429 {
			t.Fatalf("got %d %s; want status 200 or 429", w.Code, w.Body)
		}
		m[429] = sample{h: h, method: "POST", path: path, body: all}
		m[202] = sample{h: h, method: "POST", path: path, body: `{"name":"tokens","key":"` + path + `","count":20,"reserve":true}`}
		return m
	}
	limit := send("/v1/limit")
	for code, body := range map[int]string{
		409: settleBody(taken, "2"), 410: settleBody(old, "1"), 422: `{"name":"send","request_id":"r","count":2}`,
	} {
		limit[code] = sample{h: h, method: "POST", path: "/v1/limit", body: body}
	}
	renew := post("/v1/renew", `{"reservation":"`+slot+`"}`)
	renew[404] = sample{h: h, method: "POST", path: "/v1/renew", body: `{"reservation":"x"}`}
	renew[410] = sample{h: h, method: "POST", path: "/v1/renew", body: `{"reservation":"` + lost + `"}`}
	show := common("GET", "/v1/limits/few?key=a&key=%ff", "")
	show[400] = sample{h: h, method: "GET", path: "/v1/limits/few?x=1"}
	show[404] = sample{h: h, method: "GET", path: "/v1/limits/nope"}
	list := common("GET", "/v1/limits", "")
	list[503] = sample{h: New(Config{API: &API{Limiter: limiter.New(memory.New(memory.Config{}), limiter.Config{})}}), method: "GET", path: "/v1/limits"}
	return map[string]map[string]map[int]sample{
		"/v1/limit": {"post": limit}, "/v1/check": {"post": send("/v1/check")},
		"/v1/renew":  {"post": renew},
		"/v1/reset":  {"post": post("/v1/reset", `{"name":"few","key":"gone"}`)},
		"/v1/limits": {"get": list}, "/v1/limits/{name}": {"get": show},
	}
}

// Each described path and status below /v1/ must occur, with a body of its schema. No other path of the API may exist.
func TestTheDescriptionIsOfTheseHandlers(t *testing.T) {
	h, _ := onClock(t)
	w := call(h, "GET", "/openapi.json", "")
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/json" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Fatalf("got %d %v; want status 200, application/json and nosniff", w.Code, w.Header())
	}
	d := openDocument(t, w.Body.Bytes())
	for path, methods := range samples(t) {
		var names []string
		for method, byCode := range methods {
			names = append(names, strings.ToUpper(method))
			d.checkOperation(path, method, byCode, "408") // tested by TestSlowClientsAreCutOff
		}
		handled := slices.Sorted(maps.Keys((&API{}).paths()[path]))
		if slices.Sort(names); !slices.Equal(handled, names) {
			t.Errorf("%s: handled %v, described %v", path, handled, names)
		}
	}
	paths, _ := d.at("paths")
	for path := range (&API{}).paths() {
		if paths[path] == nil {
			t.Errorf("%s is handled but not described", path)
		}
	}
	for path := range paths {
		if strings.HasPrefix(path, "/v1/") && !strings.HasPrefix(path, authPath) && (&API{}).paths()[path] == nil {
			t.Errorf("%s is described but not handled", path)
		}
	}
}

// checkOperation sends each request of byCode. Other tests check the statuses in elsewhere.
func (d *document) checkOperation(path, method string, byCode map[int]sample, elsewhere ...string) {
	d.t.Helper()
	responses, _ := d.at("paths", path, method, "responses")
	for code := range responses {
		n, _ := json.Number(code).Int64()
		if _, ok := byCode[int(n)]; !ok && !slices.Contains(elsewhere, code) {
			d.t.Errorf("%s %s: %s is described, but no request gets it", method, path, code)
		}
	}
	for code, s := range byCode {
		text, _ := json.Marshal(code)
		if s.method == strings.ToUpper(method) && s.body != "" && code/100 == 2 {
			_, place := d.at("paths", path, method, "requestBody")
			if err := d.validate([]byte(s.body), append(slices.Clone(place), "content", "application/json", "schema")...); err != nil {
				d.t.Errorf("%s: %v", s.body, err)
			}
		}
		w := s.send()
		if w.Code != code {
			d.t.Errorf("%s %s %s: %d %s, want %d", s.method, s.path, s.body, w.Code, w.Body, code)
			continue
		}
		response, place := d.at("paths", path, method, "responses", string(text))
		kind := w.Header().Get("Content-Type")
		if response["content"].(map[string]any)[kind] == nil {
			d.t.Errorf("%s %s %d: is %s, which is not described", method, path, code, kind)
			continue
		}
		if err := d.validate(w.Body.Bytes(), append(slices.Clone(place), "content", kind, "schema")...); err != nil {
			d.t.Errorf("%s %s %d: %s: %v", method, path, code, w.Body, err)
		}
		if kind == "application/problem+json" {
			d.checkProblem(w.Body.Bytes())
		}
		headers, _ := response["headers"].(map[string]any)
		for name := range headers {
			h, _ := d.at(append(slices.Clone(place), "headers", name)...)
			if required := h["required"] == true; required && w.Header()[name] == nil && w.Header().Get(name) == "" {
				d.t.Errorf("%s %s %d: without %s", method, path, code, name)
			}
		}
	}
}

// checkProblem checks that the description of the field "type" lists the type of the problem in body. The field is
// not an enumeration, because a new type must not break clients that were generated earlier.
func (d *document) checkProblem(body []byte) {
	d.t.Helper()
	var p problem
	if err := json.Unmarshal(body, &p); err != nil {
		d.t.Fatal(err)
	}
	field, _ := d.at("components", "schemas", "Problem", "properties", "type")
	name := strings.TrimPrefix(p.Type, "urn:rlsidecar:problem:")
	if text, _ := field["description"].(string); !strings.Contains(text, "`"+name+"`") {
		d.t.Errorf("openapi.json does not list the type %s", p.Type)
	}
}
