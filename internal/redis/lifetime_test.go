package redis

import (
	"bufio"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/limittest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
)

var compiled = limittest.Compile

func compiledSlots(tb testing.TB, capacity int64, ttl algorithms.Micros) *algorithms.Limit {
	tb.Helper()
	return compiled(tb, algorithms.Spec{Kind: algorithms.Concurrency, Capacity: &capacity, Period: ttl})
}

// writes returns the key and the lifetime (in ms) of each PSETEX that scripts run during f.
func writes(t *testing.T, server *redistest.Server, f func()) (all [][2]string) {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 1<<20) // the script is one line
	if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil || !lines.Scan() {
		t.Fatal("the server does not report its commands", err, lines.Err())
	}
	f()
	server.Do("ECHO", "finished")
	for lines.Scan() && !strings.Contains(lines.Text(), "finished") {
		if m := psetex.FindStringSubmatch(lines.Text()); m != nil {
			all = append(all, [2]string{m[1], m[2]})
		}
	}
	return all
}

var psetex = regexp.MustCompile(`(?i)lua\] "psetex" "([^"]*)" "([^"]*)"`)

// Each key gets its own lifetime, also in one call: the time until its bucket is full again, plus 2 ms. The lifetime
// is rounded up by at most an eighth, so that several keys can have the same lifetime, which is converted to a string
// only once.
func TestLifetimesAreWrittenExactly(t *testing.T) {
	server, s := started(t)
	token := func(name string, period algorithms.Micros, group int) backend.Charge {
		l := compiled(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: period})
		return backend.Charge{Key: []byte(name), Limit: l, Group: group, Terms: algorithms.Charge{Cost: 1}}
	}
	const sec = algorithms.Second
	charges := []backend.Charge{
		token("a", sec, 0), token("b", 3600*sec, 1), token("c", 3300*sec, 2), token("d", 2*sec, 3), token("e", 1900*sec/1000, 4),
	}
	decisions := make([]backend.Decision, len(charges))
	got := writes(t, server, func() { backend.Take(t.Context(), s, charges, decisions) })
	want := [][2]string{
		{"rl:{}a", "1064"},    // 1000 ms and a sixteenth, plus 2 ms
		{"rl:{}b", "3825002"}, // this key gets its own lifetime of an hour, not the second of the previous key
		{"rl:{}c", "3506252"}, // the previous 3,825,000 ms are more than an eighth too long, so the key gets another lifetime
		{"rl:{}d", "2127"},
		{"rl:{}e", "2127"}, // 2,125 ms are less than an eighth too long, so the key gets the same lifetime
	}
	if len(got) != len(want) {
		t.Fatalf("wrote %v, want %v (%+v)", got, want, decisions)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("wrote %v, want %v", got[i], want[i])
		}
	}
}

func livesFor(t *testing.T, server *redistest.Server, name string) time.Duration {
	t.Helper()
	left, err := server.Client().PTTL(t.Context(), "rl:{}"+name).Result()
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// A refund in a group that is denied refunds nothing. It may still write its bucket: it converts the bucket to the
// limit's changed numbers, or corrects its clock. The bucket then keeps its units, and does not expire before it would
// equal a new bucket. The same applies to a dry run with a negative cost that starts the bucket's clock.
func TestADeniedRefundLivesAsLongAsItsState(t *testing.T) {
	server, s := started(t)
	hourly := compiled(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 3600 * algorithms.Second})
	none := compiled(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 3600 * algorithms.Second, Capacity: new(int64(10)), Initial: new(int64(0))})
	take := func(charges ...backend.Charge) []backend.Decision { return takeAll(s, charges) }
	charge := func(name string, l *algorithms.Limit, cost int64) backend.Charge {
		return backend.Charge{Key: []byte(name), Limit: l, Terms: algorithms.Charge{Cost: cost}}
	}
	lower := compiled(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 20, Period: 3600 * algorithms.Second})
	take(charge("used", hourly, 10))
	// The other limit denies, so the 10 units are not refunded. The bucket is converted to the changed limit, with 10
	// units used.
	if d := take(charge("used", lower, -10), charge("denies", none, 1)); !d[0].Allowed || d[1].Allowed {
		t.Fatalf("got %+v; want allowed and denied", d)
	}
	if left := livesFor(t, server, "used"); left < 20*time.Minute {
		t.Errorf("10 units are used, which refill in half an hour; the bucket lives for %v, want at least 20 min", left)
	}
	if d := take(charge("used", lower, 11)); d[0].Allowed {
		t.Errorf("10 of 20 were used: %+v; want denied", d)
	}
	peek := charge("peeked", none, -5)
	peek.Terms.DryRun = true
	take(peek)
	if left := livesFor(t, server, "peeked"); left < 24*time.Hour {
		t.Errorf("the bucket fills in an hour, and is kept for a day more; it lives for %v, want at least 24 h", left)
	}
	clock := storetest.NewClock()
	s = open(t, Config{URL: "redis://" + server.Addr, Clock: clock.Now})
	sliding := compiled(t, algorithms.Spec{Kind: algorithms.SlidingWindow, Rate: 10, Period: 10 * algorithms.Day})
	take(charge("sliding", sliding, 5))
	clock.Set(clock.Now() + 10*algorithms.Day)
	take(charge("sliding", sliding, -1))
	if left := livesFor(t, server, "sliding"); left < 5*24*time.Hour {
		t.Errorf("the last window counts for 6 days more; the bucket lives for %v, want at least 5 days", left)
	}
}

// The rows with the same key charge the same bucket, one after the other.
func TestLifetimesOfBucketsThatKeepMore(t *testing.T) {
	t.Parallel()
	server, s := started(t)
	const minute, hour, gone = 60 * algorithms.Second, 3600 * algorithms.Second, time.Duration(-2)
	plain := func(kind algorithms.Kind, rate int64, period algorithms.Micros) *algorithms.Limit {
		return compiled(t, algorithms.Spec{Kind: kind, Rate: rate, Period: period})
	}
	penalized := func(kind algorithms.Kind) *algorithms.Limit {
		return compiled(t, algorithms.Spec{
			Kind: kind, Rate: 1, Period: 10 * algorithms.Second,
			Penalty: &algorithms.Penalty{After: 2, For: 60 * algorithms.Second, Max: 1000 * algorithms.Second},
		})
	}
	slot := func(n byte, op algorithms.SlotOp) algorithms.Charge {
		return algorithms.Charge{Cost: 1, Slot: &algorithms.Slot{ID: [16]byte{n}, Op: op, TTL: 10 * minute}}
	}
	one, three, peek := algorithms.Charge{Cost: 1}, algorithms.Charge{Cost: 3}, algorithms.Charge{Cost: 3, DryRun: true}
	tokens, log := penalized(algorithms.TokenBucket), penalized(algorithms.SlidingLog)
	short, long := compiledSlots(t, 3, minute), compiledSlots(t, 3, 10*minute)
	windows := func(c *algorithms.Calendar, p *algorithms.Penalty) *algorithms.Limit {
		return compiled(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 2, Capacity: new(int64(6)), Calendar: c, Penalty: p})
	}
	weeks, days := windows(calendar.Week.In(time.UTC), nil), windows(calendar.Day.In(time.UTC), &algorithms.Penalty{After: 2, For: minute, Max: minute})
	opens := compiled(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1000, Period: algorithms.Second, Settles: true, OpenFor: 16 * minute})
	before := time.Now()
	for _, is := range []struct {
		key         string
		limit       *algorithms.Limit
		terms       algorithms.Charge
		allowed     bool
		least, most time.Duration // most without the eighth by which lifetimes are rounded up
	}{
		{"denials of tokens", tokens, one, true, 0, 10 * time.Second},
		{"denials of tokens", tokens, one, false, 10 * time.Second, 10 * time.Second},
		{"denials of tokens", tokens, one, false, 1060 * time.Second, 1060 * time.Second},
		{"denials of a log", log, one, true, 0, 10 * time.Second},
		{"denials of a log", log, one, false, 10 * time.Second, 10 * time.Second},
		{"denials of a log", log, one, false, 1060 * time.Second, 1060 * time.Second},

		{"counts", plain(algorithms.SlidingWindow, 3, minute), three, true, 0, 3 * time.Minute},
		{"counts", plain(algorithms.SlidingWindow, 3, hour), three, false, time.Hour - time.Minute, 3 * time.Hour},
		{"counts", plain(algorithms.SlidingWindow, 6, minute), three, true, time.Hour - time.Minute, 3 * time.Hour},

		{"log", plain(algorithms.SlidingLog, 3, minute), three, true, 0, time.Minute},
		{"log", plain(algorithms.SlidingLog, 3, hour), peek, false, 0, time.Minute}, // a dry run writes nothing
		{"log", plain(algorithms.SlidingLog, 3, hour), three, false, time.Hour - time.Minute, time.Hour},
		{"log", plain(algorithms.SlidingLog, 3, minute), three, false, time.Hour - time.Minute, time.Hour},

		{"weeks", weeks, algorithms.Charge{Cost: 5}, true, 14 * 24 * time.Hour, 21 * 24 * time.Hour},
		{"weeks", days, three, false, 14 * 24 * time.Hour, (21*24 + 2) * time.Hour}, // two weeks count as the longest, with 169 hours
		{"open", opens, algorithms.Charge{Cost: 1, Open: true}, true, 17 * time.Minute, 17 * time.Minute},

		{"slots", short, slot(1, algorithms.TakeSlot), true, time.Minute, time.Minute},
		{"slots", long, slot(2, algorithms.TakeSlot), true, 10 * time.Minute, 10 * time.Minute},
		{"slots", short, slot(3, algorithms.TakeSlot), true, 9 * time.Minute, 10 * time.Minute},
		{"slots", long, slot(1, algorithms.ReturnSlot), true, 9 * time.Minute, 10 * time.Minute},
		{"slots", long, slot(2, algorithms.ReturnSlot), true, 0, 10 * time.Minute},
		{"slots", long, slot(3, algorithms.ReturnSlot), true, gone, gone},
	} {
		d := takeOne(t, s, backend.Charge{Key: []byte(is.key), Limit: is.limit}, is.terms)
		left := livesFor(t, server, is.key)
		least := is.least - time.Since(before) - ms
		if d.Allowed != is.allowed || left < least || left > is.most+max(0, is.most/8+2*ms) {
			t.Errorf("%+v: got %+v, and the state lives for %v; want allowed %v, and %v to %v", is, d, left, is.allowed, is.least, is.most)
		}
	}
}
