package limiter_test

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const sec = algorithms.Second

func (b *bench) jobs(tb testing.TB, numbers string) {
	tb.Helper()
	text := "domain: d\nlimits:\n  jobs: {" + numbers + "}\n"
	snapshot, problems := config.Compile([]config.File{{Name: "test.yaml", Data: []byte(text)}}, config.Options{})
	if problems.Bad() {
		tb.Fatalf("got %v; want no mistakes", problems)
	}
	b.Swap(snapshot)
}

func (b *bench) consume(tb testing.TB, count int64, reserve bool) (*limiter.Call, bool) {
	tb.Helper()
	c := &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{{Name: "jobs", Count: count, Reserve: reserve}}}}
	if err := b.Check(tb.Context(), c); err != nil {
		tb.Fatal(err)
	}
	return c, !c.Denied
}

func reservedBy(c *limiter.Call) (*limiter.Reserved, bool) {
	part, ok := c.Part(0, "")
	return &limiter.Reserved{ID: [16]byte{1}, Domain: descriptors.PrefixNumber("d"), Parts: []limiter.ReservedPart{part}}, ok
}

// cancel settles r with a cost of 0.
func (b *bench) cancel(tb testing.TB, r *limiter.Reserved) {
	tb.Helper()
	c := &limiter.Call{}
	if err := b.Settle(tb.Context(), c, limiter.Settle{Reserved: r}); err != nil || c.Denied {
		tb.Fatalf("cancelled: %v, denied %t; want no error and allowed", err, c.Denied)
	}
}

func (b *bench) remaining(tb testing.TB) int64 {
	tb.Helper()
	c, _ := b.consume(tb, 0, false)
	return c.Results[0].Decision.Remaining
}

// In the case "lower", a reservation is made while 10 units flow in every second. Then the rate is lowered to 1 a
// second. In the 5 seconds at the old rate, 50 units have flowed in and were consumed. So canceling 100 units may
// refund at most 50. The refund is smaller still, because the store's clock may be a minute ahead.
func TestARefundAfterTheRateWasLowered(t *testing.T) {
	for _, c := range []struct {
		name, then, now string
		count           int64
		after           algorithms.Micros
		most, least     int64
	}{
		{"the rate is the same", "rate: 10, period: 1s", "rate: 10, period: 1s", 100, 5 * sec, 50, 50},
		{"lower", "rate: 10, period: 1s", "rate: 1, period: 1s", 100, 5 * sec, 50, 0},
		{"lower, and all was charged long ago", "rate: 10, period: 1s", "rate: 1, period: 1s", 100, 50 * sec, 0, 0},
		{"slightly lower", "rate: 1000, period: 1h", "rate: 900, period: 1h", 100, 36 * sec, 90, 87},
		{"higher", "rate: 1, period: 1s", "rate: 10, period: 1s", 100, 5 * sec, 50, 50},
		{"another period", "rate: 600, period: 1m", "rate: 10, period: 1s", 100, 5 * sec, 50, 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, "domain: d\ndescriptors: []\n")
			const form = "algorithm: token_bucket, capacity: 100, "
			b.jobs(t, form+c.then)
			call, ok := b.consume(t, min(c.count, b.remaining(t)), false)
			if !ok {
				t.Fatal("denied")
			}
			r, ok := reservedBy(call)
			if !ok {
				t.Fatal("not reserved")
			}
			b.now += c.after
			for b.remaining(t) > 0 { // other requests consume the inflow
				b.consume(t, b.remaining(t), false)
			}
			b.jobs(t, form+c.now)
			b.cancel(t, r)
			if got := b.remaining(t); got > c.most || got < c.least {
				t.Errorf("%d returned, want %d to %d", got, c.least, c.most)
			}
		})
	}
}

// After a reservation is canceled, the bucket must hold no more units than without the reservation. That
// applies whatever is consumed before and after, and whenever the rate is lowered.
func TestARefundAfterTheRateWasLoweredStaysWithinTheBound(t *testing.T) {
	cancelled, returned := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(least, most int, what string) int64 { return int64(rapid.IntRange(least, most).Draw(rt, what)) }
		capacity := draw(20, 60, "capacity")
		numbers := func(rate, period int64) string {
			return fmt.Sprintf("algorithm: token_bucket, capacity: %d, rate: %d, period: %ds", capacity, rate, period)
		}
		with, without := newBench(t, "domain: d\ndescriptors: []\n"), newBench(t, "domain: d\ndescriptors: []\n")
		both := [...]*bench{with, without}
		rate, period := draw(1, 50, "rate"), draw(1, 3600, "period")
		first, second := numbers(rate, period), numbers(draw(1, int(rate), "then"), period)
		with.jobs(t, first)
		without.jobs(t, first)
		others := func() { // requests that are allowed in spite of the reservation would also be allowed without it
			for range draw(0, 3, "others") {
				step := algorithms.Micros(draw(0, 20, "step")) * sec / 4
				with.now, without.now = with.now+step, without.now+step
				cost := draw(1, 20, "cost")
				if _, ok := with.consume(t, cost, false); ok {
					if _, ok := without.consume(t, cost, false); !ok {
						rt.Fatalf("%d are allowed beside the reservation, but not without it", cost)
					}
				}
			}
		}
		others()
		call, ok := with.consume(t, draw(1, 20, "reserved"), false)
		if !ok {
			return
		}
		r, _ := reservedBy(call)
		others()
		with.jobs(t, second)
		without.jobs(t, second)
		others()
		before := with.remaining(t)
		with.cancel(t, r)
		if cancelled++; with.remaining(t) > before {
			returned++
		}
		if a, b := with.remaining(t), without.remaining(t); a > b {
			rt.Fatalf("%s, then %s: %d are left, %d without the reservation", first, second, a, b)
		}
		others()
		for _, b := range both {
			b.now += 7 * sec
		}
		if a, b := with.remaining(t), without.remaining(t); a > b {
			rt.Fatalf("%s, then %s: later %d are left, %d without the reservation", first, second, a, b)
		}
	})
	t.Logf("%d cancelled, %d of them returned something", cancelled, returned)
	if cancelled > 50 && returned == 0 {
		t.Error("no cancellation refunded anything, so nothing was tested")
	}
}

// If the number of shards changes, the limit uses other buckets. The reservation consumed nothing from them,
// so it cannot be settled there.
func TestChangedShardsCannotBeSettled(t *testing.T) {
	for _, c := range []struct {
		name, was, is string
		changed       bool
	}{
		{"the same", "shards: 2", "shards: 2", false},
		{"other numbers", "shards: 2", "shards: 2, capacity: 50", false},
		{"more shards", "shards: 2", "shards: 4", true},
		{"no shards", "shards: 2", "capacity: 100", true},
	} {
		b := newBench(t, "domain: d\ndescriptors: []\n")
		const form = "algorithm: token_bucket, rate: 100, period: 1h, "
		b.jobs(t, form+c.was)
		call, ok := b.consume(t, 10, false)
		if !ok {
			t.Fatal("denied")
		}
		r, ok := reservedBy(call)
		if !ok {
			t.Fatal("not reserved")
		}
		b.jobs(t, form+c.is)
		err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r})
		if errors.Is(err, limiter.ErrChanged) != c.changed || !c.changed && err != nil {
			t.Errorf("%s: got %v; want limiter.ErrChanged: %t", c.name, err, c.changed)
		}
	}
}

// The units of a request that only shadow mode allows were not consumed, so a settlement to 0 must not refund them.
func TestADenialInShadowModeReservesNothing(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors: []\n")
	b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1h, max_reserved: 0, shadow_mode: true")
	if _, allowed := b.consume(t, 10, false); !allowed {
		t.Fatal("the first 10 units are denied")
	}
	c, allowed := b.consume(t, 5, true)
	r, ok := reservedBy(c)
	if !allowed || !ok || c.Results[0].Decision.Allowed || r.Parts[0].Count != 0 {
		t.Fatalf("allowed %t, reserved %t %+v; want an allowed request with a reservation of 0 units, because the limit denied it", allowed, ok, r.Parts)
	}
	if b.cancel(t, r); b.remaining(t) != 0 {
		t.Errorf("%d units are left after a refund of units that were not consumed; want 0", b.remaining(t))
	}
}

// The numbers of the domain's limits are not known, so the client must repeat the settlement later.
func TestADomainWithoutAValidConfigurationSettlesNothing(t *testing.T) {
	b := newBench(t, "domain: d\ndescriptors: []\n")
	b.jobs(t, "algorithm: token_bucket, rate: 10, period: 1h")
	c, _ := b.consume(t, 5, true)
	r, _ := reservedBy(c)
	b.Current().Domains["d"].Broken = true
	if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: r}); !errors.Is(err, limiter.ErrNoConfig) {
		t.Errorf("%v, want ErrNoConfig", err)
	}
}
