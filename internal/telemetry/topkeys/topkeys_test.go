package topkeys

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/topk"
	"github.com/rlsidecar/rlsidecar/internal/testkit/configtest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const limits = `
domain: d
limits:
  send: {algorithm: token_bucket, rate: 1, period: 365d}
descriptors:
  - {key: user, limit: send}
  - {key: host, descriptors: [{key: user, limit: send}]}
  - key: path
    value: /login
    descriptors:
      - {key: ip, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: try, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - key: tenant
    descriptors:
      - {key: u, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: "any*", rate_limit: {unit: year, requests_per_unit: 0}}
`

type requester struct {
	*Recorder
	limiter *limiter.Limiter
	clock   time.Time
}

type unreachable struct{ err error }

func (u unreachable) Submit(b *backend.Batch) { b.Fail(u.err) }

func newRequester(tb testing.TB, store backend.Store) *requester {
	tb.Helper()
	a := &requester{limiter: limiter.New(store, limiter.Config{}), clock: time.Date(2026, 1, 2, 3, 1, 0, 0, time.UTC)}
	a.Recorder = New(func() time.Time { return a.clock })
	a.limiter.Swap(configtest.Compile(tb, limits))
	return a
}

// send charges a descriptor, key=value,…, or a limit by name if text is "NAME KEY".
func (a *requester) send(tb testing.TB, text string, cost int64) {
	tb.Helper()
	c := &limiter.Call{Request: limiter.Request{Domain: "d"}}
	if name, key, ok := strings.Cut(text, " "); ok {
		c.Limits = []limiter.NamedCharge{{Name: name, Key: []string{key}, Count: cost}}
	} else {
		entries, err := descriptors.Parse(text)
		if err != nil {
			tb.Fatal(err)
		}
		c.Descriptors = []limiter.Descriptor{{Entries: entries, Cost: cost}}
	}
	if err := a.limiter.Check(tb.Context(), c); err != nil {
		tb.Fatal(err)
	}
	if c.Denied {
		a.Observe(c)
	}
}

func (a *requester) listed(n int) string {
	var lines []string
	for _, d := range a.Top(n).Keys {
		least := ""
		if !d.Exact {
			least = " or more"
		}
		lines = append(lines, fmt.Sprintf("%d%s %s/%s %s %q %q %t", d.Times, least, d.Domain, d.Limit, d.Why, d.Key, d.Entries, d.Cut))
	}
	return strings.Join(lines, "\n")
}

func (a *requester) want(tb testing.TB, when string, lines ...string) {
	tb.Helper()
	if got, want := a.listed(10), strings.Join(lines, "\n"); got != want {
		tb.Errorf("%s:\n%s\nwant\n%s", when, got, want)
	}
}

func TestTopListsDenials(t *testing.T) {
	a := newRequester(t, memory.New(memory.Config{}))
	a.want(t, "no requests")
	for range 4 {
		a.send(t, "user=bob", 1)
	}
	a.send(t, "user=eve", 1) // allowed
	a.send(t, "user=eve", 0) // a dry run
	a.send(t, "path=/login,ip=192.0.2.1", 1)
	a.clock = a.clock.Add(time.Second)
	a.send(t, "path=/login,ip=192.0.2.1", 1)
	a.send(t, "user=eve", 1)
	a.clock = a.clock.Add(time.Second)
	a.send(t, "user=bob", 2) // 2 units can never be allowed
	a.send(t, "send bob", 1) // a request by name, for the same bucket
	bob := `5 d/send limit ["bob"] [{"user" "bob"}] false`
	rest := []string{
		`1 d/path_/login.ip limit ["192.0.2.1"] [{"path" "/login"} {"ip" "192.0.2.1"}] false`,
		`1 d/send limit ["eve"] [{"user" "eve"}] false`,
	}
	a.want(t, "each", append([]string{bob}, rest...)...)
	if got := a.listed(1); got != bob {
		t.Errorf("the first: %s; want %v", got, bob)
	}
	top := a.Top(1)
	if !top.Since.Equal(a.clock.Add(-2*time.Second)) || !top.Keys[0].Last.Equal(a.clock) {
		t.Errorf("since %v, last %v; want %v and %v", top.Since, top.Keys[0].Last, a.clock.Add(-2*time.Second), a.clock)
	}

	a.clock = a.clock.Add(5 * time.Minute) // the next window of counts; the list adds up both windows
	a.send(t, "user=bob", 1)
	a.want(t, "over two windows", append([]string{`6 d/send limit ["bob"] [{"user" "bob"}] false`}, rest...)...)
	a.clock = a.clock.Add(5 * time.Minute)
	a.want(t, "one later", `1 d/send limit ["bob"] [{"user" "bob"}] false`)
	if since := a.Top(1).Since; !since.Equal(time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)) {
		t.Errorf("since %v; want 03:05, when the previous window began", since)
	}
	a.clock = a.clock.Add(-time.Hour) // the clock steps back, and then ahead by more than two windows
	a.send(t, "user=bob", 1)
	a.clock = a.clock.Add(2 * time.Hour)
	a.want(t, "long after")
}

func TestTextsOfClientsAreCopied(t *testing.T) {
	a := newRequester(t, memory.New(memory.Config{}))
	text := []byte("userbob")
	for range 2 {
		c := &limiter.Call{Request: limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{
			{Entries: []descriptors.Entry{{Key: unsafe.String(&text[0], 4), Value: unsafe.String(&text[4], 3)}}, Cost: 1},
		}}}
		if err := a.limiter.Check(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if c.Denied {
			a.Observe(c)
		}
	}
	copy(text, "xxxxyyy")
	a.want(t, "after the memory changed", `1 d/send limit ["bob"] [{"user" "bob"}] false`)
}

// A failure of the store does not depend on the key, so failures are counted by limit, not by key.
func TestFailuresAreCountedByLimit(t *testing.T) {
	for err, why := range map[error]string{backend.ErrUnavailable: Backend, fmt.Errorf("x: %w", backend.ErrFull): Full, errors.New("x"): Backend} {
		a := newRequester(t, unreachable{err})
		for i := range 100 {
			a.send(t, fmt.Sprint("user=", i), 1)
		}
		a.want(t, err.Error(), fmt.Sprintf("100 d/send %s [] [] false", why))
	}
	a := newRequester(t, unreachable{backend.ErrUnavailable})
	a.send(t, "user=bob", 1)
	a.send(t, "path=/login,ip=192.0.2.1", 1)
	a.send(t, "path=/login,ip=192.0.2.2", 1)
	a.want(t, "two limits", `2 d/path_/login.ip backend-failure [] [] false`, `1 d/send backend-failure [] [] false`)
}

// A settlement has no Results. If the store fails, it is denied, so that its sender repeats it.
func TestASettlementThatFailsIsNotWithoutConfiguration(t *testing.T) {
	a := newRequester(t, memory.New(memory.Config{}))
	config := limiter.Config{IDs: reservation.NewKeys(func() []string { return []string{"a secret"} }), Now: func() algorithms.Micros { return 1 }}
	ask := func(store backend.Store, entry descriptors.Entry) *limiter.Call {
		l := limiter.New(store, config)
		l.Swap(configtest.Compile(t, "domain: d\nlimits:\n  tokens: {algorithm: token_bucket, rate: 9, period: 1h, settle: {estimate: 2}}\ndescriptors:\n  - {key: user, limit: tokens}\n"))
		c := &limiter.Call{Request: limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: []descriptors.Entry{entry}, Cost: 1}}}}
		if err := l.Check(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	id := string(ask(memory.New(memory.Config{}), descriptors.Entry{Key: "user", Value: "bob"}).AppendID(nil))
	a.Observe(ask(unreachable{backend.ErrUnavailable}, descriptors.Entry{Key: "settle", Value: id}))
	a.want(t, "a settlement", "1 d/ backend-failure [] [] false")
}

func TestDenialsWithoutALimitAreCountedByDomain(t *testing.T) {
	a := newRequester(t, unreachable{})
	a.limiter = limiter.New(unreachable{}, limiter.Config{NoConfig: new(limiter.Deny)})
	a.send(t, "user=bob", 1)
	a.Unrouted(NoRoute)
	a.Unrouted(NoRoute)
	a.want(t, "no route", "2 / no-route [] [] false", "1 d/ no-config [] [] false")
	for range 3 {
		a.Observe(&limiter.Call{Request: limiter.Request{Domain: "e"}})
	}
	c := &limiter.Call{Request: limiter.Request{Domain: "d"}}
	c.Missing = limiter.Requirement{"user"}
	for range 4 {
		a.Observe(c)
	}
	a.want(t, "two domains", `4 d/ missing-descriptor [] [] false`, `3 e/ no-config [] [] false`, "2 / no-route [] [] false", `1 d/ no-config [] [] false`)
}

func TestMemoryForDenialsIsBounded(t *testing.T) {
	a := newRequester(t, memory.New(memory.Config{}))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 20_000 {
		a.send(t, fmt.Sprintf("any%d=x", i), 1)
		if i%20 == 0 {
			a.send(t, "anyone=often", 1)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if used := int64(after.HeapAlloc) - int64(before.HeapAlloc); used > 4<<20 {
		t.Errorf("%d KiB are used; want at most %d KiB", used>>10, 4<<10)
	}
	top := a.Top(1 << 20).Keys
	if len(top) != shards*maxKept {
		t.Errorf("%d keys are kept, want %d", len(top), shards*maxKept)
	}
	if d := top[0]; d.Entries[0].Value != "often" || d.Times > 1000 || d.Times < 500 {
		t.Errorf("got %+v; want value %q, and between 500 and 1000 denials", top[0], "often")
	}
}

func TestKeysThatConsumedMost(t *testing.T) {
	r := newRequester(t, memory.New(memory.Config{}))
	r.limiter.Swap(configtest.Compile(t, `
domain: d
limits:
  send: {algorithm: token_bucket, rate: 1, period: 365d, capacity: 40}
  few:  {algorithm: token_bucket, rate: 1, period: 365d, capacity: 4}
descriptors:
  - {key: user, limit: send}
  - {key: both, limit: [send, few]}
  - {key: try, limit: send, shadow_mode: true}
`))
	began := r.clock
	use := func(entry, value string, cost int64, dryRun, replayed bool) {
		c := &limiter.Call{Request: limiter.Request{Domain: "d", DryRun: dryRun}}
		c.Descriptors = []limiter.Descriptor{{Entries: []descriptors.Entry{{Key: entry, Value: value}}, Cost: cost}}
		if err := r.limiter.Check(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		c.Replayed = replayed
		r.ObserveUsed(c, 64)
	}
	for range 10 {
		use("user", "bob", 3, false, false)
	}
	use("try", "ann", 41, false, false)
	use("user", "eve", 41, false, false) // is denied
	use("both", "eve", 5, false, false)  // is denied by few, so it consumes nothing of send
	use("user", "carl", 0, false, false)
	use("user", "dora", 5, true, false)
	use("user", "dora", 5, false, true) // the first request with this request_id has consumed the units
	r.clock = r.clock.Add(topk.Window)
	use("user", "bob", 1, false, false)
	top := r.Top(10)
	if k := top.Keys; len(k) != 2 || k[0].Key[0] != "ann" || k[0].Times != 41*64 || k[1].Key[0] != "bob" || k[1].Times != 31*64 || !top.Since.Equal(began) {
		t.Fatalf("got %+v; want %d units of ann and %d of bob, since %v", top, 41*64, 31*64, began)
	}
	d := top.Keys[1]
	if d.Domain != "d" || d.Limit != "send" || d.Entries[0].Value != "bob" || d.Remaining != 9 || d.Capacity != 40 {
		t.Errorf("got %+v; want domain d, limit send, first value bob, and 9 of 40 left", d)
	}
	if len(d.Recent) != 9 || d.Recent[0].Cost != 1 || d.Recent[1].Cost != 3 {
		t.Errorf("got %+v; want 9 recent decisions, of which the newest two have the costs 1 and 3", d.Recent)
	}
	r.clock = r.clock.Add(2 * topk.Window)
	if keys := r.Top(10).Keys; len(keys) != 0 {
		t.Errorf("after ten minutes there is %+v; want nothing", keys)
	}
}

func TestConcurrentDenialsAreAllCounted(t *testing.T) {
	a := newRequester(t, memory.New(memory.Config{}))
	a.send(t, "user=bob", 1)
	var sending sync.WaitGroup
	for range 8 {
		sending.Go(func() {
			for range 1000 {
				a.send(t, "user=bob", 1)
				if rand.IntN(100) == 0 {
					a.Top(3)
				}
			}
		})
	}
	sending.Wait()
	a.want(t, "all", `8000 d/send limit ["bob"] [{"user" "bob"}] false`)
}

func TestCountingAKnownKeyAllocatesNothing(t *testing.T) {
	a := newRequester(t, memory.New(memory.Config{}))
	c := denied(t, a, "user=bob")
	a.Observe(c)
	if n := testing.AllocsPerRun(100, func() { a.Observe(c) }); n != 0 {
		t.Errorf("%v allocations; want 0", n)
	}
}

func denied(tb testing.TB, a *requester, text string) *limiter.Call {
	tb.Helper()
	entries, err := descriptors.Parse(text)
	if err != nil {
		tb.Fatal(err)
	}
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries, Cost: 2}}}}
	if err := a.limiter.Check(tb.Context(), c); err != nil || !c.Denied {
		tb.Fatalf("got %v; want no error and denied", err)
	}
	return c
}

// The denials are a minute apart, so two windows count them.
func TestTheLastDenialsOfAKey(t *testing.T) {
	a := newRequester(t, memory.New(memory.Config{}))
	a.send(t, "user=bob", 1)
	first := a.clock
	for range 8 {
		a.send(t, "user=bob", 1)
		a.clock = a.clock.Add(time.Minute)
	}
	a.clock = a.clock.Add(-time.Minute)
	top := a.Top(1).Keys
	if d := top[0]; d.Times != 8 || !d.First.Equal(first) || !d.Last.Equal(a.clock) || len(d.Recent) != 8 {
		t.Fatalf("got %+v; want 8 denials, all of them recent, and the times of the first and the last", d)
	}
	for i, e := range top[0].Recent {
		if !e.At.Equal(a.clock.Add(-time.Duration(i)*time.Minute)) || e.Cost != 1 || e.Outcome != limiter.Denied || e.RetryAfter <= 0 {
			t.Errorf("%d: got %+v; want a denial with cost 1 and a retry time, one minute before the next one", i, e)
		}
	}
	for range 20 {
		a.send(t, "user=bob", 1)
	}
	if top = a.Top(1).Keys; len(top[0].Recent) > 16 || !top[0].First.Equal(first) {
		t.Errorf("%d decisions are kept, and the first denial was at %v; want at most 16, and %v", len(top[0].Recent), top[0].First, first)
	}
}

// A block and a denial that no wait can change are counted by key. If an adjustment does not block, the reason is the limit.
// Requests without a bucket, because of an override that could not be parsed, are counted by domain.
// A key is one row, with the reason of its last denial. Requests without a policy are counted by their domain.
func TestAKeyIsCountedOnceForAllReasons(t *testing.T) {
	blocked := backend.Decision{Decision: algorithms.Decision{Blocked: algorithms.Second}}
	never := backend.Decision{Decision: algorithms.Decision{Never: true}}
	block := &limiter.Policy{Name: "l", Adjusted: &limiter.PolicyAdjustment{Block: true}}
	adjusted := &limiter.Policy{Name: "l", Adjusted: &limiter.PolicyAdjustment{}}
	a := newRequester(t, memory.New(memory.Config{}))
	observe := func(times int, domain, key string, p *limiter.Policy, d backend.Decision) {
		c := &limiter.Call{Request: limiter.Request{Domain: domain, Descriptors: []limiter.Descriptor{{}}}}
		r := limiter.Result{Policy: p, Decision: d, Outcome: limiter.Denied}
		if key != "" {
			r.Key = []byte(key)
		}
		c.Results, c.Denied = []limiter.Result{r}, true
		for range times {
			a.Observe(c)
		}
	}
	observe(10, "d", "one", adjusted, never)
	observe(20, "d", "one", adjusted, blocked)
	observe(5, "d", "one", block, blocked)
	observe(9, "d", "two", block, blocked)
	observe(8, "d", "two", adjusted, blocked)
	observe(2, "d", "", nil, backend.Decision{})
	observe(3, "e", "", nil, backend.Decision{})
	a.want(t, "all", `35 d/l blocked [] [] false`, `17 d/l penalty [] [] false`, `3 e/ limit [] [] false`, `2 d/ limit [] [] false`)
}

func listedParts(list []Part) string {
	var lines []string
	for _, p := range list {
		least := ""
		if !p.Exact {
			least = " or more"
		}
		lines = append(lines, fmt.Sprintf("%d%s %s %d %s=%q %d keys", p.Times, least, p.Limit, p.Position, p.Entry, p.Value, p.Keys))
	}
	return strings.Join(lines, "\n")
}

// A tenant with 40 users is denied, and 20 others a little: the tenant, not one of the users, is what they share.
func TestDenialsAreCountedByEachValueOfTheKey(t *testing.T) {
	a := newRequester(t, memory.New(memory.Config{}))
	for user := range 40 {
		for range 12 {
			a.send(t, fmt.Sprintf("tenant=evil,u=%d", user), 1)
		}
	}
	for user := range 20 {
		for range 3 {
			a.send(t, fmt.Sprintf("tenant=honest%d,u=%d", user, user), 1)
		}
	}
	for range 4 {
		a.send(t, "user=bob", 1)
	}
	for range 3 {
		a.send(t, "host=h,user=bob", 1) // the same limit, whose key has the user at another position here
	}
	a.send(t, "any-path=/a", 1) // the key of this limit has the whole descriptor
	top := a.Top(3)
	if top.Total != 486 {
		t.Errorf("%d denials in all; want 486", top.Total)
	}
	for got, want := range map[string]string{
		listedParts(top.Limits): "480 tenant.u -1 =\"\" 60 keys\n5 send -1 =\"\" 2 keys\n1 any* -1 =\"\" 1 keys",
		listedParts(top.Parts):  "440 tenant.u 0 tenant=\"evil\" 40 keys\n13 tenant.u 1 u=\"0\" 2 keys\n13 tenant.u 1 u=\"1\" 2 keys",
	} {
		if got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	var alone []Part
	for _, p := range a.Top(100).Parts {
		if p.Limit != "tenant.u" {
			alone = append(alone, p)
		}
	}
	if got, want := listedParts(alone), "5 send 1 user=\"bob\" 2 keys\n2 send 0 host=\"h\" 1 keys\n1 any* 1 any-path=\"/a\" 1 keys"; got != want {
		t.Errorf("keys of one value:\n%s\nwant\n%s", got, want)
	}
}

// However many keys a tenant invents, and however many others are denied, the tenant stays on top.
func TestAPartWithEndlessKeysIsFound(t *testing.T) {
	a := newRequester(t, memory.New(memory.Config{}))
	for i := range 6000 {
		a.send(t, fmt.Sprintf("tenant=evil,u=%d", i), 2) // more than the limit can ever hold
		a.send(t, fmt.Sprintf("tenant=%d,u=%d", i, i), 2)
	}
	top := a.Top(1)
	evil := top.Parts[0]
	if evil.Value != "evil" || evil.Times < 5000 || evil.Times > 6000 || evil.Keys < 100 || top.Total != 12_000 {
		t.Errorf("%+v of %d; want evil with about 6,000 of 12,000", evil, top.Total)
	}
	for _, p := range a.Top(1 << 20).Parts { // of a value that is counted no longer, keys may still be counted
		if p.Times == 0 {
			t.Fatalf("%+v; want only values whose denials are counted", p)
		}
	}
}

func TestRequestsThatShadowModeAllowedAreCountedApart(t *testing.T) {
	a := newRequester(t, memory.New(memory.Config{}))
	for range 3 {
		c := &limiter.Call{Request: limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Cost: 1, Entries: []descriptors.Entry{{Key: "try", Value: "bob"}}}}}}
		if err := a.limiter.Check(t.Context(), c); err != nil || c.Denied {
			t.Fatalf("error %v, denied %t; want an answer of shadow mode", err, c.Denied)
		}
		a.ObserveShadowed(c)
	}
	a.want(t, "shadow", `2 d/try limit ["bob"] [{"try" "bob"}] false`)
}

func TestTheTextsOfADenialShareOneBound(t *testing.T) {
	const others = len("path" + "/login" + "ip")
	a := newRequester(t, memory.New(memory.Config{}))
	cuts := map[int]bool{maxShown - others: false, maxShown - others + 1: true, 2 * maxShown: true, 2*maxShown + 1: true, 16 << 10: true}
	for n := range cuts {
		for range 2 {
			a.send(t, "path=/login,ip="+strings.Repeat("x", n), 1)
		}
	}
	top := a.Top(10).Keys
	if len(top) != len(cuts) {
		t.Fatalf("%d keys; want %d, because keys that differ only after the bound are not the same", len(top), len(cuts))
	}
	for _, d := range top {
		shown := 0
		for _, e := range d.Entries {
			shown += len(e.Key) + len(e.Value)
		}
		n := len(d.Key[0])
		if shown != maxShown || len(d.Entries) != 2 || n != maxShown && n != maxShown-others && n != maxShown-others+1 || d.Cut != (n > maxShown-others) {
			t.Errorf("the entries have %d bytes, the key %d, cut %t; want %d of the entries, and cut only if not all are stored", shown, n, d.Cut, maxShown)
		}
	}
	a = newRequester(t, memory.New(memory.Config{}))
	a.send(t, "anyone=\xff\r\n\x00<b>", 1)
	a.want(t, "any bytes", `1 d/any* never ["anyone" "\xff\r\n\x00<b>"] [{"anyone" "\xff\r\n\x00<b>"}] false`)
}

// BenchmarkDenials counts denials of few keys, and of more keys than there is room for.
func BenchmarkDenials(b *testing.B) {
	for _, keys := range []int{10, 10_000} {
		for _, form := range []string{"user=u%d", "tenant=t,u=u%d"} {
			b.Run(fmt.Sprintf("%s of %d", form, keys), func(b *testing.B) {
				a := newRequester(b, memory.New(memory.Config{}))
				c := denied(b, a, fmt.Sprintf(form, 0))
				last := &c.Descriptors[0].Entries[len(c.Descriptors[0].Entries)-1]
				list := make([]string, keys)
				for i := range list {
					list[i] = fmt.Sprint("u", i)
				}
				rand.Shuffle(keys, func(i, j int) { list[i], list[j] = list[j], list[i] })
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					last.Value = list[i%keys]
					c.Results[0].Key, _ = c.Results[0].Policy.AppendKey(c.Results[0].Key[:0], c.Descriptors[0].Entries)
					a.Observe(c)
				}
			})
		}
	}
}
