package httpapi

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

const topUps = `
limits:
  credits: {algorithm: token_bucket, rate: 1, period: 365d, capacity: 100000, initial: 0}
  calls:   {algorithm: token_bucket, rate: 1000, period: 365d}
`

func topUp(id, remember string) string {
	return `{"name":"credits","key":"bob","count":-500,"request_id":"` + id + `"` + remember + `}`
}

// A payment is reported again for days. The units are added once for as long as the call says.
func TestATopUpIsRememberedForAsLongAsItSays(t *testing.T) {
	s := inMemory(t, topUps, 1000)
	at := func(hours algorithms.Micros) { s.clock.Set(storetest.Start + hours*3600*algorithms.Second) }
	s.post("/v1/limit", topUp("week", `,"remember":"168h"`), 200)
	s.post("/v1/limit", topUp("usual", ``), 200)
	for hour := range algorithms.Micros(168) {
		at(hour)
		s.post("/v1/limit", topUp("week", `,"remember":"168h"`), 200)
		s.post("/v1/limit", topUp("week", `,"remember":"1s"`), 200) // the time of the first call applies
		s.post("/v1/limit", topUp("week", ``), 200)
	}
	s.wantLeft("credits", 1000)
	s.post("/v1/limit", topUp("usual", `,"remember":"30d"`), 200) // forgotten after ten minutes
	s.wantLeft("credits", 1500)
	at(168)
	s.post("/v1/limit", topUp("week", `,"remember":"168h"`), 200)
	s.wantLeft("credits", 2000)
	at(29 * 24)
	s.post("/v1/limit", topUp("usual", ``), 200)
	s.wantLeft("credits", 2000)
}

func TestRememberIsChecked(t *testing.T) {
	s := inMemory(t, topUps, 1000)
	const must = "remember: must be a time from 1s to 30d, such as 168h or 7d, but is "
	for remember, detail := range map[string]string{
		`"31d"`: must + `"31d"`, `"999ms"`: must + `"999ms"`, `""`: must + `""`, `"-1h"`: must + `"-1h"`, `"a week"`: must + `"a week"`,
		`"1000000000000000d"`: must + `"1000000000000000d"`, `604800`: "remember: must be a string, but is a number",
	} {
		exchangeStep{0, "/v1/limit", `{"name":"calls","request_id":"x","remember":` + remember + `}`, 400, detail}.check(t, s)
	}
	exchangeStep{0, "/v1/limit", `{"name":"calls","remember":"1h"}`, 400, "has remember without a request_id; add the request_id that is remembered, or leave out remember"}.check(t, s)
	s.post("/v1/limit", `{"name":"calls","request_id":"x","remember":"30d"}`, 200)
}
