package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const adminSecret, readSecret = "secret-of-the-admin", "secret-of-the-reader"

const oneLimit = `
domain: d
limits:
  calls: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 2}
descriptors: [{key: user, limit: calls}]
`

func withTokens(t *testing.T) func(*Config) {
	t.Helper()
	dir := t.TempDir()
	admin, read := filepath.Join(dir, "admin"), filepath.Join(dir, "read")
	for path, secret := range map[string]string{admin: adminSecret, read: readSecret} {
		if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(c *Config) { c.AdminTokenFile, c.AdminReadTokenFile = admin, read }
}

func (x *instance) asAdmin(t *testing.T, method, path, body string) (code int, answer map[string]any) {
	t.Helper()
	return x.as(t, adminSecret, method, path, body)
}

func (x *instance) as(t *testing.T, token, method, path, body string) (code int, answer map[string]any) {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+x.Admin.String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	_ = json.NewDecoder(response.Body).Decode(&answer) // an answer that is not JSON has no fields
	return response.StatusCode, answer
}

// adjust makes an adjustment of the limit calls and returns its id. change has the key and the numbers, as the
// members of a JSON object, without the braces.
func (x *instance) adjust(t *testing.T, change string) (id string) {
	t.Helper()
	code, answer := x.asAdmin(t, "POST", "/api/adjustments", `{"limit":"calls","author":"ann","reason":"test",`+change+`}`)
	adjustment, _ := answer["adjustment"].(map[string]any)
	if code != 200 || adjustment == nil {
		t.Fatalf("%s: got %d %v; want 200 and an adjustment", change, code, answer)
	}
	return adjustment["id"].(string)
}

func (x *instance) allowed(t *testing.T, n int, user string) (count int) {
	t.Helper()
	for range n {
		if x.send(t, "user="+user).OverallCode == rls.RateLimitResponse_OK {
			count++
		}
	}
	return count
}

func TestAnOperatorAdjustsALimit(t *testing.T) {
	x := start(t, oneLimit, withTokens(t))
	if n := x.allowed(t, 5, "bob"); n != 2 {
		t.Errorf("as configured bob gets %d, want 2", n)
	}
	id := x.adjust(t, `"key":["bob"],"factor":5,"for":"2h"`)
	if n := x.allowed(t, 20, "bob"); n != 8 {
		t.Errorf("with factor 5 and 2 units used, bob gets %d, want 8", n)
	}
	x.adjust(t, `"key_b64":["ZXZl"],"block":true,"for":"1h"`)
	if n := x.allowed(t, 3, "eve"); n != 0 {
		t.Errorf("eve is blocked, and gets %d; want 0", n)
	}
	code, answer := x.asAdmin(t, "GET", "/api/adjustments", "")
	if list, _ := answer["adjustments"].([]any); code != 200 || len(list) != 2 || answer["version"] != 2.0 {
		t.Errorf("got %d %v; want status 200, 2 adjustments and version 2", code, answer)
	}
	for _, wrong := range []string{`{"author":"ann","reason":"over","key":["bob"]}`, `{"author":"ann","reason":"over"} {}`, `[]`} {
		if code, answer := x.asAdmin(t, "DELETE", "/api/adjustments/"+id, wrong); code != 400 {
			t.Errorf("a deletion with %s: %d %v; want code 400", wrong, code, answer)
		}
	}
	if code, answer := x.asAdmin(t, "DELETE", "/api/adjustments/"+id, `{"author":"ann","reason":"over"}`); code != 200 {
		t.Errorf("got %d %v; want code 200", code, answer)
	}
	if n := x.allowed(t, 3, "bob"); n != 0 {
		t.Errorf("10 units of 2 are used: bob gets %d, want 0", n)
	}
	if code, _ := x.asAdmin(t, "DELETE", "/api/adjustments/"+id, `{"author":"ann","reason":"over"}`); code != 404 {
		t.Errorf("deleted twice: %d; want code 404", code)
	}
	code, answer = x.asAdmin(t, "GET", "/api/adjustments/audit?n=2", "")
	entries, _ := answer["entries"].([]any)
	if code != 200 || len(entries) != 2 || entries[0].(map[string]any)["reason"] != "over" {
		t.Errorf("got %d %v; want status 200 and 2 entries, the first with the reason %q", code, answer, "over")
	}
	for _, line := range []string{`rlsidecar_adjustments{state="applied"} 1`, "rlsidecar_adjustments_version 3"} {
		r, _ := http.NewRequest("GET", "http://"+x.Admin.String()+"/metrics", nil)
		r.Header.Set("Authorization", "Bearer "+readSecret)
		r.Close = true
		metrics, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if text := body(t, metrics); !strings.Contains(text, line+"\n") {
			t.Errorf("the metrics lack the line %q", line)
		}
	}
	if n := x.logs.FilterMessage("adjustment").Len(); n != 3 {
		t.Errorf("%d changes are in the log, want 3", n)
	}
}

func TestALimitThatComesWithRequestsCannotBeAdjusted(t *testing.T) {
	x := start(t, oneLimit, withTokens(t), func(c *Config) { c.APIInlineConfig = true })
	inline := `{"name":"tenant_calls","key":"acme","config":{"algorithm":"token_bucket","rate":5,"period":"1m"}}`
	response, err := http.Post("http://"+x.HTTP.String()+"/v1/limit", "application/json", strings.NewReader(inline))
	if err != nil {
		t.Fatal(err)
	}
	if text := body(t, response); response.StatusCode != 200 {
		t.Fatalf("got %d %s; want status 200", response.StatusCode, text)
	}
	code, answer := x.asAdmin(t, "POST", "/api/adjustments", `{"domain":"d","limit":"tenant_calls","key":["acme"],"block":true,"for":"1h","author":"ann","reason":"test"}`)
	detail := fmt.Sprint(answer["detail"])
	if code != 400 || !strings.Contains(detail, "a limit that comes with requests (config) cannot be adjusted: configure it under this name") {
		t.Errorf("got %d %s; want code 400 and a text that contains %q", code, detail, "a limit that comes with requests (config) cannot be adjusted: configure it under this name")
	}
}

func TestChangesNeedTheAdminToken(t *testing.T) {
	const block = `{"limit":"calls","all_keys":true,"block":true,"for":"1h","author":"eve","reason":"none"}`
	x := start(t, oneLimit, withTokens(t))
	for _, test := range []struct {
		token, method, path, body string
		code                      int
	}{
		{"", "GET", "/api/adjustments", "", 401},
		{"another", "POST", "/api/adjustments", block, 401},
		{readSecret, "GET", "/api/adjustments", "", 200},
		{readSecret, "GET", "/api/adjustments/audit", "", 200},
		{readSecret, "GET", "/api/top", "", 200},
		{readSecret, "GET", "/", "", 200},
		{readSecret, "POST", "/api/adjustments", block, 403},
		{readSecret, "DELETE", "/api/adjustments/ab", `{"author":"eve","reason":"none"}`, 403},
		{readSecret, "POST", "/api/reset?limit=calls&key=bob", "", 403},
		{adminSecret, "POST", "/api/adjustments", block, 200},
	} {
		if code, answer := x.as(t, test.token, test.method, test.path, test.body); code != test.code {
			t.Errorf("%s %s with %q: %d %v, want %d", test.method, test.path, test.token, code, answer, test.code)
		}
	}

	x = start(t, oneLimit) // without a token; every local process can connect
	code, answer := x.as(t, "", "POST", "/api/adjustments", block)
	if detail := fmt.Sprint(answer["detail"]); code != 403 || !strings.Contains(detail, "--admin-token-file") {
		t.Errorf("without a token: %d %v; want code 403 and a text that contains %q", code, answer, "--admin-token-file")
	}
	if code, _ := x.as(t, "", "POST", "/api/adjustments/preview", block); code != 200 {
		t.Errorf("a preview changes nothing: %d; want code 200", code)
	}
	if n := x.allowed(t, 3, "bob"); n != 2 {
		t.Errorf("bob gets %d, want 2", n)
	}
}

func TestTheUnixSocketOfTheAdminPortNeedsNoToken(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "admin.sock")
	start(t, oneLimit, func(c *Config) { c.Admin = "unix://" + socket })
	r, _ := http.NewRequest("POST", "http://localhost/api/adjustments", strings.NewReader(`{"limit":"calls","key":["bob"],"block":true,"for":"1h","author":"ann","reason":"test"}`))
	r.Header.Set("Content-Type", "application/json")
	r.Close = true
	response, err := Client("unix://" + socket).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != 200 {
		t.Errorf("got %d %s; want status 200", response.StatusCode, body(t, response))
	}
}

func TestAReloadKeepsAdjustmentsInForce(t *testing.T) {
	x := start(t, oneLimit, withTokens(t))
	x.adjust(t, `"key":["bob"],"factor":5,"for":"2h"`)
	x.write(t, strings.Replace(oneLimit, "capacity: 2", "capacity: 4", 1))
	x.reload(t)
	if n := x.allowed(t, 50, "bob"); n != 20 {
		t.Errorf("five times the numbers of the day: bob gets %d, want 20", n)
	}
	x.write(t, strings.Replace(oneLimit, "token_bucket", "fixed_window", 1))
	x.reload(t)
	code, answer := x.asAdmin(t, "GET", "/api/adjustments", "")
	if text := fmt.Sprint(answer); code != 200 || !strings.Contains(text, "the limit is a fixed_window now") {
		t.Errorf("of another algorithm: %s; want code 200 and a text that contains %q", text, "the limit is a fixed_window now")
	}
}

// Each listener gives a cost that only an adjustment makes too large the time until the adjustment expires.
func TestACostAboveALoweredLimitGetsARetryTimeFromEachListener(t *testing.T) {
	x := start(t, oneLimit, withTokens(t))
	x.adjust(t, `"key":["bob"],"capacity":1,"for":"1h"`)
	for path, body := range map[string]string{
		"/v1/limit": `{"name":"calls","key":"bob","count":2}`, "/v1/check": `{"name":"calls","key":"bob","count":2}`,
	} {
		response, err := http.Post("http://"+x.HTTP.String()+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if after := response.Header.Get("Retry-After"); response.StatusCode != 429 || after != "3600" && after != "3599" {
			t.Errorf("%s: status %d, retry-after %q; want 429, and the hour of the adjustment", path, response.StatusCode, after)
		}
	}
	r := request("d", descriptor("user=bob"))
	r.HitsAddend = 2
	if answer := x.put(t, r); answer.OverallCode != rls.RateLimitResponse_OVER_LIMIT || answer.Statuses[0].DurationUntilReset.GetSeconds() == 0 {
		t.Errorf("gRPC: got %v; want OVER_LIMIT, and a time", answer)
	}
}
