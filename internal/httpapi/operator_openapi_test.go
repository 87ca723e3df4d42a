package httpapi

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/conditions"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topkeys"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/unmatched"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// describedOperator returns an operator's handler over a store and a keeper of adjustments. None of its lists
// is empty.
func describedOperator(t *testing.T, store backend.Store, k *adjust.Keeper) *Operator {
	t.Helper()
	l := limiter.New(store, limiter.Config{})
	l.Swap(authSnapshot(t, operated))
	now := time.Now()
	top := func(int) topkeys.Top {
		return topkeys.Top{
			Since: now, Total: 9,
			Keys: []topkeys.Item{
				{Domain: "edge", Limit: "send", Why: topkeys.Limit, Key: []string{"a", "\xff"}, Entries: []descriptors.Entry{{Key: "user", Value: "\xff"}}, Times: 7, Exact: true, Last: now},
				{Domain: "edge", Why: topkeys.Backend, Cut: true, Last: now},
			},
			Limits: []topkeys.Part{{Domain: "edge", Limit: "send", Position: topkeys.WholeLimit, Times: 7, Exact: true, Keys: 2}},
			Parts:  []topkeys.Part{{Domain: "edge", Limit: "send", Entry: "user", Value: "\xff", Cut: true, Times: 7}},
		}
	}
	return &Operator{
		Limiter: l, Log: zap.NewNop(),
		Denied: top, Shadowed: top,
		Used: func(int) topkeys.Top {
			return topkeys.Top{Keys: []topkeys.Item{{Domain: "edge", Limit: "send", Key: []string{"a", "\xff"}, Cut: true, Times: 64, Remaining: 2, Capacity: 5}}}
		},
		Status: func(context.Context) status.Status {
			failing := conditions.Condition{Name: "redis-slow", Severity: conditions.Degraded, Since: now, Headline: "h", Summary: "s.", Remedy: "r.", Error: "e"}
			return status.Status{
				NotReady: "n", Config: "c", Loaded: now, Conditions: []conditions.Condition{failing}, Traffic: status.Traffic{MostlyBy: "l"},
				State: status.LineOf([]conditions.Condition{failing}, "", &status.Traffic{}),
				Store: status.Store{Kind: "redis", Servers: []status.Server{{Address: "a"}}, AsOf: now, Problem: "p", Timeout: 1},
				Fleet: status.Fleet{Self: "x", AsOf: now, Problem: "p", Sidecars: []status.Sidecar{{ID: "x", Report: status.Report{Link: "l", Wrong: "w"}}}},
			}
		},
		Unmatched: func(int) (time.Time, []unmatched.Shape) {
			return now, []unmatched.Shape{{Domain: "edge", Configured: true, Keys: [][]string{{"usr"}, {"a", "b"}}, Cut: true, Requests: 3, Last: now}}
		},
		Conditions: func() []conditions.Condition {
			return []conditions.Condition{{Name: "n", Severity: conditions.Degraded, Since: now, Summary: "s.", Remedy: "r."}}
		},
		Adjustments: &Adjustments{Service: adjust.NewService(k, l, nil), MayChange: func(*http.Request) error { return nil }},
	}
}

// unreachable is an adjust.Ledger.
type unreachable struct{}

func (unreachable) Read(context.Context, string) (string, algorithms.Micros, []string, map[string]string, error) {
	return "", 0, nil, nil, errors.New("no answer")
}

func (unreachable) Write(context.Context, string, string, []string, map[string]string) (bool, error) {
	return false, errors.New("no answer")
}

// operatorSamples has a request for each described status of each path and method, except those that other tests
// check.
func operatorSamples(t *testing.T) map[string]map[string]map[int]sample {
	t.Helper()
	keeper := adjust.NewKeeper(adjust.Config{})
	o := describedOperator(t, memory.New(memory.Config{}), keeper)
	h := o.Handler()
	away := describedOperator(t, broken{backend.ErrUnavailable}, adjust.NewKeeper(adjust.Config{Ledger: unreachable{}})).Handler()
	reader := describedOperator(t, memory.New(memory.Config{}), keeper)
	reader.Adjustments.MayChange = func(*http.Request) error { return errors.New("no") }
	json, foreign := []string{"Content-Type", "application/json"}, []string{"Origin", "https://elsewhere.example"}
	form := []string{"Content-Type", "text/plain"}

	const bob = `{"limit":"send","key":["bob"],"factor":2.5,"for":"2h","author":"ann","reason":"launch"}`
	set := func(proposal string) (id string) {
		w := call(h, "POST", "/api/adjustments", proposal, json...)
		_, id, _ = strings.Cut(w.Body.String(), `"id":"`)
		id, _, ok := strings.Cut(id, `"`)
		if !ok {
			t.Fatalf("%s: %d %s; want an id", proposal, w.Code, w.Body)
		}
		return id
	}
	shown := set(strings.Replace(bob, `["bob"]`, `["shown"]`, 1))
	deleted := set(strings.Replace(bob, `"key":["bob"]`, `"key_b64":["/w=="]`, 1))
	get := func(path string) map[int]sample {
		return map[int]sample{200: {h: h, method: "GET", path: path}, 405: {h: h, method: "PUT", path: path}}
	}
	with := func(m map[int]sample, code int, s sample) map[int]sample {
		m[code] = s
		return m
	}
	list := func(path string) map[int]sample {
		return with(get(path), 400, sample{h: h, method: "GET", path: path + "?n=1001"})
	}
	buckets := func(method, path string) map[int]sample {
		return map[int]sample{
			200: {h: h, method: method, path: path + "?limit=send&key=%ff"}, 400: {h: h, method: method, path: path},
			404: {h: h, method: method, path: path + "?limit=nope"}, 405: {h: h, method: "PUT", path: path},
			503: {h: away, method: method, path: path + "?limit=send&key=x"},
		}
	}
	change := func(method, path, body string) map[int]sample {
		return map[int]sample{
			200: {h: h, method: method, path: path, body: body, header: json},
			400: {h: h, method: method, path: path, body: `{"limit":1,"author":1}`, header: json},
			403: {h: reader.Handler(), method: method, path: path, body: body, header: json},
			405: {h: h, method: "PUT", path: path},
			409: {h: h, method: method, path: path, body: strings.Replace(body, `{`, `{"version":999,`, 1), header: json},
			413: {h: h, method: method, path: path, body: strings.Repeat(" ", maxRequestBody+1), header: json},
			415: {h: h, method: method, path: path, body: body},
			503: {h: away, method: method, path: path, body: body, header: json},
		}
	}
	preview := change("POST", "/api/adjustments/preview", bob)
	preview[403] = sample{h: h, method: "POST", path: "/api/adjustments/preview", body: bob, header: foreign}
	preview[415] = sample{h: h, method: "POST", path: "/api/adjustments/preview", body: bob, header: form}
	for _, only := range []int{409, 503} { // a preview changes nothing
		delete(preview, only)
	}
	return map[string]map[string]map[int]sample{
		"/api/buckets":             {"get": buckets("GET", "/api/buckets")},
		"/api/reset":               {"post": with(with(buckets("POST", "/api/reset"), 403, sample{h: h, method: "POST", path: "/api/reset", header: foreign}), 415, sample{h: h, method: "POST", path: "/api/reset", header: form})},
		"/api/top":                 {"get": list("/api/top")},
		"/api/unmatched":           {"get": list("/api/unmatched")},
		"/api/conditions":          {"get": get("/api/conditions")},
		"/api/status":              {"get": get("/api/status")},
		"/api/openapi.json":        {"get": get("/api/openapi.json")},
		"/api/adjustments":         {"get": get("/api/adjustments"), "post": change("POST", "/api/adjustments", bob)},
		"/api/adjustments/preview": {"post": preview},
		"/api/adjustments/audit":   {"get": list("/api/adjustments/audit")},
		"/api/adjustments/{id}": {
			"get":    with(get("/api/adjustments/"+shown), 404, sample{h: h, method: "GET", path: "/api/adjustments/none"}),
			"delete": with(change("DELETE", "/api/adjustments/"+deleted, `{"author":"ann","reason":"over"}`), 404, sample{h: h, method: "DELETE", path: "/api/adjustments/none", body: `{"author":"ann","reason":"over"}`, header: json}),
		},
	}
}

// Each path and status that openapi-operators.json describes must occur, with a body of its schema, except the statuses
// in elsewhere. No other path may exist.
func TestTheOperatorsDescriptionIsOfTheseHandlers(t *testing.T) {
	o := describedOperator(t, memory.New(memory.Config{}), nil)
	d := openDocument(t, call(o.Handler(), "GET", "/api/openapi.json", "").Body.Bytes())
	described, _ := d.at("paths")
	if got, want := slices.Sorted(maps.Keys(described)), slices.Sorted(maps.Keys(o.paths())); !slices.Equal(got, want) {
		t.Errorf("described are %v, handled %v", got, want)
	}
	elsewhere := []string{"401", "403", "408"} // package admin tests 401 and 403, TestSlowClientsAreCutOff 408
	for path, methods := range operatorSamples(t) {
		for method, byCode := range methods {
			d.checkOperation(path, method, byCode, elsewhere...)
		}
	}
}
