package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// plansYAML has two plans, plan and estimated, to which paidBy adds payers with the setting "then". With hash_tag:
// domain, the keys of payers do not depend on the limits that use them.
const plansYAML = `
domain: d
hash_tag: domain
limits:
  plan: {algorithm: fixed_window, rate: 10, period: 365d, start: 2026-01-01T00:00:00Z%[1]s}
  a: {algorithm: token_bucket, rate: 1, period: 365d, capacity: 100}
  b: {algorithm: token_bucket, rate: 1, period: 365d, capacity: 200}
  estimated: {algorithm: token_bucket, rate: 100, period: 365d, max_reserved: 0, settle: {estimate: 90}%[2]s}
  settled_a: {algorithm: token_bucket, rate: 1, period: 365d, capacity: 500, settle: {estimate: 90}}
  settled_b: {algorithm: token_bucket, rate: 1, period: 365d, capacity: 600, settle: {estimate: 90}}
descriptors:
  - {key: user, limit: plan}
  - {key: service, value: ai, descriptors: [{key: user, limit: estimated}]}
`

func paidBy(payer string) string {
	if payer == "" {
		return fmt.Sprintf(plansYAML, "", "")
	}
	return fmt.Sprintf(plansYAML, ", then: "+payer, ", then: settled_"+payer)
}

func (x *instance) expect(t *testing.T, body string, code int, text string) (answer string) {
	t.Helper()
	got, answer := post(t, x.HTTP, "/v1/limit", body)
	if got != code || !strings.Contains(answer, text) {
		t.Errorf("%s: %d %s, want %d with %s", body, got, answer, code, text)
	}
	return answer
}

func (x *instance) remaining(t *testing.T, limit, key string) (n int64) {
	t.Helper()
	var answered struct{ Limits []struct{ Remaining int64 } }
	code, answer := post(t, x.HTTP, "/v1/limit", fmt.Sprintf(`{"name":%q,"key":%q,"count":0}`, limit, key))
	if err := json.Unmarshal([]byte(answer), &answered); err != nil || len(answered.Limits) != 1 {
		t.Fatalf("got %v %v %v; want a JSON answer about one limit", code, answer, err)
	}
	return answered.Limits[0].Remaining
}

func reserved(t *testing.T, answer string) string {
	t.Helper()
	var answered struct{ Reservation string }
	if err := json.Unmarshal([]byte(answer), &answered); err != nil || answered.Reservation == "" {
		t.Fatalf("got %s (%v); want JSON with the id of a reservation", answer, err)
	}
	return answered.Reservation
}

// Reloads add a payer, replace it by another one, and remove it. The new payer pays for all later requests.
// Each bucket keeps its content, and reservations that the previous payer paid are settled in its bucket.
func TestAReloadChangesThePayer(t *testing.T) {
	for name, store := range map[string]func() string{
		"memory": func() string { return "" },
		"redis":  func() string { return "redis://" + redistest.Start(t).Addr },
	} {
		t.Run(name, func(t *testing.T) {
			x := start(t, paidBy(""), onRedis(store()))
			changePayer := func(payer string) {
				t.Helper()
				x.write(t, paidBy(payer))
				x.reload(t)
			}
			const again = `{"name":"plan","key":"bob","count":10,"request_id":"within the plan"}`
			x.expect(t, again, 200, `"remaining":0`)
			x.expect(t, `{"name":"plan","key":"bob","count":5}`, 429, `"remaining":0`)
			x.send(t, "service=ai,user=bob") // reserves 90 of 100

			changePayer("a")
			const byA = `{"name":"plan","key":"bob","count":5,"request_id":"r"}`
			x.expect(t, byA, 200, `"payer":"a"`)
			x.expect(t, byA, 200, `"payer":"a"`)
			byProxy := x.send(t, "service=ai,user=bob").DynamicMetadata.Fields["settle"].GetStringValue()
			const estimated = `{"name":"estimated","key":"bob","count":90,"reserve":true,"request_id":"e"}`
			byProgram := reserved(t, x.expect(t, estimated, 200, `"payer":"settled_a"`))
			if again := reserved(t, x.expect(t, estimated, 200, `"payer":"settled_a"`)); again != byProgram {
				t.Errorf("the repeated reservation has the id %s; want %s", again, byProgram)
			}

			changePayer("b")
			x.expect(t, `{"name":"plan","key":"bob","count":7}`, 200, `"payer":"b"`)
			// A stored answer may name another payer than the current configuration. Then the repeated request
			// must be refused, because its answer would name the wrong bucket.
			x.expect(t, byA, 422, "reused-id")
			x.expect(t, estimated, 422, "reused-id")
			if x.remaining(t, "a", "bob") != 95 || x.remaining(t, "b", "bob") != 193 || x.remaining(t, "settled_a", "bob") != 500-2*90 {
				t.Errorf("left: a %d, b %d, settled_a %d; want 95, 193 and 320", x.remaining(t, "a", "bob"), x.remaining(t, "b", "bob"), x.remaining(t, "settled_a", "bob"))
			}

			changePayer("")
			x.expect(t, `{"name":"plan","key":"bob","count":1}`, 429, `"remaining":0`)
			x.expect(t, again, 200, `"remaining":0`)
			for range 2 {
				x.send(t, "settle="+byProxy+";hits=30", "settle_end="+byProxy+";hits=0")
				x.expect(t, `{"reservation":"`+byProgram+`","count":40}`, 200, "")
			}
			if x.remaining(t, "settled_a", "bob") != 500-30-40 || x.remaining(t, "settled_b", "bob") != 600 || x.remaining(t, "estimated", "bob") != 10 {
				t.Errorf("left: settled_a %d, settled_b %d, estimated %d; want 430, 600 and 10",
					x.remaining(t, "settled_a", "bob"), x.remaining(t, "settled_b", "bob"), x.remaining(t, "estimated", "bob"))
			}
		})
	}
}

// With hash_tag: entry:KEY the key of a payer in Redis depends on the setting "then" of the plan. A reservation is
// settled in the bucket that paid for it, even if that setting was removed and added again since.
func TestARemovedPayerIsSettledInItsBucket(t *testing.T) {
	entry := func(payer string) string {
		return strings.Replace(paidBy(payer), "hash_tag: domain", "hash_tag: entry:user", 1)
	}
	x := start(t, entry("a"), onRedis("redis://"+redistest.Start(t).Addr))
	reservation := reserved(t, x.expect(t, `{"name":"estimated","key":"bob","count":200,"reserve":true}`, 200, `"payer":"settled_a"`))
	for _, payer := range []string{"", "a"} {
		x.write(t, entry(payer))
		x.reload(t)
		x.expect(t, `{"reservation":"`+reservation+`","count":40}`, 200, "")
	}
	if left := x.remaining(t, "settled_a", "bob"); left != 460 {
		t.Errorf("%d are left, want 460", left)
	}
}
