package storetest

import (
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

type vector struct {
	name  string
	spec  algorithms.Spec
	steps []step
}

type step struct {
	at      algorithms.Micros // time after Start
	cost    int64
	reserve bool
	of      algorithms.Micros // time after Start of the charge that this one refunds or settles; 0 means none
	settle  bool
	open    bool
	by      algorithms.Spec // the limit, if it is not that of the row

	allowed bool
	never   bool
	left    int64 // whole units; negative for a debt
	retry   algorithms.Micros
	wait    algorithms.Micros
	lost    int64
	setsUp  bool // only prepares the state of the row; of its decision only Allowed and the units left are checked
}

// Vectors checks the worked examples that define the algorithms. newStore makes an empty Store that gets the
// time from its argument now. Each row first makes the charges that lead to its starting state.
func Vectors(t *testing.T, newStore func(t *testing.T, now func() algorithms.Micros) backend.Store) {
	t.Helper()
	clock := NewClock()
	store := newStore(t, clock.Now)
	for _, v := range vectors() {
		t.Run(v.name, func(t *testing.T) {
			c := charge(v.spec)
			c.Key = []byte("vector " + v.name)
			for i, s := range v.steps {
				clock.Set(Start + s.at)
				c := c
				if s.by.Kind != 0 {
					c.Limit = charge(s.by).Limit
				}
				c.Terms = algorithms.Charge{Cost: s.cost, Reserve: s.reserve, Settle: s.settle, Open: s.open}
				if s.of > 0 {
					c.Terms.ChargedAt = Start + s.of
				}
				d := take(store, c)[0]
				if s.setsUp {
					s.retry, s.wait = d.RetryAfter, d.Wait
				}
				if d.Err != nil || d.Allowed != s.allowed || d.Never != s.never || d.RetryAfter != s.retry || d.Wait != s.wait || d.Lost != s.lost || d.Remaining != max(0, s.left) {
					t.Errorf("step %d, cost %d after %d us:\n got %+v\nwant %+v", i, s.cost, s.at, d, s)
				}
				if kind := c.Limit.Kind; kind != algorithms.TokenBucket && kind != algorithms.FixedWindow {
					continue // Value is not the number of units left
				}
				if left := floorDiv(d.Value, c.Limit.Unit()); left != s.left {
					t.Errorf("step %d, cost %d after %d us: %d are left, want %d", i, s.cost, s.at, left, s.left)
				}
			}
		})
	}
}

func floorDiv(a, b int64) int64 {
	n := a / b
	if a%b < 0 {
		n--
	}
	return n
}

// The numbers in the names only identify the rows.
func vectors() []vector {
	const ms, s = algorithms.Second / 1000, algorithms.Second
	n := func(v int64) *int64 { return &v }
	perSecond := func(edit func(*algorithms.Spec)) algorithms.Spec {
		spec := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: s}
		edit(&spec)
		return spec
	}
	plain := func(*algorithms.Spec) {}
	tenPerMinute := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute}
	window := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: minute, Start: new(algorithms.Micros)}
	half := step{cost: 5, allowed: true, left: 5, setsUp: true}
	hourly := func(n int64) algorithms.Spec {
		return algorithms.Spec{Kind: algorithms.TokenBucket, Rate: n, Period: 60 * minute}
	}
	const year = 365 * algorithms.Day
	fast := func(n int64) algorithms.Spec {
		return algorithms.Spec{Kind: algorithms.TokenBucket, Rate: n, Period: 10 * s}
	}
	slow := func(seconds algorithms.Micros, capacity int64) algorithms.Spec {
		return algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: seconds * s, Capacity: &capacity}
	}
	credits := func(capacity int64) algorithms.Spec {
		return algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: year, Capacity: &capacity, Initial: n(0)}
	}
	purse := func(capacity int64) algorithms.Spec {
		spec := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: minute, Start: new(algorithms.Micros)}
		spec.Capacity, spec.Initial = &capacity, n(0)
		return spec
	}
	indebted := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 100, Period: minute, Settles: true, MaxDebt: n(1000), MaxReserved: n(0)}
	lent := perSecond(func(s *algorithms.Spec) { s.Capacity, s.MaxReserved = n(5), n(1000) })
	notLent := perSecond(func(s *algorithms.Spec) { s.Capacity, s.MaxReserved = n(5), n(0) })
	used95 := step{cost: 95, allowed: true, left: 5, setsUp: true}
	reserving := hourly(10)
	reserving.MaxReserved = n(5)
	settling := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10_000, Period: minute, Settles: true, MaxDebt: n(3000)}
	halfSettling := settling
	halfSettling.Rate = 5000
	opening := algorithms.Spec{
		Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Day, Capacity: n(100), Settles: true, MaxDebt: n(50), OpenFor: 16 * s,
	}
	settlingCredits := credits(1000)
	settlingCredits.Settles = true
	settlingWindow := window
	settlingWindow.Settles = true
	slowBlocked := window
	slowBlocked.Penalty = &algorithms.Penalty{After: 1, For: 2 * s, Max: 2 * s}
	largeBlocked := slowBlocked // admits more units than slowBlocked can express
	largeBlocked.Rate, largeBlocked.Period, largeBlocked.TakesDenied = 1e9, s, true
	return []vector{
		{"1 one is there", perSecond(plain), []step{{cost: 1, allowed: true}}},
		{"2 none is there", perSecond(plain), []step{
			{cost: 1, allowed: true, setsUp: true},
			{cost: 1, retry: 1000 * ms},
		}},
		{"3 one is owed", perSecond(plain), []step{
			{cost: 2, reserve: true, allowed: true, left: -1, setsUp: true},
			{cost: 1, left: -1, retry: 2000 * ms},
		}},
		{"4 capacity", perSecond(func(s *algorithms.Spec) { s.Capacity = n(3) }), []step{{cost: 3, allowed: true}}},
		{"4 more than capacity", perSecond(func(s *algorithms.Spec) { s.Capacity = n(3) }), []step{{cost: 4, never: true, left: 3}}},
		{"5 refill", tenPerMinute, []step{
			half,
			{at: 6 * s, cost: 6, allowed: true},
			{at: 6 * s, cost: 10, retry: 60 * s},
		}},
		{"6 window", window, []step{
			half,
			{at: 72 * s, cost: 6, allowed: true, left: 4},
			{at: 72 * s, cost: 10, left: 4, retry: 48 * s},
		}},
		{"7 reserve", tenPerMinute, []step{
			half,
			{at: 6 * s, cost: 16, reserve: true, allowed: true, left: -10, wait: 60 * s},
			{at: 36 * s, cost: 5, reserve: true, allowed: true, left: -10, wait: 60 * s},
		}},
		{"8 reserve in windows", window, []step{
			half,
			{at: 60 * s, cost: 16, reserve: true, allowed: true, left: -6, wait: 60 * s},
			{at: 90 * s, cost: 5, reserve: true, allowed: true, left: -11, wait: 90 * s},
		}},
		{"9 max_reserved", perSecond(func(s *algorithms.Spec) { s.MaxReserved = n(1) }), []step{
			{cost: 2, reserve: true, allowed: true, left: -1, wait: 1000 * ms},
			{cost: 1, reserve: true, left: -1, retry: 1000 * ms},
		}},
		{"10 more than max_reserved", perSecond(func(s *algorithms.Spec) { s.MaxReserved = n(2) }), []step{
			{cost: 4, reserve: true, never: true, left: 1},
		}},
		{"11 capped before the charge", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: s, Capacity: n(100)}, []step{
			{cost: 5, allowed: true, left: 95, setsUp: true},
			{at: 5 * s, cost: 1, allowed: true, left: 99},
		}},
		{"12 sliding window", algorithms.Spec{Kind: algorithms.SlidingWindow, Rate: 4, Period: s}, []step{
			{cost: 1, allowed: true, left: 3, setsUp: true},
			{at: 1500 * ms, cost: 2, allowed: true, left: 1, setsUp: true},
			{at: 1500 * ms, cost: 1, allowed: true}, // 3.5 of 4 units are used
		}},
		{"13 initial", perSecond(func(s *algorithms.Spec) { s.Capacity, s.Initial = n(5), n(0) }), []step{
			{cost: 1, retry: 1000 * ms},
			{at: s, cost: 1, allowed: true},
		}},
		{"14 named twice", tenPerMinute, []step{{cost: 3 + 4, allowed: true, left: 3}}}, // the caller adds the costs
		{"14 named twice for too much", tenPerMinute, []step{{cost: 6 + 6, never: true, left: 10}}},
		{"15 leaky bucket", algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 1, Period: s, Capacity: n(2)}, []step{
			{cost: 1, allowed: true, left: 2},
			{cost: 1, allowed: true, left: 1, wait: 1000 * ms},
			{cost: 1, allowed: true, wait: 2000 * ms},
			{cost: 1, retry: 1000 * ms},
		}},
		{"16 guaranteed", perSecond(func(spec *algorithms.Spec) {
			spec.Capacity, spec.Minimum = n(100), &algorithms.Rate{Units: 10, Period: s}
		}), []step{
			{cost: 110, allowed: true, setsUp: true},
			{cost: 5, retry: 454_546},
		}},
		{"17 overdraw", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1000, Period: 60 * minute, Overdraw: true}, []step{
			{cost: 700, allowed: true, left: 300, setsUp: true},
			{cost: 700, left: -400, retry: (700 + 400) * 3600 * ms},
			{cost: 0, left: -400, retry: 400 * 3600 * ms},
		}},
		{"18 a lower limit", hourly(100), []step{
			used95,
			{by: hourly(10), cost: 1, left: -85, retry: 3096 * s}, // 86 units must flow in, at 100 an hour
			{by: hourly(10), cost: 0, allowed: true, left: -85},
			{cost: 5, allowed: true},
		}},
		{"19 a higher limit", hourly(100), []step{
			{by: hourly(10), cost: 10, allowed: true, setsUp: true},
			{cost: 1, allowed: true, left: 89},
		}},
		{"20 reserve of a lower limit", hourly(100), []step{
			used95,
			{by: reserving, cost: 0, allowed: true, left: -85},
			{by: reserving, cost: 3, reserve: true, left: -85, retry: 2988 * s}, // allowed once at most 12 units are used: 10 (the limit) + 5 (max_reserved) - 3 (the cost)
			{at: 2988*s - 1, by: reserving, cost: 3, reserve: true, left: -3, retry: 1},
			{at: 2988 * s, by: reserving, cost: 3, reserve: true, allowed: true, left: -5, wait: 180 * s},
		}},
		{"a client that asks before its retry time", fast(100), []step{
			{cost: 100, allowed: true, setsUp: true},
			{by: fast(10), cost: 5, left: -90, retry: 9500 * ms},
			{at: 4 * s, by: fast(10), cost: 5, left: -50, retry: 5500 * ms},
			{at: 9 * s, by: fast(10), cost: 0, allowed: true},
			{at: 9 * s, by: fast(10), cost: 5, retry: 500 * ms}, // 10 units are used, all that the limit has; the denial does not convert them
			{at: 9500*ms - 1, by: fast(10), cost: 5, left: 4, retry: 1},
			{at: 9500 * ms, by: fast(10), cost: 5, allowed: true},
			{at: 9500 * ms, by: fast(10), cost: 1, retry: s}, // the allowed charge has converted the state
		}},
		{"more consumption than the new numbers can express", slow(2, 4e9), []step{
			{cost: 4e9, allowed: true},
			{by: slow(3, 1e9), cost: 1, left: (int64(1e9*3e6)-1<<53)/3e6 - 1, retry: (6e9 + 2) * s},
		}},
		{"22 the balance of a raised capacity", credits(100_000), []step{
			{cost: 1, retry: year},
			{cost: -500, allowed: true, left: 500},
			{by: credits(200_000), cost: 501, left: 500, retry: year},
			{by: credits(200_000), cost: -1000, allowed: true, left: 1500},
			{cost: 1500, allowed: true},
			{by: credits(200_000), cost: 1, retry: year},
		}},
		{"22 the balance of a lowered capacity", credits(100_000), []step{
			{cost: -500, allowed: true, left: 500, setsUp: true}, // a refund creates the bucket
			{by: credits(50_000), cost: 300, allowed: true, left: 200},
			{by: credits(50_000), cost: -60_000, allowed: true, left: 50_000},
			{cost: -30_000, allowed: true, left: 80_000},
			{by: credits(50_000), cost: 0, allowed: true, left: 50_000}, // what is above the lower capacity is cut, by a look too
			{cost: 50_001, left: 50_000, retry: year},
		}},
		{"22 the balance of a window", purse(5), []step{
			{cost: 1, retry: minute},
			{cost: -4, allowed: true, left: 4},
			{by: purse(9), cost: 5, left: 4, retry: minute},
			{by: purse(3), cost: 0, allowed: true, left: 3},
			{cost: 3, allowed: true},
		}},
		{"a refund of a debt that a settlement made", indebted, []step{
			{at: 1 * s, cost: 100, allowed: true},
			{at: 1 * s, cost: 1000, of: 1 * s, settle: true, allowed: true, left: -1000},
			{at: 1 * s, cost: -1100, allowed: true, left: 100},
			{at: 1 * s, cost: 100, allowed: true},
			{at: 1 * s, cost: 1000, of: 1 * s, settle: true, allowed: true, left: -1000},
			{at: 1 * s, cost: -1100, of: 1 * s, settle: true, allowed: true, left: -1000}, // the bucket was full in between
			{at: 1 * s, cost: -1 << 63, allowed: true, left: 100},
		}},
		{"a refund of a debt made when more could be reserved", lent, []step{
			{cost: 1005, reserve: true, allowed: true, left: -1000, wait: 1000 * s},
			{by: notLent, cost: -1004, allowed: true, left: 4},
		}},
		{"undone late", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: s}, []step{
			{at: 1 * s, cost: 10, allowed: true, setsUp: true},
			{at: 1500 * ms, cost: -10, of: 1 * s, allowed: true, left: 10}, // 5 tokens flowed in, so 5 of 10 are refunded
			{at: 1500 * ms, cost: 10, allowed: true, setsUp: true},
			{at: 1700 * ms, cost: -10, of: 1 * s, allowed: true, left: 5}, // 2 tokens flowed in since the last charge, and 7 since the undone one
			{at: 1700 * ms, cost: 5, allowed: true, setsUp: true},
			{at: 1700 * ms, cost: -10, of: 1, allowed: true}, // all 10 tokens flowed in since the undone charge
		}},
		{"undone by a clock that stepped back", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: s}, []step{
			{at: 100 * s, cost: 10, allowed: true, setsUp: true},
			{at: 40 * s, cost: -4, of: 100 * s, allowed: true, left: 4}, // the bucket's clock stands still, so nothing flowed in
			{at: 39 * s, cost: -4, of: 100 * s, allowed: true, left: 4}, // the inflow is unknown
			{at: 39 * s, cost: -4, of: 38800 * ms, allowed: true, left: 6},
		}},
		// The bucket holds 10,000 tokens and refills in a minute. Calls consume estimates, which are settled.
		{"settled without an id", opening, []step{
			{at: 1 * s, cost: 40, open: true, allowed: true, left: 60},
			{at: 1 * s, cost: 40, open: true, allowed: true, left: 20},
			{at: 1 * s, cost: 40, open: true, left: 20, retry: 17 * s}, // when the first two expire
			{at: 2 * s, cost: 20, open: true, allowed: true},
			{at: 3 * s, cost: 30, open: true, settle: true, allowed: true, left: -10}, // the newest, of 20
			{at: 3 * s, cost: 10, open: true, settle: true, allowed: true, left: 20},
			{at: 3 * s, open: true, settle: true, allowed: true, left: 60},
			{at: 3 * s, cost: 70, open: true, settle: true, allowed: true, left: -10}, // none is open
			{at: 3 * s, cost: 100, open: true, settle: true, allowed: true, left: -50, lost: 60},
		}},
		{"never settled", opening, []step{
			{at: 1 * s, cost: 60, open: true, allowed: true, left: 40},
			{at: 2 * s, cost: 30, open: true, allowed: true, left: 10},
			{at: 2 * s, cost: 10, allowed: true}, // nothing refunds this charge
			{at: 3 * s, cost: 61, retry: 16 * s},
			{at: 18 * s, cost: 60, allowed: true},
			{at: 18 * s, cost: 31, retry: 86384 * s}, // the bucket would have been full for a second
			{at: 19 * s, cost: 30, allowed: true},
		}},
		{"an undone reservation", opening, []step{
			{at: 1 * s, cost: 40, open: true, allowed: true, left: 60},
			{at: 1 * s, cost: 20, open: true, allowed: true, left: 40},
			{at: 1 * s, cost: -20, of: 1 * s, open: true, allowed: true, left: 60},
			{at: 1 * s, cost: 50, open: true, settle: true, allowed: true, left: 50},
			{at: 1 * s, cost: 50, open: true, settle: true, allowed: true},
		}},
		{"settled at once", settling, []step{
			{at: 1 * s, cost: 4000, allowed: true, left: 6000},
			{at: 1 * s, cost: -3000, of: 1 * s, settle: true, allowed: true, left: 9000},
		}},
		{"settled later", settling, []step{
			{at: 1 * s, cost: 10000, allowed: true},
			{at: 7 * s, cost: 1000, allowed: true},
			{at: 13 * s, cost: -9000, of: 1 * s, settle: true, allowed: true, left: 10000}, // left is as if each call had consumed only 1000 from the start
		}},
		{"two settled that would have overflowed together", settling, []step{
			{at: 1 * s, cost: 5000, allowed: true, left: 5000},
			{at: 1 * s, cost: 5000, allowed: true},
			{at: 25 * s, cost: 4000, allowed: true}, // before this charge, the bucket lacked 6000
			{at: 25 * s, cost: -5000, of: 1 * s, settle: true, allowed: true, left: 5000},
			{at: 25 * s, cost: -5000, of: 1 * s, settle: true, allowed: true, left: 6000}, // both refunds together are 6000, not 10000
			{at: 25 * s, cost: 10000, of: 25 * s, settle: true, allowed: true, left: -3000, lost: 1000},
			{at: 25 * s, cost: 1, left: -3000, retry: 18006 * ms},
		}},
		{"settled for more", settling, []step{
			{at: 1 * s, cost: 8000, allowed: true, left: 2000},
			{at: 1 * s, cost: 1000, of: 1 * s, settle: true, allowed: true, left: 1000},
			{at: 1 * s, cost: 5000, of: 1 * s, settle: true, allowed: true, left: -3000, lost: 1000}, // max_debt is 3000
			{at: 1 * s, cost: 500, of: 1 * s, settle: true, allowed: true, left: -3000, lost: 500},
			{at: 1 * s, cost: 1, left: -3000, retry: 18006 * ms},
		}},
		{"settled within a window and after it", settlingWindow, []step{
			{at: 1 * s, cost: 10, allowed: true},
			{at: 50 * s, cost: -7, of: 1 * s, settle: true, allowed: true, left: 7},
			{at: 61 * s, cost: 9, allowed: true, left: 1},
			{at: 62 * s, cost: -3, of: 1 * s, settle: true, allowed: true, left: 1},
			{at: 62 * s, cost: 15, of: 1 * s, settle: true, allowed: true, left: -10, lost: 4},
			{at: 62 * s, cost: 1, left: -10, retry: 118 * s},
		}},
		// A request reserves 40 units and adds 56, so its charge is a refund of 16.
		{"settled after the first units were added", settlingCredits, []step{
			{at: 1 * s, cost: -16, allowed: true, left: 16},
			{at: 1 * s, cost: -7, of: 1 * s, settle: true, allowed: true, left: 23},
			{at: 2 * s, cost: -7, of: 1*s - 1, settle: true, allowed: true, left: 23}, // a reservation from before the bucket was new
		}},
		{"settled by other numbers", settling, []step{
			{at: 1 * s, cost: 10000, allowed: true},
			{at: 1 * s, by: halfSettling, cost: -6000, of: 1 * s, settle: true, allowed: true, left: 1000},
			{at: 1 * s, by: halfSettling, cost: -4000, of: 1 * s, settle: true, allowed: true, left: 5000},
		}},
		// A blocked request is not charged, even if the limit charges denied requests. So it does not convert the bucket.
		{"blocked, under other numbers", slowBlocked, []step{
			{cost: 10, allowed: true},
			{at: 1 * s, cost: 1, retry: 59 * s, setsUp: true},
			{at: 2 * s, by: largeBlocked, cost: 1e9, left: 1e9 - 10, retry: 58 * s},
			{at: 60 * s, by: largeBlocked, cost: 1e9, allowed: true},
		}},
	}
}
