package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

const (
	ms = time.Millisecond
	// deadline is many times the usual deadline of a request, because the machine may be busy.
	deadline = 200 * ms
	// slack is how much later than its deadline an answer may arrive, in addition to the delays of the
	// machine itself. If deadlines had no effect, an answer would take as long as the fault.
	slack = 2800 * ms
	// late is the delay from which an answer or a timer counts as late. A test allows a few late ones.
	late = 100 * ms
	pace = 2 * ms
	// generous bounds the time until service is normal in tests without a better bound. The real time is logged.
	generous = 10 * time.Second
)

func init() { goredis.SetLogger(quiet{}) } // without this, go-redis prints each failure

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func faulty(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	t.Parallel() // the test mostly waits
}

func TestMain(m *testing.M) {
	code := m.Run()
	shared.End()
	if left := leakedGoroutines(); code == 0 && left != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left:", left)
		code = 1
	}
	os.Exit(code)
}

// leakedGoroutines returns an error if goroutines are left. First it gives those of go-redis time to end: they sleep up
// to a second before they notice that their client is closed.
func leakedGoroutines() (left error) {
	for range 20 {
		if left = goleak.Find(goleak.IgnoreTopFunction("github.com/redis/go-redis/v9/internal/pool.startCachedTimeUpdater.func1")); left == nil {
			return nil
		}
	}
	return left
}

func seed(t *testing.T) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(os.Getenv("RL_SEED"), 10, 64)
	if err != nil {
		n = uint64(time.Now().UnixNano()) % 1_000_000
	}
	t.Logf("seed %d; RL_SEED=%d runs it again", n, n)
	return n
}

// limitOf returns a limit of n units in a fixed window of a year, so that counts stay until the end of a test.
func limitOf(n int64) *algorithms.Limit {
	start := algorithms.Micros(time.Now().Add(-time.Hour).UnixMicro())
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: n, Period: 365 * algorithms.Day, Start: &start})
	if err != nil {
		panic(err)
	}
	return &limit
}

type loadRequest struct {
	charges []backend.Charge
	limit   int64 // the units of the limit; 0 means that the limit is never reached

	attempted, acked, denied, failed atomic.Int64
	unknown                          atomic.Int64 // the failed requests that may have been charged
	ticks                            [6000]tick   // counts per tickLength, from the start of the load
}

type tick struct{ ok, failed atomic.Int32 }

const tickLength = 20 * ms

type load struct {
	t          *testing.T
	deadline   time.Duration
	requests   []*loadRequest
	began      time.Time
	over       chan struct{}
	stopped    sync.Once
	workers    sync.WaitGroup
	slowest    atomic.Int64 // in ns
	atOnce     atomic.Int64 // the number of failures within half the deadline
	slow       atomic.Int64 // the number of answers that came more than late (100 ms) after their deadline
	timerDelay atomic.Int64 // the largest delay of a worker's own timer, in ns, which shows how busy the machine is
	lateTimers atomic.Int64 // the number of timers that fired more than late (100 ms) after their time
	took       atomic.Int64 // the sum of all answer times, in ns
	reasons    sync.Map     // the failures by reason: text -> *atomic.Int64
}

// A load has counted requests that are never denied, and tight requests whose limit, tightLimit, is soon used up. One
// more request charges the buckets "left" and "right" together: they are in one slot, and must stay equal.
const (
	counted    = 9
	tight      = 6
	tightLimit = 40
)

// startLoad starts the given number of workers for each store. They run until the test ends or stop is
// called.
func startLoad(t *testing.T, workers int, below ...backend.Store) *load {
	t.Helper()
	return startLoadWithin(t, deadline, workers, below...)
}

func startLoadWithin(t *testing.T, deadline time.Duration, workers int, below ...backend.Store) *load {
	t.Helper()
	l := &load{t: t, deadline: deadline, began: time.Now(), over: make(chan struct{})}
	large, small := limitOf(1_000_000_000), limitOf(tightLimit)
	for i := range counted {
		l.addRequest(0, backend.Charge{Key: fmt.Appendf(nil, "counted %d", i), Limit: large})
	}
	for i := range tight {
		l.addRequest(tightLimit, backend.Charge{Key: fmt.Appendf(nil, "tight %d", i), Limit: small})
	}
	l.addRequest(0, backend.Charge{Key: []byte("left"), Limit: large, Slot: 1}, backend.Charge{Key: []byte("right"), Limit: large, Slot: 1})
	for n, store := range below {
		s := stores.Deadline(nil, store, l.deadline, ms, nil)
		for w := range workers {
			l.workers.Go(func() { l.work(s, n*workers+w) })
		}
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) addRequest(limit int64, charges ...backend.Charge) {
	for i := range charges {
		charges[i].Terms.Cost, charges[i].Owner = 1, "test"
	}
	l.requests = append(l.requests, &loadRequest{charges: charges, limit: limit})
}

func (l *load) work(s backend.Store, first int) {
	decisions := make([]backend.Decision, 2)
	for i := first; ; i++ {
		before := time.Now()
		select {
		case <-l.over:
			return
		case <-time.After(pace):
		}
		if delay := time.Since(before) - pace; updateMax(&l.timerDelay, delay) > late {
			l.lateTimers.Add(1)
		}
		q := l.requests[i%len(l.requests)]
		d := decisions[:len(q.charges)]
		clear(d)
		q.attempted.Add(1)
		start := time.Now()
		backend.Take(l.t.Context(), s, q.charges, d)
		took := time.Since(start)
		l.took.Add(int64(took))
		if updateMax(&l.slowest, took) > l.deadline+late {
			l.slow.Add(1)
		}
		now := &q.ticks[min(len(q.ticks)-1, int(time.Since(l.began)/tickLength))]
		switch all, err := decided(d); {
		case err != nil:
			q.failed.Add(1)
			if took < l.deadline/2 {
				l.atOnce.Add(1)
			}
			now.failed.Add(1)
			if !notRun(err) {
				q.unknown.Add(1)
			}
			count, _ := l.reasons.LoadOrStore(reason(err), new(atomic.Int64))
			count.(*atomic.Int64).Add(1)
		case all:
			q.acked.Add(1)
			now.ok.Add(1)
		default:
			q.denied.Add(1)
			now.ok.Add(1)
		}
	}
}

// updateMax sets most to d if d is larger, and returns d.
func updateMax(most *atomic.Int64, d time.Duration) time.Duration {
	for was := most.Load(); int64(d) > was && !most.CompareAndSwap(was, int64(d)); was = most.Load() {
	}
	return d
}

func decided(decisions []backend.Decision) (allowed bool, err error) {
	allowed = true
	for i := range decisions {
		allowed = allowed && decisions[i].Allowed
		err = errors.Join(err, decisions[i].Err)
	}
	return allowed, err
}

// notRun reports whether a failed call certainly charged nothing: the server refused it, or did not get it.
func notRun(err error) bool {
	var reply goredis.Error
	var network *net.OpError
	return errors.As(err, &reply) || errors.As(err, &network) && network.Op == "dial" || errors.Is(err, errOpen) ||
		strings.Contains(err.Error(), "not sent in time") || strings.Contains(err.Error(), "no time left")
}

func reason(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	text = strings.TrimPrefix(text, backend.ErrUnavailable.Error()+": ")
	if i := strings.LastIndex(text, "->"); i >= 0 { // a connection, with its port
		text = "connection" + text[strings.Index(text[i:], ": ")+i:]
	}
	return text
}

func (l *load) stop() {
	l.stopped.Do(func() { close(l.over) })
	l.workers.Wait()
}

// share returns which part of the chosen requests that ended between two times was answered. A nil chosen selects all
// requests. The result is 0 if none ended.
func (l *load) share(begin, end time.Time, chosen func(q *loadRequest) bool) float64 {
	ok, failed := 0, 0
	a, b := int(begin.Sub(l.began)/tickLength), int(end.Sub(l.began)/tickLength)
	for _, q := range l.requests {
		if chosen != nil && !chosen(q) {
			continue
		}
		for i := max(0, a); i < min(b, len(q.ticks)); i++ {
			ok += int(q.ticks[i].ok.Load())
			failed += int(q.ticks[i].failed.Load())
		}
	}
	if ok+failed == 0 {
		return 0
	}
	return float64(ok) / float64(ok+failed)
}

// normal waits until service is normal: for 300 ms, nine of ten charges are answered. It returns the time from begin
// until these 300 ms start, and fails the test if that time is longer than most.
func (l *load) normal(begin time.Time, most time.Duration) time.Duration {
	l.t.Helper()
	const steady = 300 * ms
	for from := begin; ; {
		for time.Now().Before(from.Add(steady + tickLength)) {
			time.Sleep(tickLength)
		}
		if l.share(from, from.Add(60*ms), nil) >= 0.9 && l.share(from, from.Add(steady), nil) >= 0.9 {
			took := from.Sub(begin)
			l.t.Logf("normal service after %v", took.Round(10*ms))
			if took > most {
				l.t.Errorf("normal service after %v, want %v at the most", took, most)
			}
			return took
		}
		if from = from.Add(tickLength); from.Sub(begin) > most+20*time.Second {
			l.t.Fatalf("no normal service after %v; failures: %s", from.Sub(begin), l.failures())
		}
	}
}

func (l *load) admitted() bool {
	return !slices.ContainsFunc(l.requests, func(q *loadRequest) bool { return q.limit == 0 && q.acked.Load() == 0 })
}

func (l *load) acked() (n int64) {
	for _, q := range l.requests {
		if q.limit == 0 {
			n += q.acked.Load()
		}
	}
	return n
}

func (l *load) slowFailures() (slow, all int64) {
	for _, q := range l.requests {
		all += q.failed.Load()
	}
	return all - l.atOnce.Load(), all
}

func (l *load) failures() string {
	var all []string
	l.reasons.Range(func(text, count any) bool {
		all = append(all, fmt.Sprintf("%d x %s", count.(*atomic.Int64).Load(), text))
		return true
	})
	return strings.Join(all, "\n\t")
}

// check ends the load and checks the guarantees:
//
//   - A limit is never exceeded, except by as many capacities as states were lost.
//   - Each charge is counted at most once, and acknowledged charges are counted unless writes were lost.
//   - Answers are in time.
//
// First it continues the load until each request without a limit was admitted, because on a busy machine
// some are late.
func (l *load) check(s backend.Store, lost int64) {
	l.t.Helper()
	for until := time.Now().Add(20 * time.Second); !l.admitted() && time.Now().Before(until); {
		time.Sleep(tickLength)
	}
	l.stop()
	var all, failed, unknown int64
	for _, q := range l.requests {
		acked := q.acked.Load()
		all, failed, unknown = all+q.attempted.Load(), failed+q.failed.Load(), unknown+q.unknown.Load()
		if q.limit > 0 && acked > q.limit*(1+lost) {
			l.t.Errorf("%s admitted %d, limit %d, %d states lost", q.charges[0].Key, acked, q.limit, lost)
		}
		charged := l.charged(s, q)
		for _, n := range charged {
			if n > acked+q.unknown.Load() || n < acked && lost == 0 {
				l.t.Errorf("%s: %d charged, %d acknowledged, %d unknown; want between the acknowledged ones and the sum", q.charges[0].Key, n, acked, q.unknown.Load())
			}
			if n != charged[0] {
				l.t.Errorf("%s: the buckets of a group were charged %v units; want equal numbers", q.charges[0].Key, charged)
			}
		}
		if q.limit == 0 && acked == 0 {
			l.t.Errorf("%s was never admitted", q.charges[0].Key)
		}
	}
	worst := time.Duration(l.slowest.Load())
	l.t.Logf("%d requests, %d not answered (%d of them maybe charged), slowest answer %v, mean %v", all, failed, unknown,
		worst.Round(ms), (time.Duration(l.took.Load()) / time.Duration(all)).Round(10*time.Microsecond))
	if failed > 0 {
		l.t.Logf("failures:\n\t%s", l.failures())
	}
	l.checkTimes()
	if slow, lateTimers := l.slow.Load(), l.lateTimers.Load(); slow > all/50+2*lateTimers {
		l.t.Errorf("%d of %d answers came later than %v after their deadline; %d timers were as late; want at most %d", slow, all, late, lateTimers, all/50+2*lateTimers)
	}
}

// checkTimes checks the slowest answer against its deadline. A worker waits for a timer before each request,
// and for the timer of the deadline during it. On a busy machine both timers are late.
func (l *load) checkTimes() {
	l.t.Helper()
	worst, timerDelay := time.Duration(l.slowest.Load()), time.Duration(l.timerDelay.Load())
	if worst > l.deadline+slack+2*timerDelay {
		l.t.Errorf("an answer took %v, the deadline is %v, and no timer was later than %v", worst, l.deadline, timerDelay)
	}
}

func (l *load) charged(s backend.Store, q *loadRequest) (all []int64) {
	l.t.Helper()
	for _, c := range q.charges {
		c.Terms.Cost = 0
		var d [1]backend.Decision
		redistest.Eventually(l.t, "a bucket can be read", func() bool {
			backend.Take(context.Background(), s, []backend.Charge{c}, d[:])
			return d[0].Err == nil
		})
		all = append(all, c.Limit.Capacity-d[0].Remaining)
	}
	return all
}
