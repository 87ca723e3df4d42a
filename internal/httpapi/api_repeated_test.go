package httpapi

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
)

const repeatedLimits = `
hash_tag: domain
limits:
  jobs:    {algorithm: token_bucket, rate: 30, period: 365d, max_reserved: 0}
  other:   {algorithm: token_bucket, rate: 30, period: 365d, max_reserved: 0}
  plan:    {algorithm: token_bucket, rate: 30, period: 365d, max_reserved: 0, then: credits}
  credits: {algorithm: token_bucket, rate: 30, period: 365d, max_reserved: 0}
  seen:    {algorithm: token_bucket, rate: 30, period: 365d, shadow_mode: true}
`

// A repeated request gets the first answer, whatever changed since, and charges nothing.
func TestARepeatedRequestGetsTheFirstAnswer(t *testing.T) {
	lowered := strings.ReplaceAll(repeatedLimits, "rate: 30,", "rate: 5,")
	bodies := []string{
		`{"name":"jobs","key":"bob","count":10,"request_id":"id"}`,
		`{"name":"jobs","key":"bob","count":10,"reserve":true,"request_id":"id"}`,
		`{"limits":[{"name":"seen","key":"bob","count":10},{"name":"jobs","key":"bob","count":10},{"name":"other","key":"bob","count":10}],"request_id":"id"}`,
		`{"limits":[{"name":"plan","key":"bob","count":10},{"name":"jobs","key":"bob","count":10}],"request_id":"id"}`,
		`{"name":"seen","key":"bob","count":10,"request_id":"id"}`,
	}
	changes := map[string]func(s *onStore){
		"lowered":           func(s *onStore) { s.configure(lowered) },
		"lowered by factor": func(s *onStore) { s.adjust("jobs", adjust.Change{Factor: 100}) },
		"blocked":           func(s *onStore) { s.adjust("jobs", adjust.Change{Block: true}) },
		"other blocked":     func(s *onStore) { s.adjust("other", adjust.Change{Block: true}) },
		"plan blocked":      func(s *onStore) { s.adjust("plan", adjust.Change{Block: true}) },
		"credits blocked":   func(s *onStore) { s.adjust("credits", adjust.Change{Block: true}) },
		"unlimited":         func(s *onStore) { s.adjust("jobs", adjust.Change{Unlimited: true}) },
		"unlimited credits": func(s *onStore) { s.adjust("credits", adjust.Change{Unlimited: true}) },
		"seen blocked":      func(s *onStore) { s.adjust("seen", adjust.Change{Block: true}) },
	}
	for _, body := range bodies {
		for name, change := range changes {
			s := inMemory(t, repeatedLimits, 0)
			first := call(s, "POST", "/v1/limit", body)
			if first.Code != 200 {
				t.Fatalf("%s: got %d %s; want status 200", body, first.Code, first.Body)
			}
			change(s)
			again := call(s, "POST", "/v1/limit", body)
			if again.Code != 200 || again.Header().Get("Idempotent-Replayed") != "true" || numbers(first) != numbers(again) {
				t.Errorf("%s, %s, repeated:\n got %d %s\nwant the first answer, %s", name, body, again.Code, again.Body, first.Body)
			}
			s.adjust("", adjust.Change{})
			s.configure(repeatedLimits)
			var id apiReply
			if _ = json.Unmarshal(again.Body.Bytes(), &id); id.Reservation != "" {
				s.post("/v1/limit", settleBody(id.Reservation, "4"), 200)
				s.wantLeft("jobs", 26)
			}
			if again := call(s, "POST", "/v1/limit", body); again.Body.String() != first.Body.String() {
				t.Errorf("%s, %s, repeated later:\n got %d %s\nwant the first answer, %s", name, body, again.Code, again.Body, first.Body)
			}
		}
	}
}

// A settlement that is repeated gets the first answer, even if its cost would be a mistake now.
func TestARepeatedSettlementGetsTheFirstAnswer(t *testing.T) {
	onEachStore(t, repeatedLimits, func(t *testing.T, s *onStore) {
		id := s.post("/v1/limit", `{"name":"jobs","key":"bob","count":10,"reserve":true}`, 200).Reservation
		s.post("/v1/limit", settleBody(id, "29"), 200)
		s.configure("limits: {jobs: {algorithm: token_bucket, rate: 5, period: 365d, max_reserved: 0}}\nhash_tag: domain\n")
		s.post("/v1/limit", settleBody(id, "29"), 200)
		s.post("/v1/limit", settleBody(id, "28"), 409)
		s.configure(repeatedLimits)
		s.wantLeft("jobs", 1)

		// What was settled while the key was unlimited stays settled.
		id = s.post("/v1/limit", `{"name":"other","key":"bob","count":10,"reserve":true}`, 200).Reservation
		s.adjust("other", adjust.Change{Unlimited: true})
		s.post("/v1/limit", settleBody(id, "10000"), 200)
		s.adjust("", adjust.Change{})
		s.post("/v1/limit", settleBody(id, "10000"), 200)
		s.wantLeft("other", 20)

		// A request that is denied for a blocked key is no repetition, and charges nothing.
		s.adjust("other", adjust.Change{Block: true})
		s.post("/v1/limit", `{"limits":[{"name":"jobs","key":"bob"},{"name":"other","key":"bob"}],"request_id":"new"}`, 429)
		s.wantLeft("jobs", 1)
	})
}
