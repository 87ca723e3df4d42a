//go:build unix

package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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
		limit, err := algorithms.Compile(spec)
		if err != nil {
			b.Fatal(err)
		}
		limits[name] = &limit
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

func benchNode(b *testing.B) (server *redistest.Server, client *goredis.Client, n *node) {
	b.Helper()
	server = redistest.Start(b)
	client = goredis.NewClient(&goredis.Options{Addr: server.Addr, Protocol: 2, DisableIdentity: true})
	b.Cleanup(func() { client.Close() })
	return server, client, nodeTo(b, client)
}

func BenchmarkCalls(b *testing.B) {
	server, client, n := benchNode(b)
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

func processCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSubmit measures the CPU time of this process for a decision that no goroutine waits for: a source submits
// its next batch when the last one is done.
func BenchmarkSubmit(b *testing.B) {
	limit := roomy(b)["token bucket"]
	for _, name := range []string{"one server", "Cluster"} {
		b.Run(name, func(b *testing.B) {
			var servers []*redistest.Server
			var url string
			if name == "Cluster" {
				c := redistest.StartCluster(b, 3).Steady()
				servers, url = c.Masters, c.URL()
			} else {
				servers = []*redistest.Server{redistest.Start(b)}
				url = "redis://" + servers[0].Addr
			}
			s := open(b, Config{URL: url, Timeout: 5 * time.Second})
			const sources, size = 8, 32
			var left atomic.Int64
			left.Store(sources * size * 100) // connects, and loads scripts
			load := func() {
				var wg sync.WaitGroup
				for i := range sources {
					wg.Add(1)
					src := &benchSource{store: s, left: &left, next: i, over: wg.Done}
					src.start(limit, size)
				}
				wg.Wait()
			}
			load()
			b.ResetTimer()
			left.Store(int64(b.N))
			before, calls := processCPU(b), scriptsRun(b, servers...)
			load()
			b.ReportMetric(float64(processCPU(b)-before)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(b.N)/(scriptsRun(b, servers...)-calls), "decisions/call")
		})
	}
}

type benchSource struct {
	store backend.Store
	left  *atomic.Int64
	next  int
	over  func()
	batch backend.Batch
	again bool
}

func (s *benchSource) start(limit *algorithms.Limit, size int) {
	charges := make([]backend.Charge, size)
	for i := range charges {
		charges[i] = backend.Charge{Limit: limit, Group: i, Terms: algorithms.Charge{Cost: 1}, Owner: "bench"}
	}
	s.batch = backend.Batch{
		Charges: charges, Decisions: make([]backend.Decision, size), Source: &backend.Source{Flush: s.submit},
		Done: func(*backend.Batch) { s.again = true },
	}
	s.again = true
	s.submit()
}

// The store calls submit as Source.Flush. A real listener submits there what its clients have sent meanwhile.
func (s *benchSource) submit() {
	if !s.again {
		return
	}
	s.again = false
	b := &s.batch
	if s.left.Add(-int64(len(b.Charges))) < 0 {
		s.over()
		return
	}
	for i := range b.Charges {
		s.next += 7919
		b.Charges[i].Key = strconv.AppendInt(append(b.Charges[i].Key[:0], "edge/limit/"...), int64(s.next%benchKeys), 10)
	}
	clear(b.Decisions)
	s.store.Submit(b)
}

// BenchmarkSettle measures the CPU time of Redis for a plain decision, the start and the settlement of a request whose
// cost is known afterwards, a reservation, and a settlement without an idempotency key.
func BenchmarkSettle(b *testing.B) {
	server, _, n := benchNode(b)
	plain := roomy(b)["token bucket"]
	spec := plain.Spec()
	spec.Settles = true
	settling, err := algorithms.Compile(spec)
	if err != nil {
		b.Fatal(err)
	}
	const each = 20_480
	for _, size := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(size, " a call"), func(b *testing.B) {
			charges, decisions := make([]backend.Charge, size), make([]backend.Decision, size)
			at, ids := make([]algorithms.Micros, benchKeys), 0
			run := func(limit *algorithms.Limit, terms algorithms.Charge, recorded bool) float64 {
				before := cpuSeconds(b, []*redistest.Server{server})
				for i := 0; i < each; i += size {
					for j := range charges {
						key := (i + j) * 7919 % benchKeys
						charges[j] = backend.Charge{Key: fmt.Appendf(nil, "edge/%t/%d", limit.Settles, key), Limit: limit, Group: j, Terms: terms}
						if terms.Settle {
							charges[j].Terms.ChargedAt = at[key]
						}
						if recorded {
							ids++
							charges[j].IdempotencyKey = &backend.IdempotencyKey{ID: [16]byte{byte(ids), byte(ids >> 8), byte(ids >> 16), byte(ids >> 24)}, Lifetime: algorithms.Second}
						}
					}
					clear(decisions)
					if n.Take(context.Background(), charges, decisions); decisions[0].Err != nil {
						b.Fatalf("got %v; want no error", decisions[0].Err)
					}
					for j := range decisions {
						at[(i+j)*7919%benchKeys] = decisions[j].At
					}
				}
				return (cpuSeconds(b, []*redistest.Server{server}) - before) / each * 1e6
			}
			var sum [5]float64
			rounds := 0.0
			for b.Loop() {
				rounds++
				sum[0] += run(plain, algorithms.Charge{Cost: 1500}, false)
				sum[1] += run(&settling, algorithms.Charge{Cost: 1500}, false)
				sum[2] += run(&settling, algorithms.Charge{Cost: -700, Settle: true}, true)
				sum[3] += run(&settling, algorithms.Charge{Cost: 1500, Reserve: true}, false)
				sum[4] += run(&settling, algorithms.Charge{Cost: -700, Settle: true}, false)
			}
			b.ReportMetric(0, "ns/op")
			for i, name := range []string{"redis-us/plain", "redis-us/start", "redis-us/settle", "redis-us/reserve", "redis-us/unrecorded"} {
				b.ReportMetric(sum[i]/rounds, name)
			}
			b.ReportMetric((sum[1]+sum[2])/sum[0], "ratio")
		})
	}
}
