package server

import (
	"encoding/json"
	"testing"
)

const tokens = `
domain: d
limits:
  tokens: {algorithm: token_bucket, rate: 1000, period: 365d, max_reserved: 500}
  pass:   {algorithm: token_bucket, rate: 3, period: 365d, on_backend_failure: allow}
`

// Two sidecars with buckets of their own have the same key. An id that one of them settled refunds nothing at the other.
func TestAnIDIsSettledOnlyWhereTheBucketIs(t *testing.T) {
	token := func(c *Config) { c.APIToken = "s3cret" }
	one, other := start(t, tokens, token), start(t, tokens, token)
	_, answer := post(t, one.HTTP, "/v1/limit", `{"name":"tokens","count":800,"reserve":true}`, "Authorization", "Bearer s3cret")
	var parsed struct{ Reservation string }
	if err := json.Unmarshal([]byte(answer), &parsed); err != nil || parsed.Reservation == "" {
		t.Fatalf("got %s (%v); want JSON with the id of a reservation", answer, err)
	}
	for x, want := range map[*instance]int{one: 200, other: 404} {
		if code, answer := post(t, x.HTTP, "/v1/limit", `{"reservation":"`+parsed.Reservation+`","count":0}`, "Authorization", "Bearer s3cret"); code != want {
			t.Errorf("got %d %s; want code %d", code, answer, want)
		}
	}
}
