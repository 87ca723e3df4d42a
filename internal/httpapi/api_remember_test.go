package httpapi

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
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

func TestRedisRemembersATopUpForAsLongAsItSays(t *testing.T) {
	server, clock := redistest.Start(t), &storetest.Clock{}
	clock.Set(storetest.Start)
	s := on(t, openRedisAt(t, server, clock), clock, topUps)
	for id, remember := range map[string]time.Duration{"168h": 168 * time.Hour, "30d": 720 * time.Hour, "1h30m": 90 * time.Minute} {
		server.Do("FLUSHALL")
		for range 2 {
			s.post("/v1/limit", topUp(id, `,"remember":"`+id+`"`), 200)
		}
		s.wantLeft("credits", 500)
		var lives []time.Duration
		for _, key := range server.Client().Keys(t.Context(), "*").Val() {
			lives = append(lives, server.Client().PTTL(t.Context(), key).Val())
		}
		kept := func(life time.Duration) bool { return life > remember-time.Hour && life <= remember }
		if len(lives) != 2 || !slices.ContainsFunc(lives, kept) {
			t.Errorf("the bucket and the record are kept for %v; want one kept for %v", lives, remember)
		}
	}
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

// Ids that are remembered for long fill at most half of the memory. Then a call with an id gets an error and consumes
// nothing, calls without one are answered, and no id is forgotten early.
func TestIDsThatAreRememberedForLongAreBounded(t *testing.T) {
	const most = 1000
	s := inMemory(t, topUps, most)
	named := s.l.Current().Domains["edge"].Named
	s.store.(*memory.Store).SetOwners([]string{named["credits"].Owner, named["calls"].Owner})
	body := func(i int) string {
		return fmt.Sprintf(`{"name":"calls","key":"bob","request_id":"%d","remember":"30d"}`, i)
	}
	n := 0
	for ; n < 2*most; n++ {
		if call(s, "POST", "/v1/limit", body(n)).Code != 200 {
			break
		}
	}
	if n < most/2-1 || n > most/2 {
		t.Errorf("%d ids are remembered; want half of %d", n, most)
	}
	exchangeStep{0, "/v1/limit", body(n), 503,
		"the memory of the sidecar has no room for another bucket or request_id, so nothing was consumed; raise --memory-max-keys, let ids be remembered for a shorter time (remember), or keep them in Redis (--redis-url)"}.check(t, s)
	left := int64(1000 - n)
	s.wantLeft("calls", left)
	s.clock.Set(storetest.Start + 29*algorithms.Day)
	for i := range n {
		s.post("/v1/limit", body(i), 200)
	}
	s.post("/v1/limit", `{"name":"credits","key":"bob","count":-500}`, 200)
	s.post("/v1/limit", body(n), 503)
	s.clock.Set(storetest.Start + 30*algorithms.Day + 61*algorithms.Second)
	s.post("/v1/limit", body(n), 200)
}

// A proxy's settlement is remembered until twice the ttl and a minute after the reservation, in each store. A repetition
// that comes later counts as a late settlement.
func TestASettlementOfAProxyIsRememberedUntilTwiceItsTTLAndAMinute(t *testing.T) {
	const limits = `
limits:
  llm: {algorithm: token_bucket, rate: 1000, period: 1000d, settle: {estimate: 100, ttl: 1s}}
descriptors:
  - {key: user, limit: llm}
`
	server, clock := redistest.Start(t), &storetest.Clock{}
	clock.Set(storetest.Start)
	for _, s := range []*onStore{on(t, openRedisAt(t, server, clock), clock, limits), inMemory(t, limits, 0)} {
		send := func(key, value string, hits int64) *limiter.Call {
			t.Helper()
			c := &limiter.Call{}
			c.Request.Domain = "edge"
			d := c.AddDescriptor()
			d.Entries, d.Cost, d.Explicit, d.Declared = []descriptors.Entry{{Key: key, Value: value}}, hits, true, true
			if err := s.l.Check(t.Context(), c); err != nil || c.Denied {
				t.Fatal(err, c.Verdict)
			}
			return c
		}
		id := string(send("user", "bob", 1).AppendID(nil))
		s.clock.Set(storetest.Start + 500*ms)
		send("settle", id, 300)
		if s.clock == clock { // Redis forgets by its own clock
			var lives []time.Duration
			for _, key := range server.Client().Keys(t.Context(), "*").Val() {
				lives = append(lives, server.Client().PTTL(t.Context(), key).Val())
			}
			if !slices.ContainsFunc(lives, func(life time.Duration) bool { return life > 60*time.Second && life < 70*time.Second }) {
				t.Errorf("the bucket and the record are kept for %v; want one kept for 61.5 s, or up to an eighth longer", lives)
			}
			continue
		}
		s.clock.Set(storetest.Start + 62*algorithms.Second - 1)
		send("settle", id, 300)
		s.wantLeft("llm", 700)
		s.clock.Set(storetest.Start + 62*algorithms.Second)
		if one := send("settle", id, 300).Settlements[0]; one.Repeated || !one.Late {
			t.Errorf("got %+v; want a late settlement", one)
		}
		s.wantLeft("llm", 500)
	}
}
