package httpapi

import "github.com/rlsidecar/rlsidecar/internal/limiter"

// identify adds the ids of the reserved units of req, which was allowed: one id for each limit, and one for all
// limits unless there are more than limiter.MaxReserved. All have the same Reserved.ID, so each limit is settled
// once, whichever id a client uses.
func (a *API) identify(answer *apiAnswer, req *apiRequest) {
	c := req.call
	all := limiter.Reserved{Domain: limiter.PrefixNumber(c.Verdict.Domain.Name)}
	var results []int // the result of each part
	for i := range c.Results {
		descriptor := c.Results[i].Descriptor
		if !c.Limits[descriptor].Reserve {
			continue
		}
		if part, ok := c.Part(i, string(req.configs[descriptor])); ok {
			part.Number = i
			all.Parts, results = append(all.Parts, part), append(results, i)
		} else if r := &c.Results[i]; r.Outcome == limiter.Unlimited { // the client needs an id, although there is nothing to settle
			answer.Reservation, answer.Limits[i].Reservation = limiter.None, limiter.None
		} else if r.For != nil { // the payer paid the larger cost of another limit
			answer.Reservation = limiter.None
		}
	}
	for i, part := range c.Slots() {
		all.ID, answer.Limits[i].TTL = c.SlotID(), millis(part.TTL)
		all.Parts, results = append(all.Parts, part), append(results, i)
	}
	if len(results) == 0 {
		return
	}
	if req.id != "" && all.ID == ([16]byte{}) { // a repeated request must get the same id
		all.ID = limiter.IdempotencyID("reservation", req.id)
	}
	if len(results) <= limiter.MaxReserved {
		answer.Reservation = a.Limiter.ID(&all)
	}
	for n, i := range results {
		answer.Limits[i].Reservation = answer.Reservation
		if len(results) > 1 {
			one := limiter.Reserved{ID: all.ID, Domain: all.Domain, Parts: all.Parts[n : n+1]}
			answer.Limits[i].Reservation = a.Limiter.ID(&one)
			all.ID = one.ID
		}
	}
}
