package limiter_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const inFlight = `
domain: d
limits:
  uploads: {algorithm: concurrency, capacity: 3, ttl: 1m}
  either: {algorithm: concurrency, capacity: 4, ttl: 1m, on_backend_failure: local, local_share: 50%}
  shade: {algorithm: concurrency, capacity: 4, ttl: 1m, shadow_mode: true, on_backend_failure: local, local_share: 50%}
  calls: {algorithm: fixed_window, rate: 2, period: 1d}
  quota: {algorithm: fixed_window, rate: 2, period: 1d, quota_mode: true}
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: 100}}
descriptors:
  - {key: tenant, limit: uploads}
  - {key: mixed, limit: [uploads, calls]}
  - {key: settled, limit: [uploads, tokens]}
  - {key: seen, shadow_mode: true, limit: tokens}
  - {key: watched, shadow_mode: true, limit: uploads}
  - {key: shade, limit: shade}
  - {key: call, limit: calls}
  - {key: local, rate_limit: {algorithm: concurrency, capacity: 4, ttl: 1m, on_backend_failure: local, local_share: 50%}}
  - {key: many, rate_limit: {algorithm: concurrency, capacity: 4, ttl: 1m}}
`

type slotBench struct {
	*proxy
	*testing.T
}

func newSlotBench(t *testing.T) *slotBench {
	t.Helper()
	return &slotBench{&proxy{newBench(t, inFlight), t, ""}, t}
}

// ask sends descriptors ("tenant=bob"), and returns the answered Call and its id.
func (b *slotBench) ask(cost int64, texts ...string) (*limiter.Call, string) {
	b.Helper()
	c := b.send("d", slices.Repeat([]int64{cost}, len(texts)), texts...)
	return c, string(c.AppendID(nil))
}

func (b *slotBench) allowed(cost int64, texts ...string) (id string) {
	b.Helper()
	c, id := b.ask(cost, texts...)
	if c.Denied || c.HasSlots() != (id != limiter.None) {
		b.Fatalf("%v: denied %v, id %s, has slots %v", texts, c.Denied, id, c.HasSlots())
	}
	return id
}

func (b *slotBench) denied(cost int64, texts ...string) *limiter.Call {
	b.Helper()
	c, id := b.ask(cost, texts...)
	if !c.Denied || id != limiter.None {
		b.Fatalf("%v: denied %v with id %s, want a denial without an id", texts, c.Denied, id)
	}
	return c
}

// named asks for two units of each limit, for bob.
func (b *slotBench) named(id string, limits ...string) *limiter.Call {
	r := limiter.Request{Domain: "d", Returns: true, IdempotencyKey: limiter.IdempotencyKey{ID: id, Lifetime: algorithms.Day}}
	for _, name := range limits {
		r.Limits = append(r.Limits, limiter.NamedCharge{Name: name, Key: []string{"bob"}, Count: 2})
	}
	return b.check(b.T, r)
}

func (b *slotBench) counts(reporter limiter.SlotReporter, outcome limiter.SlotOutcome, want uint64) {
	b.Helper()
	if got := b.SlotCounts().Ended[reporter][outcome]; got != want {
		b.Errorf("%s %s: counted %d, want %d", reporter, outcome, got, want)
	}
}

// An operator who looks at the descriptor with an id, and a route with check, return no slot, neither in the store nor in
// this process.
func TestADryRunReturnsNoSlot(t *testing.T) {
	b := newSlotBench(t)
	stored := b.allowed(1, "tenant=bob")
	b.store.err = backend.ErrUnavailable
	local := b.allowed(1, "local=bob")
	b.store.err = nil
	for _, id := range []string{stored, local} {
		look := limiter.Inspection("d", "", nil, []descriptors.Entry{{Key: "settle_end", Value: id}}, 1).Request
		if c := b.check(t, look); len(c.Descriptors) != 1 || len(c.Descriptors[0].Entries) != 1 || c.Descriptors[0].Cost != 1 {
			t.Errorf("an inspection of %+v, want of the descriptor", c.Descriptors)
		}
		look.Inspect, look.DryRun = false, true
		b.check(t, look)
		if c, _ := b.ask(0, "settle_end="+id); !slices.Equal(c.SlotOutcomes, []limiter.SlotOutcome{limiter.SlotReturned}) {
			t.Errorf("after an inspection the return of a slot has the outcomes %v, want returned", c.SlotOutcomes)
		}
	}
}

func TestASlotIsReturnedOnce(t *testing.T) {
	b := newSlotBench(t)
	id := b.allowed(2, "tenant=bob")
	b.allowed(1, "tenant=bob")
	if c := b.denied(1, "mixed=bob"); c.Consumed(&c.Results[1]) {
		t.Errorf("got %+v, want no unit of calls consumed", c.Verdict)
	}
	c := b.denied(1, "tenant=bob")
	if c.RetryAfter != 0 || c.Never || c.Results[0].Decision.ResetAfter != 0 {
		t.Errorf("got %+v, want a denial without times", c.Verdict)
	}
	for range 2 {
		if ttl := b.ReturnSlots(id, limiter.ReporterLog); ttl != 60*algorithms.Second {
			t.Errorf("got a ttl of %d, want a minute", ttl)
		}
		b.want("uploads", "bob", 2)
	}
	b.counts(limiter.ReporterLog, limiter.SlotReturned, 1)
	b.counts(limiter.ReporterLog, limiter.SlotGone, 1)
	if n := b.SlotCounts().Taken; n != 2 {
		t.Errorf("counted %d slots, want 2", n)
	}
}

// Slots may be returned at any time, whatever the other quotas say.
func TestTheRetryTimeOfQuotasWithSlots(t *testing.T) {
	b := newSlotBench(t)
	b.restart(t, inFlight, func(c *limiter.Config) { c.Modes.Quota = true })
	b.allowed(3, "tenant=bob")
	if c := b.denied(3, "mixed=bob"); c.Never || c.RetryAfter != 0 {
		t.Errorf("got %+v, want a denial without a time, although calls never allows 3", c.Verdict)
	}
	if c := b.denied(3, "call=bob"); !c.Never {
		t.Errorf("got %+v, want a denial for good", c.Verdict)
	}
	b.allowed(2, "call=bob")
	if c := b.denied(1, "mixed=bob"); c.Never || c.RetryAfter == 0 {
		t.Errorf("got %+v, want the retry time of calls", c.Verdict)
	}
}

func TestARenewalKeepsASlotAndRevivesNone(t *testing.T) {
	b := newSlotBench(t)
	kept, lost := b.allowed(1, "tenant=bob"), b.allowed(1, "tenant=bob")
	b.now += 50 * algorithms.Second
	b.RenewSlots(kept, limiter.ReporterAccessLog)
	of := &limiter.Reserved{}
	b.Open(kept, of)
	if got := b.Renew(t.Context(), of); !slices.Equal(got, []limiter.SlotOutcome{limiter.SlotRenewed}) {
		t.Errorf("got the outcomes %v, want renewed", got)
	}
	b.counts(limiter.ReporterHTTP, limiter.SlotRenewed, 1)
	b.now += 50 * algorithms.Second
	b.RenewSlots(lost, limiter.ReporterAccessLog)
	b.want("uploads", "bob", 2)
	b.allowed(1, "tenant=bob")
	if n := b.SlotCounts().Expired; n != 1 {
		t.Errorf("counted %d expired units, want 1", n)
	}
	b.counts(limiter.ReporterAccessLog, limiter.SlotRenewed, 1)
	b.counts(limiter.ReporterAccessLog, limiter.SlotLost, 1)
	b.swap(t, strings.ReplaceAll(inFlight, "ttl: 1m", "ttl: 5s"))
	if ttl := b.RenewSlots(kept, limiter.ReporterAccessLog); ttl != 5*algorithms.Second {
		t.Errorf("got a ttl of %d after a reload, want that of the limit now, 5 s: the next renewal must come before it ends", ttl)
	}
}

func TestTextsThatAreNoSlotsChangeNothing(t *testing.T) {
	b := newSlotBench(t)
	id := b.allowed(3, "tenant=bob")
	for _, text := range []string{"", "none", "x", id[1:], id[:len(id)-1], id + "A"} {
		if b.ReturnSlots(text, limiter.ReporterLog) != 0 || b.RenewSlots(text, limiter.ReporterLog) != 0 {
			t.Errorf("%q is an id", text)
		}
	}
	b.counts(limiter.ReporterLog, limiter.SlotBadID, 12)
	if got := b.Renew(t.Context(), &limiter.Reserved{}); len(got) != 0 {
		t.Errorf("the renewals of no slot have the outcomes %v", got)
	}
	b.counts(limiter.ReporterHTTP, limiter.SlotBadID, 1)
	b.want("uploads", "bob", 0)
}

func TestASlotOfAFormerLimitIsReturned(t *testing.T) {
	b := newSlotBench(t)
	id := b.allowed(2, "tenant=bob")
	other := b.allowed(1, "tenant=bob")
	b.swap(t, "domain: d\ndescriptors: []\n")
	dryRun := request(t, 0, "settle_end="+id)
	dryRun.DryRun = true
	b.check(t, dryRun)
	b.ask(0, "settle_end="+id)
	b.counts(limiter.ReporterDone, limiter.SlotReturned, 1)
	b.swap(t, "domain: d\nsettle: {key: done, end: done_end}\ndescriptors: []\n")
	b.ask(0, "done_end="+other)
	b.counts(limiter.ReporterDone, limiter.SlotReturned, 2)
	b.swap(t, inFlight)
	b.want("uploads", "bob", 3)
	if c, _ := b.ask(-1, "tenant=bob"); c.Denied || c.Results[0].Cost != 0 {
		t.Errorf("a refund: got %+v, want a cost of 0", c.Results)
	}
	b.counts(limiter.ReporterDone, limiter.SlotRefund, 1)
}

func TestASettleDoneReturnsSlotsAndSettles(t *testing.T) {
	b := newSlotBench(t)
	id := b.allowed(1, "settled=bob")
	b.want("uploads", "bob", 2)
	b.want("tokens", "bob", 900)
	b.ask(30, "settle="+id, "settle_end="+id)
	b.want("uploads", "bob", 3)
	b.want("tokens", "bob", 970)
	b.counts(limiter.ReporterDone, limiter.SlotReturned, 1)
	id = b.allowed(1, "tenant=bob")
	b.allowed(2, "call=bob")
	if c, _ := b.ask(1, "call=bob", "settle_end="+id); !c.Denied {
		t.Error("calls allows a third request")
	}
	b.want("uploads", "bob", 3) // whatever denies the rest
}

func TestASlotIsReturnedAlsoIfTheUnitsBesideItCannotBeSettled(t *testing.T) {
	for name, changed := range map[string]string{
		"another algorithm": strings.Replace(inFlight, "tokens: {algorithm: fixed_window", "tokens: {algorithm: token_bucket", 1),
		"expired":           inFlight,
		"no limit":          strings.NewReplacer("  tokens: {algorithm", "  others: {algorithm", "tokens]", "others]", "limit: tokens", "limit: others").Replace(inFlight),
	} {
		b := newSlotBench(t)
		changed = strings.ReplaceAll(changed, "ttl: 1m", "ttl: 1d")
		b.swap(t, strings.ReplaceAll(inFlight, "ttl: 1m", "ttl: 1d"))
		uploads, tokens := limiter.NamedCharge{Name: "uploads", Key: []string{"bob"}, Count: 2}, limiter.NamedCharge{Name: "tokens", Key: []string{"bob"}, Count: 9, Reserve: true}
		c := b.check(t, limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{tokens, uploads}, Returns: true})
		units, _ := c.Part(0, "")
		of := &limiter.Reserved{ID: c.SlotID(), Domain: limiter.PrefixNumber("d"), Parts: []limiter.ReservedPart{units}}
		for _, slot := range c.Slots() {
			of.Parts = append(of.Parts, slot)
		}
		b.want("uploads", "bob", 1)
		b.swap(t, changed)
		if name == "expired" {
			b.now += limiter.Within
		}
		if err := b.Settle(t.Context(), &limiter.Call{}, limiter.Settle{Reserved: of, Real: 5}); err == nil {
			t.Errorf("%s: the units were settled", name)
		}
		b.want("uploads", "bob", 3)
	}
}

func TestAFailedStoreFailsTheReturn(t *testing.T) {
	b := newSlotBench(t)
	id := b.allowed(1, "tenant=bob")
	b.store.err = backend.ErrUnavailable
	if c, _ := b.ask(0, "settle_end="+id); !c.Failed || !c.Denied || !c.Statuses[0].Denied {
		t.Error("the sender of a return must learn that the store failed")
	}
	b.store.err = nil
	if c, _ := b.ask(0, "settle_end="+id); c.Failed || c.Denied {
		t.Error("the second return failed")
	}
	b.want("uploads", "bob", 3)
}

func TestShadowModeTakesBeyondCapacityAndReturnsWhatIsDenied(t *testing.T) {
	b := newSlotBench(t)
	var ids []string
	for range 5 {
		ids = append(ids, b.allowed(1, "watched=bob"))
	}
	for _, id := range ids[:3] {
		b.ReturnSlots(id, limiter.ReporterDone)
	}
	b.want("uploads", "bob", 1)
	b.allowed(2, "call=bob")
	b.denied(1, "call=bob", "watched=bob")
	b.want("uploads", "bob", 1)
	b.counts(limiter.ReporterSelf, limiter.SlotReturned, 1)
}

func TestWithoutAWayToReturnNothingIsTaken(t *testing.T) {
	b := newSlotBench(t)
	c := b.bench.send(t, 1, "tenant=bob", "call=bob")
	if !c.Denied || !c.Results[0].NoReturn || !c.Never || c.Results[1].Outcome != limiter.Replaced {
		t.Errorf("got %+v; want a denial, because nothing can return the slot", c.Verdict)
	}
	b.want("uploads", "bob", 3)
	b.want("calls", "bob", 2)
}

// If a limit in quota mode denied the first request, its slot would be returned, but granted to the second one.
func TestUnderAnIDQuotasCannotReturnASlot(t *testing.T) {
	b := newSlotBench(t)
	uploads, quota := limiter.NamedCharge{Name: "uploads", Key: []string{"bob"}, Count: 1}, limiter.NamedCharge{Name: "quota", Count: 1}
	for id, want := range map[string]bool{"id": true, "": false} {
		c := &limiter.Call{Request: limiter.Request{Domain: "d", Limits: []limiter.NamedCharge{uploads, quota}, Returns: true}}
		c.IdempotencyKey = limiter.IdempotencyKey{ID: id, Lifetime: sec}
		if err := b.Check(t.Context(), c); (err != nil) != want {
			t.Errorf("id %q: got the error %v, want one: %v", id, err, want)
		}
	}
	b.want("uploads", "bob", 2)
}

func TestAtMostEightSlots(t *testing.T) {
	b := newSlotBench(t)
	var eight []string
	for i := range limiter.MaxReserved {
		eight = append(eight, fmt.Sprint("tenant=", i))
	}
	c, id := b.ask(1, append(eight, "watched=bob")...)
	if r := &c.Results[limiter.MaxReserved]; c.Denied || r.Outcome != limiter.Allowed {
		t.Errorf("got %+v, want allowed, and no slot of the limit in shadow mode", r)
	}
	b.want("uploads", "bob", 3)
	b.denied(1, append(eight, "tenant=ninth")...)
	b.ReturnSlots(id, limiter.ReporterDone)
	b.counts(limiter.ReporterDone, limiter.SlotReturned, limiter.MaxReserved)
	b.ReturnSlots(id, limiter.ReporterDone)
	b.counts(limiter.ReporterDone, limiter.SlotGone, limiter.MaxReserved)
	b.want("uploads", "7", 3)
}

func TestALocalSlotIsReturnedWhereItWasTaken(t *testing.T) {
	b := newSlotBench(t)
	b.store.err = backend.ErrNotTaken
	one := b.allowed(1, "local=bob")
	b.allowed(1, "local=bob")
	b.denied(1, "local=bob") // half of 4
	other := newSlotBench(t)
	other.restart(t, inFlight, func(c *limiter.Config) { c.Process = 8 })
	other.ReturnSlots(one, limiter.ReporterLog)
	other.counts(limiter.ReporterLog, limiter.SlotForeign, 1)
	b.denied(1, "local=bob")
	b.store.err = nil
	b.ReturnSlots(one, limiter.ReporterLog) // the store works again, but does not have the slot
	b.counts(limiter.ReporterLog, limiter.SlotReturned, 1)
	b.store.err = backend.ErrNotTaken
	b.allowed(1, "local=bob")
	for _, id := range []string{b.allowed(1, "shade=bob"), b.allowed(1, "shade=bob"), b.allowed(1, "shade=bob")} {
		b.ReturnSlots(id, limiter.ReporterDone)
	}
	b.counts(limiter.ReporterDone, limiter.SlotReturned, 3)
}

// losing is a Store that decides, and loses some of its answers.
type losing struct {
	backend.Store
	answers int // how many batches lose their answers
}

func (s *losing) Submit(b *backend.Batch) {
	backend.Take(context.Background(), s.Store, b.Charges, b.Decisions)
	if s.answers--; s.answers >= 0 {
		for i := range b.Decisions {
			b.Decisions[i] = backend.Decision{Err: backend.ErrUnavailable}
		}
	}
	b.Done(b)
}

// The take was made, and its answer was lost. So was the answer of the first return. With an idempotency key the client
// can repeat the request, and gets its slot.
func TestASlotOfUnknownOutcomeIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSlotBench(t)
		store, repeats := &losing{Store: b.store}, stores.NewUndos(nil, time.Second)
		b.store = &faulty{Store: store}
		b.restart(t, inFlight, func(c *limiter.Config) { c.Repeater = repeats })
		store.answers = 2
		b.denied(1, "tenant=bob")
		time.Sleep(time.Minute)
		b.want("uploads", "bob", 3)
		store.answers = 1
		first, second := b.named("once", "uploads"), b.named("once", "uploads")
		if !first.Failed || second.Failed || second.Denied || !second.HasSlots() || first.SlotID() != second.SlotID() {
			t.Errorf("got %+v and %+v, want a failure and then the slot", first.Verdict, second.Verdict)
		}
		b.want("uploads", "bob", 1)
	})
}

// The answers of both limits were lost, and the store has a slot for a repetition. The limit calls denies that one.
func TestARepeatedDenialReturnsTheSlotOfAShadowLimit(t *testing.T) {
	b := newSlotBench(t)
	store := &losing{Store: b.store}
	b.store = &faulty{Store: store}
	b.restart(t, inFlight, func(c *limiter.Config) { c.Local = nil })
	b.allowed(1, "call=bob")
	store.answers = 2
	for _, failed := range []bool{true, false} {
		if c := b.named("once", "calls", "shade"); !c.Denied || c.Failed != failed {
			t.Errorf("got %+v, want a denial, failed: %v", c.Verdict, failed)
		}
	}
	b.want("shade", "bob", 4)
	b.named("in use", "tokens", "shade")
	b.store.err, b.store.limit = backend.ErrNotTaken, "tokens"
	if c := b.named("in use", "tokens", "shade"); !c.Denied || !c.Failed {
		t.Errorf("got %+v, want a denial because the store failed", c.Verdict)
	}
	b.want("shade", "bob", 2)
}

// The store took a slot under an idempotency key, its answer was lost, and the request was allowed a slot of this process.
// The return of that one returns the other one too.
func TestALocalSlotIsReturnedWithThatOfTheStore(t *testing.T) {
	b := newSlotBench(t)
	store := &losing{Store: b.store}
	b.store = &faulty{Store: store}
	b.restart(t, inFlight, func(*limiter.Config) {})
	for i, end := range []func(id string){
		func(id string) { b.ReturnSlots(id, limiter.ReporterLog) },
		func(id string) { b.allowed(0, "settle_end="+id) },
	} {
		store.answers = 1
		c := b.named(strconv.Itoa(i), "either")
		b.want("either", "bob", 2)
		if end(string(c.AppendID(nil))); c.Denied {
			t.Errorf("got %+v, want a slot of this process", c.Verdict)
		}
		b.want("either", "bob", 4)
		b.counts(limiter.ReporterSelf, limiter.SlotReturned, uint64(i+1))
	}
}
