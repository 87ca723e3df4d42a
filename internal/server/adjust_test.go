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
	metrics := body(t, get(t, x.Admin, "/metrics", "Authorization", "Bearer "+readSecret))
	for _, line := range []string{`rlsidecar_adjustments{state="ignored"} 1`, "rlsidecar_adjustments_version 1"} {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("the metrics lack the line %q", line)
		}
	}
}
