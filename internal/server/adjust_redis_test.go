package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	conf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

const leased = `
domain: d
limits:
  calls: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 1000, lease: {max: 50%, for: 10s}}
descriptors: [{key: user, limit: calls}]
`

// An adjustment that is made at one sidecar takes effect at the other one, even if that sidecar has leased units or
// cached denials of the key.
func TestSidecarsSeeAdjustmentsOfEachOther(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	tokens := withTokens(t)
	a := start(t, leased, tokens, onRedis("redis://"+redis.Addr))
	b := start(t, leased, tokens, onRedis("redis://"+redis.Addr))
	if n := b.allowed(t, 40, "bob"); n != 40 { // often enough for a lease
		t.Fatalf("bob gets %d of 40; want 40", n)
	}
	id := a.adjust(t, `"key":["bob"],"block":true,"for":"1h"`)
	if n := a.allowed(t, 3, "bob"); n != 0 {
		t.Errorf("at the sidecar that changed the limit, bob gets %d; want 0", n)
	}
	eventually(t, "the block is in force at the other sidecar", func() bool { return b.allowed(t, 1, "bob") == 0 })
	if code, answer := b.asAdmin(t, "DELETE", "/api/adjustments/"+id, `{"author":"ann","reason":"over"}`); code != 200 {
		t.Fatalf("got %d %v; want code 200", code, answer)
	}
	if n := b.allowed(t, 1, "bob"); n != 1 {
		t.Error("at the sidecar that deleted the adjustment, bob is denied; want bob allowed")
	}
	eventually(t, "the block is over at the first sidecar", func() bool { return a.allowed(t, 1, "bob") == 1 })

	a.allowed(t, 1010, "eve")
	if n := a.allowed(t, 1, "eve") + b.allowed(t, 1, "eve"); n != 0 {
		t.Fatalf("eve has used all, and gets %d; want 0", n)
	}
	a.adjust(t, `"key":["eve"],"rate":1,"capacity":1500,"for":"1h"`)
	eventually(t, "the raised limit is in force at both", func() bool { return a.allowed(t, 1, "eve") == 1 && b.allowed(t, 1, "eve") == 1 })
	code, answer := b.asAdmin(t, "GET", "/api/adjustments/audit", "")
	if entries, _ := answer["entries"].([]any); code != 200 || len(entries) != 3 {
		t.Errorf("got %d %v; want status 200 and 3 changes", code, answer)
	}

	// bob is unlimited now, so a request_id needs two calls of Redis: whether the request is a repetition, and the charge.
	a.adjust(t, `"key":["bob"],"unlimited":true,"for":"1h"`)
	redis.Pause()
	began := time.Now()
	a.expect(t, `{"limits": [{"name": "calls", "key": "bob"}, {"name": "calls", "key": "ann"}], "request_id": "r"}`, 503, "")
	if took := time.Since(began); took > 5*time.Second { // the timeout is 3 s
		t.Errorf("the answer took %v; want one timeout for both calls", took)
	}
	redis.Resume()
}

// The Redis user has only the permissions that limits need.
func TestAdjustmentsAreOffWithoutThePermissions(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	redis.Do("ACL", "SETUSER", "limits", "on", ">pw", "~rl:*", "+evalsha", "+eval", "+mget", "+get", "+psetex", "+del", "+pexpire", "+time", "+ping", "+info")
	x := start(t, oneLimit, onRedis("redis://limits:pw@"+redis.Addr))
	if n := x.allowed(t, 5, "bob"); n != 2 {
		t.Errorf("bob gets %d, want 2", n)
	}
	eventually(t, "the condition is reported", func() bool {
		return strings.Contains(x.conditions(t), "warning "+adjustmentsOff+": ")
	})
	redis.Do("ACL", "SETUSER", "limits", "+hmget", "+hscan", "+hlen", "+hset", "+hdel", "+lrange", "+lpush", "+ltrim")
	eventually(t, "the condition is over", func() bool { return !strings.Contains(x.conditions(t), adjustmentsOff) })
}

// After a failover Redis has an older state, and another operator has made a change since. A condition names
// the lost block until it is set again.
func TestLostAdjustmentsAreACondition(t *testing.T) {
	t.Parallel()
	redis, tokens := redistest.Start(t), withTokens(t)
	x := start(t, oneLimit, tokens, onRedis("redis://"+redis.Addr))
	x.adjust(t, `"key":["bob"],"block":true,"for":"1h"`)
	lost := x.adjust(t, `"key":["eve"],"block":true,"for":"1h"`)
	// The version stays the same, but its change differs, as if a sidecar that did not know eve's block had
	// made one. The test writes all values at once, as a failover does. Otherwise a poll could read a
	// state in which no change is lost yet.
	redis.Do("EVAL", `redis.call('HSET', KEYS[1], 'head', '2 another') return redis.call('HDEL', KEYS[1], ARGV[1])`, 1, "rl:{adjustments}set", lost)
	conditions := func() string {
		_, answer := x.asAdmin(t, "GET", "/api/conditions", "")
		return fmt.Sprint(answer["conditions"])
	}
	eventually(t, "the loss is a condition", func() bool {
		text := conditions()
		return strings.Contains(text, "adjustments-lost") && strings.Contains(text, "key eve (block, by ann)") && !strings.Contains(text, "bob")
	})
	x.adjust(t, `"key":["eve"],"block":true,"for":"1h"`)
	eventually(t, "the condition ends", func() bool { return !strings.Contains(conditions(), "adjustments-lost") })
}

// A sidecar that reads adjustments before its first configuration notices their end, too.
func TestAnAdjustmentReadBeforeAConfigurationEnds(t *testing.T) {
	t.Parallel()
	redis, tokens, p := onRedis("redis://"+redistest.Start(t).Addr), withTokens(t), newPlane(t, "")
	x := start(t, "", from(p, func(x *XDS) { x.StartWithout = true }), redis)
	start(t, oneLimit, tokens, redis).adjust(t, `"key":["bob"],"block":true,"for":"3s"`)
	x.shows(t, "rlsidecar_adjustments_version 1")
	p.set(t, "1", &conf.RateLimitDescriptor{Key: "user", RateLimit: &conf.RateLimitPolicy{Name: "calls", Unit: year, RequestsPerUnit: 2}})
	x.shows(t, `rlsidecar_config_reloads_total{result="success"} 1`)
	x.shows(t, `rlsidecar_adjustments{state="applied"} 0`)
	if n := x.allowed(t, 3, "bob"); n != 2 {
		t.Errorf("bob gets %d after the block, want 2", n)
	}
}
