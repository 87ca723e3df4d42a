package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

// settleLimits is a configuration with a plain limit, a limit with settle, and one of requests in flight. The last two
// are in domains of their own, because the answers of such domains contain metadata. No limit is ever reached.
// The estimate is higher than the real costs, so that each settlement is a refund.
const settleLimits = `
domain: bench
limits:
  plain: {algorithm: token_bucket, rate: 1, period: 1m, capacity: 100000000}
descriptors:
  - {key: user_id, limit: plain}
---
domain: ai
settle: {key: settle, end: settle_end}
limits:
  tokens: {algorithm: token_bucket, rate: 1000000000, period: 1m, settle: {estimate: 1500, ttl: 1m}}
descriptors:
  - {key: token_id, limit: tokens}
---
domain: flights
limits:
  slots: {algorithm: concurrency, capacity: 10000, ttl: 1m}
descriptors:
  - {key: slot_id, limit: slots}
`

// settleScript is a script of wrk. It either consumes units of a plain limit, or reserves units or a slot and settles
// them. It reads each answer in both cases, so that wrk costs the same in both.
const settleScript = `
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local settles, ids = %t, {}
request = function()
  local id = settles and table.remove(ids)
  if id then return wrk.format(nil, "/v1/limit", nil, '{"reservation": "' .. id .. '", "count": 700}') end
  local body = '{"name": "%s", "key": "k' .. math.random(10000) .. '", "count": %d%s}'
  return wrk.format(nil, "/v1/limit", nil, body)
end
response = function(status, headers, body)
  local id = string.match(body, '"reservation": *"([^"]+)"')
  if id then ids[#ids + 1] = id end
end
`

// settleComparison compares plain decisions with reservations and their settlements, and with slots that are taken and
// returned, over gRPC and over HTTP, in memory and on Redis. Of the requests that reserve and settle, half are
// reservations.
func settleComparison(b *bench) (found []finding) {
	redis := b.redis()
	for _, v := range b.variants() {
		for _, kept := range []buckets{{}, on(redis)} {
			rows := b.settling(v, kept, redis)
			found = append(found, rows...)
		}
	}
	return found
}

// settling measures one sidecar, which keeps its buckets in kept. Afterwards it empties redis, so that the next
// sidecar starts with no keys there.
func (b *bench) settling(v variant, kept buckets, redis *child) (found []finding) {
	listen := must(freeAddress())
	http := must(freeAddress())
	flags := slices.Concat(kept.flags, []string{
		"--grpc-listen", listen, "--http-listen", http, "--memory-max-keys", "5000000",
	})
	where := "in memory"
	if len(kept.servers) > 0 {
		flags, where = append(flags, v.redisFlags()...), "on Redis"
	}
	s := b.started(b.sidecarOf(v).serve(b, b.dir, settleLimits, listen, flags...))
	for _, way := range b.settleWays(s, kept, http) {
		measured := b.inTurn(way.plain, way.settles)
		both := func(value func(sample) float64) []float64 {
			values := measured[1].of(value)
			for i := range values {
				values[i] *= 2 // doubled, because only half of the requests were reservations
			}
			return values
		}
		row := func(what string, value func(sample) float64) {
			found = append(found, finding{
				name:    fmt.Sprintf("%s, %s: CPU us of %s, compared with one plain decision", way.name, where, what),
				variant: v.label, ceiling: measured[0].of(value), ours: both(value), format: "%.2f", target: way.target,
			})
		}
		if row("the sidecar", sampleCPU); len(kept.servers) > 0 {
			row("Redis", sampleRedisCPU)
		}
	}
	s.stop()
	redis.redisCommand(b, "FLUSHALL")
	return found
}

// settleWay is a way to send requests. plain sends requests for a plain limit. settles sends requests that
// reserve and settle.
type settleWay struct {
	name           string
	target         float64
	plain, settles candidate
}

// settleWays returns three ways, for reservations and for slots: a closed loop, in which the server reads many requests
// at once; an open loop, in which it reads them one by one; and HTTP, if wrk is installed.
func (b *bench) settleWays(s *child, kept buckets, http string) (all []settleWay) {
	closed := b.loadConfig("user_id", 10_000)
	open := closed
	open.Rate = 2000
	for _, way := range []struct {
		name string
		load load.Config
	}{{"gRPC", closed}, {"gRPC, 2,000/s", open}} {
		settles := way.load
		settles.Domain, settles.Descriptors, settles.Settle = "ai", []string{"token_id={}"}, true
		slots := settles
		slots.Domain, slots.Descriptors = "flights", []string{"slot_id={}"}
		plain := b.server(s, kept.servers, way.load, false)
		all = append(all, settleWay{"reserve and settle, " + way.name, 2.2, plain, b.server(s, kept.servers, settles, false)},
			settleWay{"take and return a slot, " + way.name, 2.5, plain, b.server(s, kept.servers, slots, false)})
	}
	if find(b.Wrk) != nil {
		return all
	}
	w := wrk{program: b.Wrk, connections: 16, duration: max(time.Second, b.Duration.Round(time.Second)), script: filepath.Join(b.dir, "settle.lua")}
	with := func(script string) candidate {
		posts := w.candidate(b, target{s.name, http, script, s})
		return candidate{s.name, func() (out sample) {
			took := metered(b, kept.servers, func() { out = posts.run() })
			if out.PerSecond > 0 {
				out.redisCPU = took.cpu.Seconds() * 1e6 / (out.PerSecond * w.duration.Seconds())
			}
			return out
		}}
	}
	plain := with(fmt.Sprintf(settleScript, false, "plain", 1, ""))
	return append(all,
		settleWay{"reserve and settle, HTTP", 2.2, plain, with(fmt.Sprintf(settleScript, true, "tokens", 1500, `, "reserve": true`))},
		settleWay{"take and return a slot, HTTP", 2.5, plain, with(fmt.Sprintf(settleScript, true, "slots", 1, ""))},
	)
}
