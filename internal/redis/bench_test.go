package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// bare is a simple token bucket script with one key. No correct script can be much faster, so the benchmarks
// compare with it.
const bare = `
local s = redis.call('HMGET', KEYS[1], 'v', 't')
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local rate, capacity, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local v, at = tonumber(s[1]) or capacity, tonumber(s[2]) or now
v = math.min(capacity, v + (now - at) * rate / 1000000)
local ok = 0
if v >= cost then v, ok = v - cost, 1 end
redis.call('HSET', KEYS[1], 'v', v, 't', now)
redis.call('PEXPIRE', KEYS[1], 60000)
return {ok, math.floor(v)}`

const benchKeys = 10_000

// workload sends n charges as fast as possible, and returns the elapsed time.
type workload func(n int) time.Duration

func bareLoad(b *testing.B, client goredis.UniversalClient) workload {
	b.Helper()
	sha := goredis.NewScript(bare)
	ctx := context.Background()
	return func(n int) time.Duration {
		start := time.Now()
		var wg sync.WaitGroup
		for worker := range 4 {
			wg.Go(func() {
				for i := worker * 64; i < n; i += 4 * 64 {
					pipe := client.Pipeline()
					for j := range 64 {
						sha.EvalSha(ctx, pipe, []string{"bare:" + strconv.Itoa((i+j)*7919%benchKeys)}, 1000, 1000, 1)
					}
					if _, err := pipe.Exec(ctx); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
}

// roomy returns limits that are never reached. Their buckets are not full before the next charge. A full
// bucket would expire, and a missing key costs Redis less than a key that it must read.
func roomy(b *testing.B) map[string]*algorithms.Limit {
	b.Helper()
	capacity, start := int64(100_000_000), algorithms.Micros(0)
	limits := map[string]*algorithms.Limit{}
	for name, spec := range map[string]algorithms.Spec{
		"token bucket": {Kind: algorithms.TokenBucket, Rate: 1, Period: 60 * algorithms.Second, Capacity: &capacity},
		"fixed window": {Kind: algorithms.FixedWindow, Rate: capacity, Period: algorithms.Day, Start: &start},
	} {
		limits[name] = compiled(b, spec)
	}
	return limits
}

func compare(b *testing.B, servers []*redistest.Server, ours, ceiling workload) {
	b.Helper()
	const each = 20_480
	ours(each) // connects, and loads scripts
	ceiling(each)
	var cpu [2]float64
	var took [2]time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		for i, run := range []workload{ours, ceiling} {
			before := cpuSeconds(b, servers)
			took[i] += run(each)
			cpu[i] += cpuSeconds(b, servers) - before
		}
	}
	n := float64(rounds * each)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(cpu[0]/n*1e6, "redis-us/decision")
	b.ReportMetric(cpu[1]/n*1e6, "redis-us/bare")
	b.ReportMetric(cpu[0]/cpu[1], "cpu-ratio")
	b.ReportMetric(n/took[0].Seconds(), "decisions/s")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "rate-ratio")
}

func cpuSeconds(b *testing.B, servers []*redistest.Server) (sum float64) {
	b.Helper()
	for _, s := range servers {
		for name, value := range fields(s.Do("INFO", "cpu")) {
			if name == "used_cpu_sys" || name == "used_cpu_user" {
				v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				if err != nil {
					b.Fatal(err)
				}
				sum += v
			}
		}
	}
	return sum
}

func BenchmarkCalls(b *testing.B) {
	server := redistest.Start(b)
	client := server.Client()
	n := nodeTo(b, client)
	goredis.NewScript(bare).Load(context.Background(), client)
	for name, limit := range roomy(b) {
		for _, size := range []int{1, 16, 64, 256} {
			ours := func(total int) time.Duration {
				start := time.Now()
				charges, decisions := make([]backend.Charge, size), make([]backend.Decision, size)
				for i := 0; i < total; i += size {
					for j := range charges {
						charges[j] = backend.Charge{Key: fmt.Appendf(nil, "edge/%s/%d", name, (i+j)*7919%benchKeys), Limit: limit, Group: j, Terms: algorithms.Charge{Cost: 1}}
					}
					if n.Take(context.Background(), charges, decisions); decisions[0].Err != nil {
						b.Fatalf("got %v; want no error", decisions[0].Err)
					}
				}
				return time.Since(start)
			}
			b.Run(fmt.Sprint(name, ", ", size, " a call"), func(b *testing.B) {
				compare(b, []*redistest.Server{server}, ours, bareLoad(b, client))
			})
		}
	}
}

// BenchmarkSlots prints the processor time that Redis needs to take and return a slot of a bucket with few slots, or with
// many.
func BenchmarkSlots(b *testing.B) {
	server := redistest.Start(b)
	store := open(b, Config{URL: "redis://" + server.Addr, Timeout: 5 * time.Second})
	limit := compiledSlots(b, 10_000, algorithms.Day)
	for _, held := range []int{10, 9_000} {
		do := func(n int, op algorithms.SlotOp) {
			slot := &algorithms.Slot{ID: [16]byte{byte(n), byte(n >> 8)}, Op: op, TTL: limit.Period()}
			takeOne(b, store, backend.Charge{Key: fmt.Append(nil, held), Limit: limit}, algorithms.Charge{Cost: 1, Slot: slot})
		}
		for n := range held {
			do(n, algorithms.TakeSlot)
		}
		b.Run(fmt.Sprint(held, " slots"), func(b *testing.B) {
			before := cpuSeconds(b, []*redistest.Server{server})
			for b.Loop() {
				do(held, algorithms.TakeSlot)
				do(held, algorithms.ReturnSlot)
			}
			b.ReportMetric((cpuSeconds(b, []*redistest.Server{server})-before)*1e6/float64(b.N), "redis-us/op")
		})
	}
}
