package redis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// The fast loop of the script must decide like package algorithms. The test makes plain charges of few limits, with
// other charges in between, and changes the numbers of the limits one at a time.
func TestTheFastLoopDecidesLikePackageAlgorithms(t *testing.T) {
	t.Parallel()
	n := func(v int64) *int64 { return &v }
	epoch, late, later := algorithms.Micros(0), algorithms.Micros(123_456), algorithms.Micros(500_001)
	const s = algorithms.Second
	token, window := algorithms.TokenBucket, algorithms.FixedWindow
	// The possible numbers of each limit.
	specs := [][]algorithms.Spec{
		{{Kind: token, Rate: 7, Period: s}, {Kind: token, Rate: 7, Period: s, Capacity: n(9)}, {Kind: token, Rate: 11, Period: s, Capacity: n(9)}, {Kind: token, Rate: 14, Period: s, Capacity: n(18)}},
		{{Kind: token, Rate: 5, Period: 3 * s}, {Kind: token, Rate: 5, Period: 4 * s}},
		{{Kind: window, Rate: 5, Period: s, Start: &epoch}, {Kind: window, Rate: 5, Period: 2 * s, Start: &epoch}, {Kind: window, Rate: 5, Period: s, Start: &late}},
		{{Kind: window, Rate: 3, Period: s, Capacity: n(8), Start: &late}, {Kind: window, Rate: 3, Period: s, Capacity: n(8), Start: &later}, {Kind: window, Rate: 2, Period: s, Capacity: n(8), Start: &late}, {Kind: window, Rate: 3, Period: s, Capacity: n(6), Start: &late}},
		{{Kind: window, Rate: 6, Period: s}, {Kind: window, Rate: 6, Period: 1_700_000}},
		{{Kind: window, Rate: 4, Period: s, Start: &epoch, TakesDenied: true}, {Kind: window, Rate: 4, Period: s, Start: &epoch}},
		{{Kind: window, Rate: 4, Period: s, MaxReserved: n(3), TakesDenied: true}, {Kind: window, Rate: 4, Period: s, MaxReserved: n(2), TakesDenied: true}},
		{{Kind: window, Rate: 9, Period: s, Start: &epoch, PerRequest: true}, {Kind: window, Rate: 2, Period: s, Start: &epoch, PerRequest: true}},
		{{Kind: token, Rate: 40, Period: s, Capacity: n(60), Settles: true}, {Kind: token, Rate: 40, Period: s, Capacity: n(60)}, {Kind: token, Rate: 30, Period: s, Settles: true, MaxDebt: n(7)}},
		{{Kind: token, Rate: 11, Period: s, Settles: true, MaxReserved: n(4), MaxDebt: n(2)}},
		{{Kind: window, Rate: 30, Period: s, Settles: true}, {Kind: window, Rate: 30, Period: s, Capacity: n(20), Settles: true, MaxDebt: n(9)}},
		{{Kind: token, Rate: 6, Period: s, Initial: n(0), Settles: true}},
		// The charges of these have more peaks than a bucket keeps.
		{{Kind: token, Rate: 4, Period: s, Capacity: n(900), Settles: true}, {Kind: token, Rate: 4, Period: s, Capacity: n(900)}},
		{{Kind: token, Rate: 6, Period: s, Capacity: n(100), Settles: true}},
		{{Kind: token, Rate: 5, Period: 9 * s, Penalty: &algorithms.Penalty{After: 4, For: s, Max: 2 * s}}, {Kind: token, Rate: 5, Period: 9 * s, Settles: true}, {Kind: token, Rate: 5, Period: 9 * s}},
	}
	for seed := range uint64(3) {
		loopEqualsMemory(t, seed, specs, 0)
	}
}

// Some limits have an initial amount below their capacity. One day after a bucket of such a limit was full, it counts as
// new, and starts with that amount again.
func TestTheFastLoopDecidesLikePackageAlgorithmsWithInitial(t *testing.T) {
	t.Parallel()
	n := func(v int64) *int64 { return &v }
	late := algorithms.Micros(123_456)
	const s = algorithms.Second
	token, window := algorithms.TokenBucket, algorithms.FixedWindow
	loopEqualsMemory(t, 1, [][]algorithms.Spec{
		{{Kind: token, Rate: 3, Period: s, Capacity: n(9), Initial: n(2)}, {Kind: token, Rate: 3, Period: s, Capacity: n(9)}},
		{{Kind: token, Rate: 2, Period: s, Initial: n(0)}},
		{{Kind: window, Rate: 7, Period: s, Start: &late, Initial: n(3)}, {Kind: window, Rate: 3, Period: s, Start: &late}},
		{{Kind: window, Rate: 2, Period: s, Capacity: n(5), Initial: n(0)}},
		{{Kind: token, Rate: 4, Period: s}},
	}, algorithms.Day)
}

// loopEqualsMemory sends random charges of limits to Redis and to a memory store, and compares the answers.
// At any time each limit uses one of its specs. Now and then the time advances by about jump.
func loopEqualsMemory(t *testing.T, seed uint64, specs [][]algorithms.Spec, jump algorithms.Micros) {
	t.Helper()
	const s = algorithms.Second
	now, clock := storetest.Start, &storetest.Clock{}
	c := on(t, "server")
	c.Clock = clock.Now
	ours := open(t, c)
	want := memory.New(memory.Config{Clock: clock.Time, MaxKeys: 10_000})
	rng := rand.New(rand.NewPCG(seed, 2))
	limits := make([]*algorithms.Limit, len(specs))
	denied := 0
	for step := range 6000 {
		for i := range specs {
			if limits[i] != nil && rng.IntN(80) > 0 {
				continue
			}
			limit := compiled(t, specs[i][rng.IntN(len(specs[i]))])
			limits[i] = limit
		}
		if now += algorithms.Micros(rng.Int64N(int64(s / 5))); rng.IntN(50) == 0 {
			now += algorithms.Micros(rng.Int64N(int64(4 * s)))
		} else if jump > 0 && rng.IntN(100) == 0 {
			now += jump - s + algorithms.Micros(rng.Int64N(int64(4*s)))
		} else if rng.IntN(100) == 0 {
			now -= s / 2
		}
		clock.Set(now)
		var charges []backend.Charge
		for group := range 1 + rng.IntN(3) {
			for _, i := range rng.Perm(len(specs))[:1+max(0, rng.IntN(5)-2)] {
				c := backend.Charge{Key: fmt.Appendf(nil, "%d", i), Limit: limits[i], Group: group, Slot: 1}
				c.Terms = algorithms.Charge{Cost: 1 + rng.Int64N(3), Hash: uint64(i) * 0x9E3779B97F4A7C15}
				if rng.IntN(25) == 0 {
					c.Terms.Cost, c.Terms.Reserve = rng.Int64N(14)-4, true
				}
				if limits[i].Settles && rng.IntN(2) == 0 {
					c.Terms.Settle, c.Terms.ChargedAt, c.Terms.Reserve = true, max(1, now-algorithms.Micros(rng.Int64N(int64(8*s)))), rng.IntN(2) == 0
					c.Terms.Cost = rng.Int64N(30) - 15
				}
				charges = append(charges, c)
				if before := len(charges) - 2; before >= 0 && charges[before].Group == group && rng.IntN(3) == 0 {
					charges[before].Then = true
				}
			}
			if from := len(charges) - 1; charges[from].Terms.Settle && (from == 0 || charges[from-1].Group != group) && rng.IntN(2) == 0 {
				charges[from].IdempotencyKey = &backend.IdempotencyKey{ID: [16]byte{byte(rng.IntN(200)), byte(step / 50)}, Lifetime: 1000 * algorithms.Day}
			}
		}
		got, exact := make([]backend.Decision, len(charges)), make([]backend.Decision, len(charges))
		backend.Take(t.Context(), ours, charges, got)
		backend.Take(t.Context(), want, charges, exact)
		for i := range got {
			if got[i] != exact[i] {
				t.Fatalf("seed %d, step %d, charge %d of %d (%+v, %+v) at %d:\n got %+v\nwant %+v", seed, step, i, len(charges), *charges[i].Limit, charges[i].Terms, now, got[i], exact[i])
			}
			if !got[i].Allowed {
				denied++
			}
		}
	}
	if denied < 1000 {
		t.Errorf("%d charges were denied; want at least 1000", denied)
	}
}

// The script decides plain charges in a loop, and most settlements of usual limits in one function. It does so without
// creating its other functions, which would cost more than the rest of a call. All other charges need those.
func TestPlainChargesCreateNoFurtherFunctions(t *testing.T) {
	t.Parallel()
	client := goredis.NewClient(&goredis.Options{Addr: strings.TrimPrefix(on(t, "server").URL, "redis://")})
	defer client.Close()
	const head = "  -- What follows is executed only if there is a charge that the loop does not decide.\n"
	broken := strings.Replace(source, head, head+"  error('the loop left a charge')\n", 1)
	if broken == source {
		t.Fatal("the script has no such line")
	}
	n := func(v int64) *int64 { return &v }
	epoch := algorithms.Micros(0)
	const s = algorithms.Second
	limit := func(spec algorithms.Spec) *algorithms.Limit { return compiled(t, spec) }
	token := limit(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: s, MaxReserved: n(3)})
	small := limit(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: 100 * s})
	window := limit(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: s})
	few := limit(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: 100 * s, Start: &epoch})
	each := limit(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: s, Start: &epoch, TakesDenied: true})
	request := limit(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: s, Start: &epoch, PerRequest: true})
	charge := func(key string, group int, limit *algorithms.Limit, change ...func(*algorithms.Charge)) backend.Charge {
		c := backend.Charge{Key: []byte(key), Limit: limit, Group: group, Terms: algorithms.Charge{Cost: 1}}
		for _, with := range change {
			with(&c.Terms)
		}
		return c
	}
	settling := limit(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: s, Settles: true})
	settlingWindow := limit(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: s, Settles: true})
	refund := func(a *algorithms.Charge) { a.Cost, a.ChargedAt, a.Settle, a.Reserve = -1, 1, true, true }
	reserve := func(a *algorithms.Charge) { a.Reserve = true }
	more := func(a *algorithms.Charge) { a.Cost, a.ChargedAt, a.Settle = 9, 1, true }
	once := func(c backend.Charge) backend.Charge {
		c.IdempotencyKey = &backend.IdempotencyKey{ID: [16]byte{1}, Lifetime: s}
		return c
	}
	starting := func(spec algorithms.Spec) *algorithms.Limit {
		spec.Rate, spec.Period = 5, s
		return limit(spec)
	}
	type calls [][]backend.Charge
	starts := limit(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: s, Initial: n(1)})
	plan := func(of, then *algorithms.Limit) []backend.Charge {
		first := charge(fmt.Sprintf("of %p", of), 0, of)
		first.Then = true
		return []backend.Charge{first, charge(fmt.Sprintf("then %p", then), 0, then)}
	}
	one := func(limit *algorithms.Limit, change ...func(*algorithms.Charge)) calls {
		return calls{{charge("x", 0, limit, change...)}}
	}
	for name, c := range map[string]struct {
		calls   calls
		general bool
	}{
		"token bucket":              {calls: calls{{charge("a", 0, token)}, {charge("a", 0, token)}}},
		"denied token bucket":       {calls: calls{{charge("a", 0, small)}, {charge("a", 0, small)}}},
		"fixed window":              {calls: calls{{charge("a", 0, window)}, {charge("a", 0, window)}}},
		"denied fixed window":       {calls: calls{{charge("a", 0, few)}, {charge("a", 0, few)}}},
		"window that counts denied": {calls: calls{{charge("a", 0, each)}, {charge("a", 0, each)}}},
		"window per request":        {calls: calls{{charge("a", 0, request)}, {charge("a", 0, request)}}},
		"same bucket twice":         {calls: calls{{charge("a", 0, token), charge("a", 1, token)}}},
		"allowed group": {calls: calls{
			{charge("a", 0, token), charge("b", 0, window), charge("c", 1, token)},
			{charge("c", 0, token), charge("a", 1, token), charge("b", 1, window)},
		}},

		"denied group": {calls: calls{
			{charge("a", 0, small)},
			{charge("b", 0, window), charge("a", 0, small), charge("c", 1, few)},
			{charge("a", 0, small), charge("b", 0, window), charge("c", 0, few)},
		}},

		"start of a request":    {calls: calls{{charge("a", 0, settling)}, {charge("a", 0, settling), charge("b", 0, window)}}},
		"settlement":            {calls: calls{{charge("a", 0, settling)}, {charge("a", 0, settling, refund)}, {charge("a", 0, settling, more)}}},
		"settlement with an ID": {calls: calls{{charge("a", 0, settling)}, {once(charge("a", 0, settling, refund))}}},
		"settlement of a window": {calls: calls{
			{charge("a", 0, settlingWindow)}, {once(charge("a", 0, settlingWindow, more))}, {charge("a", 0, settlingWindow, refund)},
		}},
		"settlement repeated": {calls: calls{{once(charge("a", 0, settling, more))}, {once(charge("a", 0, settling, more))}}, general: true},

		"reservation": {calls: calls{
			{charge("a", 0, token, reserve), charge("a", 1, token, reserve)}, {charge("b", 0, window, reserve)}, {charge("c", 0, settling, reserve)},
		}},
		"denied reservation":                         {calls: calls{{charge("a", 0, small, reserve)}, {charge("a", 0, small, reserve)}}},
		"reservation of two limits":                  {calls{{charge("a", 0, token, reserve), charge("b", 0, window, reserve)}}, true},
		"reservation of a window that counts denied": {one(each, reserve), true},

		"dry run":                          {one(token, func(a *algorithms.Charge) { a.DryRun = true }), true},
		"the plan pays":                    {calls: calls{plan(token, small), plan(token, starts)}},
		"the credits pay":                  {calls: calls{plan(small, token), plan(small, window), plan(small, token), append(plan(small, window), charge("b", 0, token))}},
		"neither pays":                     {calls: calls{plan(small, few), plan(small, few), plan(small, few), append(plan(small, few), charge("b", 0, token))}},
		"new credits that start below pay": {calls: calls{plan(small, starts), plan(small, starts)}, general: true},
		"two limits of a plan":             {calls: calls{append([]backend.Charge{plan(token, small)[0]}, plan(window, small)...)}, general: true},

		"refund":                  {one(token, func(a *algorithms.Charge) { a.Cost = -1 }), true},
		"cost 0":                  {one(token, func(a *algorithms.Charge) { a.Cost = 0 }), true},
		"cost above the capacity": {one(token, func(a *algorithms.Charge) { a.Cost = 6 }), true},
		"refund of a lease":       {one(token, func(a *algorithms.Charge) { a.Cost, a.Scaled, a.ChargedAt = -1, true, 5 }), true},
		"other numbers":           {calls{{charge("a", 0, token)}, {charge("a", 0, small)}}, true},
		"overdraw":                {one(starting(algorithms.Spec{Kind: algorithms.TokenBucket, Overdraw: true})), true},
		"initial":                 {one(starting(algorithms.Spec{Kind: algorithms.TokenBucket, Initial: n(1)})), true},
		"sliding window":          {one(starting(algorithms.Spec{Kind: algorithms.SlidingWindow})), true},
		"sliding log":             {one(starting(algorithms.Spec{Kind: algorithms.SlidingLog})), true},
		"leaky bucket":            {one(starting(algorithms.Spec{Kind: algorithms.LeakyBucket})), true},
		"denied group with a window that counts denied": {
			calls{{charge("a", 0, small)}, {charge("b", 0, each), charge("a", 0, small)}}, true,
		},
		"bucket twice in a group": {calls{{charge("a", 0, token), charge("a", 0, token)}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode(nil, newKeys(on(t, "server").KeyPrefix), nil)
			var err error
			for _, charges := range c.calls {
				b := &backend.Batch{Charges: charges, Decisions: make([]backend.Decision, len(charges))}
				c := &call{charges: len(charges)}
				node.plan(c, []run{{b, 0, len(charges)}}, false)
				tr := c.payload.scriptRuns[0]
				tr.reply, tr.err = client.Do(t.Context(), tr.arguments(newScript(broken), true)...).Text()
				err = tr.answer()
			}
			if needed := err != nil && strings.Contains(err.Error(), "the loop left a charge"); needed != c.general || err != nil && !needed {
				t.Errorf("general was needed: %v, want %v (%v)", needed, c.general, err)
			}
		})
	}
}

// An answer that is too short or too long decides nothing: the call fails with ErrUnavailable. The length
// of answers varies, because those of plain charges leave out times that are 0.
func TestAnswerOfWrongLength(t *testing.T) {
	t.Parallel()
	full := doubles([]byte{0}, 1, 2, 3, 4, 5)
	denied := doubles([]byte{noLast}, -1, 0, 7, 8)
	allowed := doubles([]byte{noLast | noRetry | 1}, 6, 5, 9)
	answers := slices.Concat(full, denied, allowed)
	reply := string(doubles(nil, 1_000_000)) + string(answers)
	decide := func(reply string) ([]backend.Decision, error) {
		decisions := make([]backend.Decision, 3)
		tr := &scriptRun{reply: reply}
		for i := range decisions {
			tr.targets = append(tr.targets, target{charge: &backend.Charge{}, decision: &decisions[i]})
		}
		return decisions, tr.answer()
	}
	for end := range len(reply) {
		got, err := decide(reply[:end])
		for _, d := range got {
			if err == nil || !errors.Is(d.Err, backend.ErrUnavailable) || d.Allowed {
				t.Fatalf("%d of %d bytes: %v, %+v; want an error, and backend.ErrUnavailable in each decision", end, len(reply), err, d)
			}
		}
	}
	if _, err := decide(reply + "\x00"); err == nil {
		t.Error("one byte too many was accepted")
	}
	got, err := decide(reply)
	if err != nil {
		t.Fatal(err)
	}
	want := []algorithms.Decision{
		{Value: 1, Remaining: 2, RetryAfter: 3, ResetAfter: 4, Wait: 5},
		{Value: -1, RetryAfter: 7, ResetAfter: 8},
		{Allowed: true, Value: 6, Remaining: 5, ResetAfter: 9},
	}
	for i := range want {
		if got[i].Decision != want[i] || got[i].At != 1_000_000 {
			t.Errorf("charge %d: %+v, want %+v", i, got[i], want[i])
		}
	}
}
