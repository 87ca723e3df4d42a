package httpapi

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
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

// A request to an unlimited limit charges nothing, so its reservation refunds nothing, also after the end of the
// adjustment.
func TestAReservationOfAnUnlimitedLimitRefundsNothing(t *testing.T) {
	for _, c := range []struct{ limit, adjusted string }{{"jobs", "jobs"}, {"plan", "plan"}, {"plan", "credits"}} {
		t.Run(c.limit+" with unlimited "+c.adjusted, func(t *testing.T) {
			onEachStore(t, unlimitedLimits, func(t *testing.T, s *onStore) {
				s.post("/v1/limit", `{"limits":[{"name":"jobs","key":"bob","count":30},{"name":"credits","key":"bob","count":30}]}`, 200)
				s.post("/v1/limit", `{"name":"plan","key":"bob","count":30}`, 200)
				s.adjust(c.adjusted, adjust.Change{Unlimited: true})
				var ids []string
				for range 3 {
					ids = append(ids, s.post("/v1/limit", `{"name":"`+c.limit+`","key":"bob","count":10,"reserve":true}`, 200).Reservation)
				}
				s.post("/v1/limit", settleBody(ids[0], "20"), 200)
				s.adjust("", adjust.Change{})
				for _, id := range ids {
					s.post("/v1/limit", settleBody(id, "0"), 200)
				}
				for _, limit := range []string{"jobs", "plan", "credits"} {
					s.wantLeft(limit, 0)
				}
			})
		})
	}
}

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

func TestDeniedRequestsToAnUnlimitedLimitCostNothing(t *testing.T) {
	onEachStore(t, unlimitedLimits, func(t *testing.T, s *onStore) {
		s.post("/v1/limit", `{"name":"other","key":"bob"}`, 200)
		for _, limit := range []string{"jobs", "credits"} {
			s.adjust(limit, adjust.Change{Unlimited: true})
			for range 10 {
				s.post("/v1/limit", `{"limits":[{"name":"jobs","key":"bob"},{"name":"plan","key":"bob"},{"name":"other","key":"bob"}]}`, 429)
			}
		}
		for _, limit := range []string{"jobs", "plan", "credits"} {
			s.wantLeft(limit, 30)
		}
	})
}

// What was consumed before a key became unlimited is refunded, and nothing more is charged. Top-ups are not lost.
func TestSettlementsAndRefundsOfAnUnlimitedKey(t *testing.T) {
	onEachStore(t, unlimitedLimits, func(t *testing.T, s *onStore) {
		reserve := func() string {
			return s.post("/v1/limit", `{"name":"jobs","key":"bob","count":10,"reserve":true}`, 200).Reservation
		}
		less, more := reserve(), reserve()
		s.adjust("jobs", adjust.Change{Unlimited: true})
		s.post("/v1/limit", settleBody(less, "4"), 200)
		s.post("/v1/limit", settleBody(more, "10000"), 200)
		s.post("/v1/limit", `{"name":"jobs","key":"bob","count":-3}`, 200)
		s.adjust("", adjust.Change{})
		s.wantLeft("jobs", 19)
		s.post("/v1/limit", settleBody(more, "0"), 409)
		s.wantLeft("jobs", 19)
	})
}

// In shadow mode of the process, a request that a limit denies is allowed although the store charged none of its
// limits.
func TestAReservationThatOnlyShadowModeAllows(t *testing.T) {
	store := memory.New(memory.Config{Clock: storetest.Times(func() algorithms.Micros { return storetest.Start })})
	h := apiOver(t, store, func(a *API) {
		config := limiter.Config{
			IDs:   reservation.NewKeys(func() []string { return []string{"s3cret"} }, nil),
			Modes: limiter.Modes{Shadow: true}, Now: func() algorithms.Micros { return storetest.Start },
		}
		snapshot := a.Limiter.Current()
		a.Limiter = limiter.New(store, config)
		a.Limiter.Swap(snapshot)
	})
	s := &onStore{Handler: h, t: t}
	s.post("/v1/limit", `{"name":"send","key":"bob","count":10}`, 200)
	id := s.post("/v1/limit", `{"limits":[{"name":"tokens","key":"bob","count":8,"reserve":true},{"name":"send","key":"bob"}]}`, 200).Reservation
	s.post("/v1/limit", `{"name":"tokens","key":"bob","count":10}`, 200)
	s.post("/v1/limit", settleBody(id, "0"), 200)
	s.wantLeft("tokens", 0)
}

// A reset forgives what was consumed, so a reservation from before it is not refunded.
func TestAReservationFromBeforeAResetIsNotRefunded(t *testing.T) {
	const limits = `
limits:
  tokens: {algorithm: token_bucket, rate: 100, period: 365d, max_reserved: 0}
  daily:  {algorithm: fixed_window, rate: 100, period: 365d, start: 2026-01-01T00:00:00Z, max_reserved: 0}
  known:  {algorithm: token_bucket, rate: 100, period: 365d, max_reserved: 0, settle: {estimate: 10}}
`
	onEachStore(t, limits, func(t *testing.T, s *onStore) {
		for _, name := range []string{"tokens", "daily", "known"} {
			s.clock.Set(s.clock.Now() + algorithms.Second)
			reserve := func(count string) string {
				return s.post("/v1/limit", `{"name":"`+name+`","key":"bob","count":`+count+`,"reserve":true}`, 200).Reservation
			}
			before := reserve("100")
			s.clock.Set(s.clock.Now() + algorithms.Second)
			s.post("/v1/reset", `{"name":"`+name+`","key":"bob"}`, 200)
			s.post("/v1/reset", `{"name":"`+name+`","key":"ann"}`, 200)
			s.clock.Set(s.clock.Now() + algorithms.Second)
			s.post("/v1/limit", `{"name":"`+name+`","key":"bob","count":60}`, 200)
			s.clock.Set(s.clock.Now() + algorithms.Second)
			after := reserve("40")
			s.post("/v1/limit", settleBody(before, "0"), 200)
			s.wantLeft(name, 0)
			s.post("/v1/limit", settleBody(before, "0"), 200)
			s.post("/v1/limit", settleBody(after, "10"), 200)
			s.wantLeft(name, 30)
		}
	})
}

func TestAnOldReservationIsNotRefunded(t *testing.T) {
	const limits = `
limits:
  tokens: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 1000, max_reserved: 200}
`
	onEachStore(t, limits, func(t *testing.T, s *onStore) {
		s.post("/v1/limit", `{"name":"tokens","key":"bob","count":1000}`, 200)
		early := s.post("/v1/limit", `{"name":"tokens","key":"bob","count":100,"reserve":true}`, 202).Reservation
		late := s.post("/v1/limit", `{"name":"tokens","key":"bob","count":100,"reserve":true}`, 202).Reservation
		s.clock.Set(storetest.Start + algorithms.Day - 1)
		s.post("/v1/limit", settleBody(early, "0"), 200)
		s.wantLeft("tokens", -100) // 24 of the 100 units have flowed in since, and would have in any case
		s.clock.Set(storetest.Start + algorithms.Day)
		s.post("/v1/limit", settleBody(late, "0"), 200)
		s.wantLeft("tokens", -100) // nothing is refunded; before, it would have been 76 units
	})
}
