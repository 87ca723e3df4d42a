package server

import (
	"encoding/json"
	"fmt"
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
	writeFile(t, admin, adminSecret)
	writeFile(t, read, readSecret)
	return func(c *Config) { c.AdminTokenFile, c.AdminReadTokenFile = admin, read }
}

func (x *instance) asAdmin(t *testing.T, method, path, body string) (code int, answer map[string]any) {
	t.Helper()
	return x.as(t, adminSecret, method, path, body)
}

func (x *instance) as(t *testing.T, token, method, path, body string) (code int, answer map[string]any) {
	t.Helper()
	response := exchange(t, method, x.Admin, path, body, "Authorization", "Bearer "+token, "Content-Type", "application/json")
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
