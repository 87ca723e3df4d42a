package redis

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// Another program spoils the value of a bucket in every way. Only the groups of that bucket may fail, not those that
// share a call with it.
func TestASpoiledBucketAffectsOnlyItsGroup(t *testing.T) {
	t.Parallel()
	server, s := started(t)
	repeated := func(n float64, times int) string {
		var b []byte
		for range times {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(n))
		}
		return string(b)
	}
	const bad, name = "bad", "rl:{}bad"
	for i, spec := range storetest.Specs() {
		limit := compiled(t, spec)
		charge := func(key string, group int, terms algorithms.Charge) backend.Charge {
			return backend.Charge{Key: []byte(key), Limit: limit, Group: group, Terms: terms}
		}
		server.Do("DEL", name)
		takeAll(s, []backend.Charge{charge(bad, 0, algorithms.Charge{Cost: 1})})
		writes := map[string][]any{
			"nothing": {"SET", name, ""}, "a text": {"SET", name, "x"}, "bytes": {"SET", name, strings.Repeat("\xff", 49)},
			"a list": {"RPUSH", name, "x", "y"}, "a list of no numbers": {"RPUSH", name, "", "nan", "1e400"}, "denials": {"RPUSH", name, "d", "d"},
			"denials of another length": {"RPUSH", name, "d1234567890"}, "a hash": {"HSET", name, "a", "b"}, "a set": {"SADD", name, "a"},
			"a sorted set": {"ZADD", name, "1", "a"}, "a stream": {"XADD", name, "*", "a", "b"},
		}
		for _, n := range []float64{math.NaN(), math.Inf(1), -1e308, 1 << 52, 0} {
			for _, first := range []string{"\x00", "\x02", "\x04"} {
				for _, times := range []int{5, 6, 9} {
					writes[fmt.Sprintf("%d times %v after %q", times, n, first)] = []any{"SET", name, first + repeated(n, times)}
				}
			}
		}
		for is, write := range writes {
			for _, terms := range []algorithms.Charge{{Cost: 1}, {Cost: -1, ChargedAt: 1}, {Cost: 1, Settle: true}} {
				server.Do("DEL", name)
				server.Do(write...)
				before, after := fmt.Sprintf("%d before %s", i, is), fmt.Sprintf("%d after %s", i, is)
				d := takeAll(s, []backend.Charge{
					charge(before, 0, algorithms.Charge{Cost: 1, DryRun: true}), charge(bad, 1, terms), charge(after, 2, algorithms.Charge{Cost: 1, DryRun: true}),
				})
				if d[0].Err != nil || d[2].Err != nil {
					t.Errorf("%s: %s: %+v: got the errors %v and %v for other buckets; want none", limit.Kind, is, terms, d[0].Err, d[2].Err)
					break
				}
			}
		}
	}
}
