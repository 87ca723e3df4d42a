package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// A limit with settle allows every settlement. So a real cost of more than the limit can ever hold is no mistake: it
// makes a debt, in each limit of the reservation.
func TestARealCostThatIsMoreThanTheLimitCanHold(t *testing.T) {
	const limits = `
limits:
  tokens: {algorithm: token_bucket, rate: 100000, period: 1h, max_reserved: 0, settle: {estimate: 1500}}
  daily:  {algorithm: token_bucket, rate: 1000000, period: 1d, max_reserved: 0, settle: {estimate: 1500}}
  plain:  {algorithm: token_bucket, rate: 1000, period: 1h, max_reserved: 0}
`
	onEachStore(t, limits, func(t *testing.T, s *onStore) {
		id := s.post("/v1/limit", `{"limits":[{"name":"tokens","key":"bob","count":1500,"reserve":true},{"name":"daily","key":"bob","count":1500,"reserve":true}]}`, 200).Reservation
		for range 2 {
			s.post("/v1/limit", settleBody(id, "150000"), 200)
			s.wantLeft("tokens", -50000)
			s.wantLeft("daily", 850000)
		}
		s.post("/v1/limit", settleBody(id, "0"), 409)
		s.wantLeft("tokens", -50000)

		// A limit without settle decides an extra charge like a request, so a cost that never fits is a mistake.
		// Then no limit is settled, and the client can correct the cost.
		id = s.post("/v1/limit", `{"limits":[{"name":"daily","key":"bob","count":100,"reserve":true},{"name":"plain","key":"bob","count":100,"reserve":true}]}`, 200).Reservation
		s.post("/v1/limit", settleBody(id, "1101"), 400)
		s.wantLeft("daily", 849900)
		s.wantLeft("plain", 900)
		s.post("/v1/limit", settleBody(id, "50"), 200)
		s.wantLeft("daily", 849950)
		s.wantLeft("plain", 950)
	})
}

const unlimitedLimits = `
hash_tag: domain
limits:
  jobs:    {algorithm: token_bucket, rate: 30, period: 365d, max_reserved: 0}
  other:   {algorithm: token_bucket, rate: 1, period: 365d, max_reserved: 0}
  plan:    {algorithm: token_bucket, rate: 30, period: 365d, max_reserved: 0, then: credits}
  credits: {algorithm: token_bucket, rate: 30, period: 365d, max_reserved: 0}
`

// The reservation of a limit beside an unlimited one has the units of that limit only.
func TestAReservationBesideAnUnlimitedLimit(t *testing.T) {
	onEachStore(t, unlimitedLimits, func(t *testing.T, s *onStore) {
		s.adjust("jobs", adjust.Change{Unlimited: true})
		both := s.post("/v1/limit", `{"limits":[{"name":"jobs","key":"bob","count":10,"reserve":true},{"name":"credits","key":"bob","count":10,"reserve":true}]}`, 200)
		if both.Limits[0].Reservation != limiter.None || both.Limits[1].Reservation != both.Reservation || both.Reservation == limiter.None {
			t.Errorf("got %+v; want no reservation of jobs, and that of credits for the request", both)
		}
		s.adjust("", adjust.Change{})
		s.post("/v1/limit", settleBody(both.Reservation, "4"), 200)
		s.wantLeft("jobs", 30)
		s.wantLeft("credits", 26)
	})
}

// A request names a plan twice, and reserves only one of its parts. Credits pay for both. The reservation has the units of
// that part. If the payer paid the larger cost of another limit, or the part is a refund, nothing was reserved.
func TestCreditsPaidForAPartThatIsNotReserved(t *testing.T) {
	const limits = `
hash_tag: domain
limits:
  plan:    {algorithm: fixed_window, rate: 10, period: 365d, start: 2026-01-01T00:00:00Z, max_reserved: 0, then: credits}
  pace:    {algorithm: fixed_window, rate: 8, period: 365d, start: 2026-01-01T00:00:00Z, max_reserved: 0, then: credits}
  credits: {algorithm: fixed_window, rate: 100, period: 365d, start: 2026-01-01T00:00:00Z, max_reserved: 0}
`
	onEachStore(t, limits, func(t *testing.T, s *onStore) {
		twice := s.post("/v1/limit", `{"limits":[{"name":"plan","key":"bob","count":12},{"name":"plan","key":"bob","count":28,"reserve":true}]}`, 200)
		s.wantLeft("credits", 60)
		if twice.Reservation == "" || twice.Limits[1].Reservation != twice.Reservation || twice.Limits[0].Reservation != "" {
			t.Errorf("got %+v; want a reservation of the second part", twice)
		}
		s.post("/v1/limit", settleBody(twice.Reservation, "20"), 200)
		s.wantLeft("credits", 68)

		for _, body := range []string{
			`{"limits":[{"name":"plan","key":"bob","count":11},{"name":"pace","key":"bob","count":5,"reserve":true}]}`,
			`{"limits":[{"name":"plan","key":"bob","count":13},{"name":"plan","key":"bob","count":-2,"reserve":true}]}`,
		} {
			if got := s.post("/v1/limit", body, 200); got.Reservation != limiter.None {
				t.Errorf("%s: got %+v; want the reservation %q", body, got, limiter.None)
			}
		}
		s.wantLeft("credits", 46)
		s.wantLeft("plan", 10)
		s.wantLeft("pace", 8)
	})
}

// A reset forgives what was consumed. If the reservation were refunded too, its units would be available twice. A reload may
// have removed the settle of the limit meanwhile.
func TestAReservationFromBeforeAResetRefundsNothing(t *testing.T) {
	settling := strings.Replace(unlimitedLimits, "max_reserved: 0}", "settle: {estimate: 1}}", 1)
	for _, limits := range []string{unlimitedLimits, settling} {
		onEachStore(t, limits, func(t *testing.T, s *onStore) {
			id := s.post("/v1/limit", `{"name":"jobs","key":"bob","count":30,"reserve":true}`, 200).Reservation
			s.post("/v1/reset", `{"name":"jobs","key":"bob"}`, 200)
			s.configure(unlimitedLimits)
			s.clock.Set(s.clock.Now() + algorithms.Second)
			s.post("/v1/limit", `{"name":"jobs","key":"bob","count":30}`, 200)
			s.post("/v1/limit", settleBody(id, "0"), 200)
			s.wantLeft("jobs", 0)
		})
	}
}

// The numbers of the limit at the time of a reservation determine its refund. After a reload a repeated request does not
// know them.
func TestARepeatedReservationFromBeforeAReloadRefundsNothing(t *testing.T) {
	const limit = "limits: {jobs: {algorithm: token_bucket, rate: %d, period: 1h, capacity: 3600}}\n"
	const reserve = `{"name":"jobs","key":"bob","count":3600,"reserve":true,"request_id":"r"}`
	onEachStore(t, fmt.Sprintf(limit, 3600), func(t *testing.T, s *onStore) {
		s.post("/v1/limit", reserve, 200)
		s.clock.Set(s.clock.Now() + 300*algorithms.Second)
		s.post("/v1/limit", `{"name":"jobs","key":"bob","count":300}`, 200) // what has flowed in since
		s.configure(fmt.Sprintf(limit, 1))
		s.post("/v1/limit", settleBody(s.post("/v1/limit", reserve, 200).Reservation, "0"), 200)
		s.wantLeft("jobs", 0)
	})
}
