package advise

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
)

func TestTheConfiguredNumberGivesTheConfiguredLimit(t *testing.T) {
	for name, spec := range shapes {
		p := policyOf(t, spec)
		n := p.Limit.Rate
		switch p.Limit.Kind {
		case algorithms.Guaranteed:
			n = *p.Limit.Spec().Capacity
		case algorithms.LeakyBucket:
			continue // the number of a candidate is its rate and its capacity
		}
		if got := newShape(p).at(n); got == nil || *got != *p.Limit {
			t.Errorf("%s: the candidate with %d is %+v; want %+v", name, n, got, *p.Limit)
		}
	}
}

func TestRequestsAreKeptExactly(t *testing.T) {
	type request struct {
		at   algorithms.Micros
		cost int64
	}
	rapid.Check(t, func(t *rapid.T) {
		h := NewMemory(0).New()
		c, added := h.Client([]byte("k"))
		if _, again := h.Client([]byte("k")); !added || again {
			t.Fatalf("the client is new: %t, and later: %t; want true, false", added, again)
		}
		var want, got []request
		now := start
		for range rapid.IntRange(1, 20).Draw(t, "requests") {
			now += algorithms.Micros(rapid.Int64Range(0, 1<<40).Draw(t, "pause"))
			want = append(want, request{now, rapid.OneOf(rapid.Just[int64](1), rapid.Int64()).Draw(t, "cost")})
			h.Add(c, now, want[len(want)-1].cost)
		}
		for r := c.cursor(); ; {
			at, cost, more := r.next()
			if !more {
				break
			}
			got = append(got, request{at, cost})
		}
		if !slices.Equal(got, want) || c.first != want[0].at || c.last != now || c.Requests != int64(len(want)) {
			t.Fatalf("got %v, from %d to %d; want %v", got, c.first, c.last, want)
		}
	})
}

// A client that is dropped with its first request may leave a few bytes, here at most 50 for each level.
func TestMemoryInUseIsCounted(t *testing.T) {
	const most = 1 << 16
	memory := NewMemory(most)
	histories := []*History{memory.New(), memory.New()}
	var dropped string
	for i := range 2000 {
		for n, h := range histories {
			addRequests(h, fmt.Sprintf("client %d of %d", i, n), start, 1+i%7)
		}
	}
	used := int64(0)
	for _, h := range histories {
		bytes := int64(0)
		for key, c := range h.clients {
			bytes += clientSize + int64(len(key)+len(c.Shown)+cap(c.times))
		}
		if over := h.bytes - bytes; over < 0 || over > 50*int64(h.level) || h.level == 0 || len(h.clients) < 32 {
			t.Errorf("a history with %d clients at level %d counts %d bytes; want %d to %d, a level above 0, and at least 32 clients", len(h.clients), h.level, h.bytes, bytes, bytes+50*int64(h.level))
		}
		used += h.bytes
	}
	if memory.used != used || used > most {
		t.Errorf("%d bytes are counted, want %d, and at most %d", memory.used, used, most)
	}
	for i := range 100 {
		if key := fmt.Sprint("other ", i); dropped == "" {
			if c, added := histories[0].Client([]byte(key)); c == nil && !added {
				dropped = key
			}
		}
	}
	if dropped == "" {
		t.Error("all of 100 new clients are in the sample; want some left out")
	}
}

func TestTheOnlyClientIsKept(t *testing.T) {
	for _, key := range []string{"a", "b", "c", "d"} {
		h := NewMemory(100).New()
		addRequests(h, key, start, 1)
		if len(h.clients) != 1 || h.level != 0 {
			t.Errorf("%d clients at level %d; want one at level 0", len(h.clients), h.level)
		}
	}
}

func TestBusiestPeriodIsAWindowOfTheLimit(t *testing.T) {
	day := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	micros := func(d time.Duration) algorithms.Micros { return algorithms.Micros(day.Add(d).UnixMicro()) }
	clock := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: minute, Start: new(algorithms.Micros)}
	long := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1_000_000_000, Period: 5 * algorithms.Day}
	for name, test := range map[string]struct {
		spec     algorithms.Spec
		hash     uint64
		requests map[time.Duration]int64
		most     int64
		at       algorithms.Micros
	}{
		"the clock":         {clock, 7, map[time.Duration]int64{59 * time.Second: 1, time.Minute: 2, 119 * time.Second: 2, 2 * time.Minute: 1}, 4, micros(time.Minute)},
		"the first of two":  {clock, 7, map[time.Duration]int64{0: 2, time.Minute: 2}, 2, micros(0)},
		"a start":           {algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: minute, Start: new(algorithms.Micros(17 * second))}, 7, map[time.Duration]int64{16 * time.Second: 1, 17 * time.Second: 1, 76 * time.Second: 1}, 2, micros(17 * time.Second)},
		"the key's phase":   {algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: minute}, uint64(40 * second), map[time.Duration]int64{39 * time.Second: 1, 40 * time.Second: 1, 99 * time.Second: 2, 100 * time.Second: 1}, 3, micros(40 * time.Second)},
		"the calendar":      {algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Calendar: calendar.Day.In(time.FixedZone("", 3600))}, 7, map[time.Duration]int64{22 * time.Hour: 1, 23 * time.Hour: 1, 46 * time.Hour: 1, 47 * time.Hour: 1}, 2, micros(23 * time.Hour)},
		"units refunded":    {clock, 7, map[time.Duration]int64{0: -9, time.Second: 3, 2 * time.Second: -1, 3 * time.Second: 2}, 4, micros(0)},
		"nothing requested": {clock, 7, map[time.Duration]int64{0: -9, time.Second: 0}, 0, 0},
		"huge costs":        {clock, 7, map[time.Duration]int64{0: math.MaxInt64, time.Second: math.MaxInt64}, math.MaxInt64 / 4, micros(0)},
		"coarse ticks":      {long, 0, map[time.Duration]int64{time.Second: 5}, 5, micros(0) / (5 * algorithms.Day) * (5 * algorithms.Day)},
	} {
		p := policyOf(t, test.spec)
		h := NewMemory(0).New()
		c, _ := h.Client([]byte("k"))
		h.Describe(c, "k", test.hash)
		var times []time.Duration
		for at := range test.requests {
			times = append(times, at)
		}
		slices.Sort(times)
		for _, at := range times {
			h.Add(c, micros(at), test.requests[at])
		}
		if most, at := busiest(p.Limit, c); most != test.most || at != test.at {
			t.Errorf("%s: got %d from %d, want %d from %d", name, most, at, test.most, test.at)
		}
	}
}

// Windows before the epoch have negative numbers.
func TestDivisionRoundsDown(t *testing.T) {
	for a, want := range map[int64]int64{-7: -3, -6: -2, -4: -2, -3: -1, -1: -1, 0: 0, 1: 0, 2: 0, 3: 1, 5: 1, 6: 2} {
		if got := floorDiv(a, 3); got != want {
			t.Errorf("%d / 3: got %d, want %d", a, got, want)
		}
	}
}

// requestsAt adds one request of a client at each time, in seconds after start. It returns the client.
func requestsAt(h *History, client string, seconds ...int64) *Client {
	for _, at := range seconds {
		addRequests(h, client, start+algorithms.Micros(at)*second, 1)
	}
	return h.clients[client]
}

// Clients with equal needs are in descending order of their keys, so that a second run gives the same text.
func TestAdviceSumsUpTheClients(t *testing.T) {
	h := NewMemory(0).New()
	requestsAt(h, "c", 10, 10, 10).Denied = true
	requestsAt(h, "b", 5, 5, 5)
	requestsAt(h, "a", 90)
	requestsAt(h, "d", 20, 20, 20)
	a := adviceOn(t, h, policyOf(t, perMinute), 0.5)
	if a.first != start+5*second || a.last != start+90*second {
		t.Errorf("from %d to %d after the start; want 5 s to 90 s", a.first-start, a.last-start)
	}
	if a.Requests != 10 || a.Missed != 0 || a.Denied != 1 || a.Clients != 4 || a.About != 4 {
		t.Errorf("%d requests, %d missed, of %d clients, about %d, %d denied; want 10, 0, 4, 4, 1", a.Requests, a.Missed, a.Clients, a.About, a.Denied)
	}
	if b := a.Busiest; b.By.Shown != "b" || b.Most != 3 || b.P50 != 3 || b.P99 != 3 {
		t.Errorf("the busiest minutes are %+v of %s; want 3 of b, the first client with 3", b, b.By.Shown)
	}
	var needs, candidates []string
	for _, n := range a.LargestNeeds {
		needs = append(needs, fmt.Sprint(n.Shown, " ", n.Need))
	}
	for _, c := range a.Candidates {
		candidates = append(candidates, fmt.Sprint(c.N, " denies ", c.Clients, ", ", c.Requests))
	}
	if got, want := strings.Join(needs, "; "), "d 3; c 3; b 3; a 1"; got != want {
		t.Errorf("the largest needs are %q, want %q", got, want)
	}
	if got, want := strings.Join(candidates, "; "), "3 denies 0, 0"; got != want || a.Suggested == nil || a.Suggested.N != 3 {
		t.Errorf("the candidates are %q, the suggestion %+v; want %q, and the same suggestion", got, a.Suggested, want)
	}
}

func TestACandidateForAllClientsButOne(t *testing.T) {
	h := NewMemory(0).New()
	addRequests(h, "abuser", start, 10_001)
	addRequests(h, "large", start, 9_000)
	a := adviceOn(t, h, policyOf(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 1, Period: minute}), 0.01)
	if a.Suggested != nil || len(a.Candidates) != 1 || a.Candidates[0] != (Candidate{9_000, Outcome{1, 1_001}}) {
		t.Errorf("suggested %+v of %+v; want no suggestion, and 9000, which denies 1001 requests of one client", a.Suggested, a.Candidates)
	}
	if o := a.Outlier(); o == nil || o.Shown != "abuser" || o.Need != 0 || o.Next != 9_000 {
		t.Errorf("got the outlier %+v; want the abuser, for which no number is enough", o)
	}
	grid, err := a.Grid(t.Context())
	if err != nil || grid.Points[len(grid.Points)-1].N != 9_000 {
		t.Errorf("got %+v, %v; want numbers up to 9000", grid, err)
	}
}

func TestAClientIsAnOutlierFromFiveTimesTheNextNeed(t *testing.T) {
	for need, want := range map[[2]int64]bool{{25, 5}: true, {24, 5}: false, {0, 5}: true, {0, 0}: false, {25, 0}: false} {
		a := &Advice{LargestNeeds: []ClientNeed{{&Client{}, need[0]}, {&Client{}, need[1]}}}
		if o := a.Outlier(); (o != nil) != want {
			t.Errorf("needs %v: got %+v; want an outlier: %t", need, o, want)
		}
	}
}

func TestCandidatesKeepThePenalty(t *testing.T) {
	spec := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: minute, Start: new(algorithms.Micros), Penalty: &algorithms.Penalty{After: 1, For: 600 * second, Max: 600 * second}}
	h := NewMemory(0).New()
	requestsAt(h, "a", 0, 0, 0, 0, 60, 120, 180)
	requestsAt(h, "b", 0, 0)
	a := adviceOn(t, h, policyOf(t, spec), 0.5)
	if want := (Candidate{2, Outcome{1, 5}}); a.Suggested == nil || *a.Suggested != want {
		t.Errorf("suggested %+v; want %+v: two denied requests, and three while the client is blocked", a.Suggested, want)
	}
}

// For a sample of the clients, Error is twice the standard error of a share in a random sample of this size, so the true
// share is within it with a probability of about 95 %. A suggestion may deny the requested share of clients less Error.
func TestTheErrorOfASample(t *testing.T) {
	a := &Advice{Clients: 400, Every: 2, Share: 0.1}
	if room := a.room(0.1); room != 28 || math.Abs(a.Error-0.03) > 1e-9 {
		t.Errorf("room for %d clients, error %g; want 28, 0.03: 10 %% of 400 less 2*sqrt(0.1*0.9/400)", room, a.Error)
	}
	if room := a.room(0.5); room != 180 || math.Abs(a.Error-0.03) > 1e-9 {
		t.Errorf("another share has room for %d clients, and changes the error to %g; want 180, 0.03", room, a.Error)
	}
	if room := a.room(0.001); room != 0 {
		t.Errorf("a tiny share has room for %d clients, want 0", room)
	}
	whole := &Advice{Clients: 300, Every: 1, Share: 0.01}
	if room := whole.room(0.01); room != 3 || whole.Error != 0 {
		t.Errorf("1 %% of all 300 clients: room for %d, error %g; want 3, 0", room, whole.Error)
	}
}

func TestGrid(t *testing.T) {
	h := NewMemory(0).New()
	requestsAt(h, "a", 0)
	requestsAt(h, "b", 0, 0, 59)
	requestsAt(h, "c", 30, 30, 30, 30)
	spec := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: minute, Start: new(algorithms.Micros)}
	a := adviceOn(t, h, policyOf(t, spec), 0.01)
	g, err := a.Grid(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sparse := func(list []int64) string {
		var text []string
		for i, n := range list {
			if n != 0 {
				text = append(text, fmt.Sprintf("%d:%d", i, n))
			}
		}
		return fmt.Sprintf("%d bins, %s", len(list), strings.Join(text, " "))
	}
	if got, want := sparse(g.Requests), "60 bins, 0:3 30:4 59:1"; got != want || g.From != start || g.To != start+59*second {
		t.Errorf("requests in %s from %d to %d; want %s from %d to %d", got, g.From, g.To, want, start, start+59*second)
	}
	var points []string
	for _, p := range g.Points {
		points = append(points, fmt.Sprintf("%d: %d clients, %d requests, %d need it, %s", p.N, p.Clients, p.Requests, p.Need, sparse(p.Denied)))
	}
	want := `1: 2 clients, 5 requests, 1 need it, 60 bins, 0:1 30:3 59:1
2: 2 clients, 3 requests, 0 need it, 60 bins, 30:2 59:1
3: 1 clients, 1 requests, 1 need it, 60 bins, 30:1
4: 0 clients, 0 requests, 1 need it, 60 bins, `
	if got := strings.Join(points, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTheNumbersOfAGridAreFew(t *testing.T) {
	for _, most := range []int64{1, 2, 7, 1_000_000} {
		h := NewMemory(0).New()
		c := requestsAt(h, "a", 0)
		if most > 1 {
			h.Add(c, start, most-1)
		}
		a := adviceOn(t, h, policyOf(t, perMinute), 0.01)
		numbers := a.numbers()
		if numbers[0] != 1 || numbers[len(numbers)-1] != most || len(numbers) > ladder+len(a.Candidates)+1 || len(numbers) < min(int(most), ladder) {
			t.Errorf("up to %d: got %v; want at most %d numbers from 1", most, numbers, ladder+len(a.Candidates)+1)
		}
		for i := 1; i < len(numbers); i++ {
			if numbers[i] <= numbers[i-1] || float64(numbers[i]) > 2*float64(numbers[i-1]) {
				t.Errorf("up to %d: %d follows %d; want a larger number, at most twice as large", most, numbers[i], numbers[i-1])
			}
		}
	}
}

func TestAStoppedRunHasNoAdvice(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	h := NewMemory(0).New()
	if a, err := h.Advise(ctx, policyOf(t, perMinute), 0.01); a != nil || err == nil {
		t.Errorf("without clients: got %+v, %v; want an error", a, err)
	}
	addRequests(h, "a", start, 9)
	if a, err := h.Advise(ctx, policyOf(t, perMinute), 0.01); a != nil || err == nil {
		t.Errorf("with a client: got %+v, %v; want an error", a, err)
	}
	a := adviceOn(t, h, policyOf(t, perMinute), 0.01)
	if g, err := a.Grid(ctx); g != nil || err == nil {
		t.Errorf("got the grid %+v, %v; want an error", g, err)
	}
}

func TestSuggestionsAreLinesOfAConfiguration(t *testing.T) {
	reference := func(spec algorithms.Spec) *descriptors.Policy {
		p := policyOf(t, spec)
		p.Reference = true
		return p
	}
	month := calendar.Month.In(time.UTC)
	for _, test := range []struct {
		policy                         *descriptors.Policy
		period, numbers, candidate, of string
	}{
		{reference(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute}), "1m", "requests_per_unit: 5", "requests_per_unit: 9", "{unit: minute, requests_per_unit: 9}"},
		{reference(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: 3 * minute}), "3m", "requests_per_unit: 5", "requests_per_unit: 9", "{requests_per_unit: 9}"},
		{reference(algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Calendar: month}), "month", "requests_per_unit: 5", "requests_per_unit: 9", "{requests_per_unit: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Calendar: month}), "month", "rate: 5", "rate: 9", "{algorithm: fixed_window, rate: 9, period: month, time_zone: UTC}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Period: minute}), "1m", "rate: 5", "rate: 9", "{algorithm: fixed_window, rate: 9, period: 1m}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 5, Capacity: new(int64(8)), Period: minute}), "1m", "rate: 5, capacity: 8", "rate: 9", "{algorithm: fixed_window, rate: 9, period: 1m, capacity: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: minute}), "1m", "rate: 5", "rate: 9", "{algorithm: token_bucket, rate: 9, period: 1m, capacity: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Capacity: new(int64(8)), Period: minute}), "1m", "rate: 5, capacity: 8", "rate: 9", "{algorithm: token_bucket, rate: 9, period: 1m, capacity: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Capacity: new(int64(8)), Period: minute}), "1m", "rate: 5, capacity: 8", "rate: 9", "{algorithm: leaky_bucket, rate: 9, period: 1m, capacity: 9}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.SlidingLog, Rate: 5, Period: 90 * minute}), "1h30m", "rate: 5", "rate: 9", "{algorithm: sliding_log, rate: 9, period: 1h30m}"},
		{policyOf(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Capacity: new(int64(8)), Period: second, Minimum: &algorithms.Rate{Units: 2, Period: minute}}), "1s", "capacity: 8", "capacity: 9",
			"{algorithm: token_bucket, rate: 5, period: 1s, capacity: 9, guaranteed: {rate: 2, period: 1m}}"},
	} {
		a := &Advice{Policy: test.policy}
		if a.Period() != test.period || a.Numbers() != test.numbers || a.Candidate(9) != test.candidate || a.Of(9) != test.of {
			t.Errorf("period, numbers, candidate, limit: got %q, %q, %q, %q; want %q, %q, %q, %q", a.Period(), a.Numbers(), a.Candidate(9), a.Of(9), test.period, test.numbers, test.candidate, test.of)
		}
	}
}

func TestOneBucket(t *testing.T) {
	for name, test := range map[string]struct {
		clients int64
		policy  descriptors.Policy
		shown   string
		want    bool
	}{
		"one bucket":           {1, descriptors.Policy{}, "", true},
		"two clients":          {2, descriptors.Policy{}, "", false},
		"a whole descriptor":   {1, descriptors.Policy{Whole: true}, "", false},
		"an entry":             {1, descriptors.Policy{Open: []int{0}}, "", false},
		"the key of a request": {1, descriptors.Policy{}, "bob", false},
	} {
		a := &Advice{Clients: test.clients, Policy: &test.policy, clients: []ClientNeed{{Client: &Client{Shown: test.shown}}}}
		if got := a.OneBucket(); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
}

// A suggestion that denies requests of 1 % of the clients comes with the numbers for 10 %, 5 %, 0.1 % and none of them, and
// for one client.
func TestCandidatesForOtherShares(t *testing.T) {
	h := NewMemory(0).New()
	for i := range 200 {
		addRequests(h, fmt.Sprint("client ", i), start, i+1)
	}
	var got []string
	for _, c := range adviceOn(t, h, policyOf(t, perMinute), 0.01).Candidates {
		got = append(got, fmt.Sprint(c.N, " denies ", c.Clients))
	}
	if text, want := strings.Join(got, ", "), "180 denies 20, 190 denies 10, 198 denies 2, 199 denies 1, 200 denies 0"; text != want {
		t.Errorf("got %s, want %s", text, want)
	}
}

// A client that needs more than another may have fewer units in its busiest period.
func TestPercentilesOfTheBusiestPeriods(t *testing.T) {
	h := NewMemory(0).New()
	requestsAt(h, "across two minutes", 59, 59, 60, 60)
	requestsAt(h, "in one minute", 10, 10, 10)
	a := adviceOn(t, h, policyOf(t, perMinute), 0.01)
	if b := a.Busiest; b.P50 != 2 || b.P90 != 3 || b.Most != 3 || b.By.Shown != "in one minute" || a.LargestNeeds[0].Shown != "across two minutes" {
		t.Errorf("got %+v of %s, the largest need is that of %s; want 2, 3 and 3, and a larger need of the other client", b, b.By.Shown, a.LargestNeeds[0].Shown)
	}
}

// If memory is short, the largest history drops clients, whichever history grows.
func TestTheLargestHistoryDropsClients(t *testing.T) {
	const most = 1 << 16
	memory := NewMemory(most)
	large, small := memory.New(), memory.New()
	for i := 0; memory.used < most-2*clientSize; i++ {
		addRequests(large, fmt.Sprint("client ", i), start, 1)
	}
	for i := range 20 {
		addRequests(small, fmt.Sprint("client ", i), start, 1)
	}
	if small.level != 0 || len(small.clients) != 20 || large.level == 0 || memory.used > most {
		t.Errorf("the small history has %d clients at level %d, the large one level %d, %d bytes in total; want 20 at level 0, more than 0, and at most %d bytes",
			len(small.clients), small.level, large.level, memory.used, most)
	}
}
