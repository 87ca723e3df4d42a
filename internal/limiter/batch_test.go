package limiter_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const batched = `
domain: d
limits:
  jobs: {algorithm: leaky_bucket, rate: 5, period: 1s, capacity: 3, max_delay: 1s}
descriptors:
  - {key: a, rate_limit: {algorithm: token_bucket, rate: 5, period: 1s}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: s, shadow_mode: true, rate_limit: {algorithm: sliding_log, rate: 2, period: 1s}}
  - {key: q, quota_mode: true, rate_limit: {algorithm: sliding_window, rate: 2, period: 1s}}
  - {key: f, rate_limit: {unit: minute, requests_per_unit: 3, on_backend_failure: allow}}
  - {key: l, rate_limit: {unit: minute, requests_per_unit: 4, on_backend_failure: local, local_share: 50%}}
  - {key: e, rate_limit: {unit: minute, requests_per_unit: 3, on_backend_failure: error}}
  - {key: j, limit: jobs}
  - {key: u, rate_limit: {unlimited: true}}
`

func drawCall(t *rapid.T) *limiter.Call {
	c := &limiter.Call{}
	c.Request.Domain = rapid.SampledFrom([]string{"d", "d", "d", "elsewhere"}).Draw(t, "domain")
	c.Request.MaxDelay = rapid.SampledFrom([]algorithms.Micros{0, algorithms.Second}).Draw(t, "max delay")
	if rapid.IntRange(0, 5).Draw(t, "by name") == 0 {
		name := rapid.SampledFrom([]string{"jobs", "nowhere"}).Draw(t, "name")
		c.Limits = []limiter.NamedCharge{{Name: name, Key: []string{"1"}, Count: 1}}
		return c
	}
	for range rapid.IntRange(1, 3).Draw(t, "descriptors") {
		d := c.AddDescriptor()
		key := rapid.SampledFrom([]string{"a", "b", "s", "q", "f", "l", "e", "j", "u", "x"}).Draw(t, "key")
		d.Entries = []descriptors.Entry{{Key: key, Value: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value")}}
		d.Cost = rapid.Int64Range(-1, 3).Draw(t, "cost")
		if rapid.IntRange(0, 7).Draw(t, "override") == 0 {
			d.HasOverride, d.Override = true, limiter.Override{Rate: 2, Period: rapid.SampledFrom([]algorithms.Micros{0, algorithms.Second}).Draw(t, "period")}
		}
	}
	return c
}

func like(c *limiter.Call) *limiter.Call { return &limiter.Call{Request: c.Request} }

// described replaces pointers into a configuration by names.
func described(c *limiter.Call, err error) any {
	type result struct {
		Descriptor int
		Policy     string
		Key        string
		Cost       int64
		Decision   backend.Decision
		Outcome    limiter.Outcome
	}
	var results []result
	for _, r := range c.Results {
		o := result{r.Descriptor, "", string(r.Key), r.Cost, r.Decision, r.Outcome}
		if r.Policy != nil {
			o.Policy = r.Policy.Name
		}
		results = append(results, o)
	}
	v := c.Verdict
	return []any{fmt.Sprint(err), results, v.Statuses, v.Denied, v.WouldDeny, v.Failed, fmt.Sprint(v.Err), v.Never, v.RetryAfter, v.Delay}
}

func TestABatchAnswersLikeSeparateCalls(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		modes := limiter.Modes{Shadow: rapid.IntRange(0, 9).Draw(rt, "shadow") == 0, Quota: rapid.IntRange(0, 9).Draw(rt, "quota") == 0}
		alone, together := newBench(t, batched, modes), newBench(t, batched, modes)
		batch := together.NewBatch()
		for range rapid.IntRange(1, 5).Draw(rt, "batches") {
			alone.now += algorithms.Micros(rapid.Int64Range(0, 1_500_000).Draw(rt, "passed"))
			together.now = alone.now
			alone.store.err = nil
			if rapid.IntRange(0, 4).Draw(rt, "away") == 0 {
				alone.store.err = backend.ErrUnavailable
			}
			together.store.err = alone.store.err

			var calls, planned []*limiter.Call
			var want, errs []error
			for range rapid.IntRange(0, 6).Draw(rt, "calls") {
				calls = append(calls, drawCall(rt))
			}
			answers := make([]*limiter.Call, len(calls))
			for i, c := range calls {
				answers[i] = like(c)
				want = append(want, alone.Check(t.Context(), answers[i]))
			}
			batch.Reset()
			for _, c := range calls {
				ok, err := batch.Add(c)
				if errs = append(errs, err); ok {
					planned = append(planned, c)
				}
			}
			submit(rt, batch)
			for _, c := range planned {
				batch.Finish(c)
			}
			for i, c := range calls {
				if diff := cmp.Diff(described(answers[i], want[i]), described(c, errs[i]), cmpopts.EquateErrors(), cmpopts.EquateEmpty()); diff != "" {
					rt.Fatalf("call %d (- alone, + in a batch):\n%s; want no difference", i, diff)
				}
			}
		}
	})
}

// submit submits b to a store that decides at once.
func submit(t interface{ Fatal(args ...any) }, b *limiter.Batch) {
	done := 0
	b.Submit(time.Time{}, nil, func() { done++ })
	if done != 1 {
		t.Fatal(done, "calls of done, want 1")
	}
}

// pendingStore is a store that keeps batches until the test completes them.
type pendingStore struct{ batches []*backend.Batch }

func (s *pendingStore) Submit(b *backend.Batch) { s.batches = append(s.batches, b) }

func callOf(key string) *limiter.Call {
	c := &limiter.Call{}
	c.Request.Domain = "d"
	d := c.AddDescriptor()
	d.Entries, d.Cost = []descriptors.Entry{{Key: key, Value: "1"}}, 1
	return c
}

func newLimiterOn(t *testing.T, store backend.Store, observer limiter.Observer) *limiter.Limiter {
	t.Helper()
	l := limiter.New(store, limiter.Config{Local: memory.New(memory.Config{}), Observer: observer})
	l.Swap(compiled(t, batched))
	return l
}

// A batch contains all charges of its calls, with the deadline and the source. Some calls can be finished
// before done is called: those without charges, and those whose groups are all decided.
func TestABatchIsSubmittedOnce(t *testing.T) {
	store, calls := &pendingStore{}, []*limiter.Call{callOf("a"), callOf("b"), callOf("u"), callOf("f")}
	deadline, source := time.Unix(1, 0), &backend.Source{}
	known := knownStore{store, map[int]backend.Decision{1: {Decision: algorithms.Decision{Allowed: true}}, 2: {Err: backend.ErrNotTaken}}}
	batch := newLimiterOn(t, known, nil).NewBatch()
	for _, c := range calls {
		c.Canceled = new(atomic.Bool)
		if planned, err := batch.Add(c); !planned || err != nil {
			t.Fatalf("got %v %v; want planned and no error", planned, err)
		}
	}
	batch.Submit(deadline, source, func() {})
	b := store.batches[0]
	if len(store.batches) != 1 || len(b.Charges) != 3 || !b.Deadline.Equal(deadline) || b.Source != source || b.Charges[2].Canceled != calls[3].Canceled {
		t.Errorf("%d batches, %+v; want one, with 3 charges, the deadline, the source, and Canceled of the last call", len(store.batches), b)
	}
	var finished []bool
	for _, c := range calls {
		finished = append(finished, batch.Known(c))
	}
	// Local buckets may decide a failed call, so it must wait for done.
	if want := []bool{false, true, true, false}; !slices.Equal(finished, want) {
		t.Errorf("known %v, want %v", finished, want)
	}
	if batch.Finish(calls[1]); calls[1].Denied || len(calls[1].Statuses) != 1 {
		t.Errorf("got %+v; want allowed and 1 element", calls[1].Verdict)
	}
}

// knownStore is a Store that decides some charges before Submit returns.
type knownStore struct {
	next  backend.Store
	known map[int]backend.Decision
}

func (s knownStore) Submit(b *backend.Batch) {
	for i, d := range s.known {
		b.Decisions[i] = d
		b.Known[i].Store(true)
	}
	s.next.Submit(b)
}

func TestACanceledCallIsNotObserved(t *testing.T) {
	for _, c := range []struct{ canceled, failed, observed bool }{
		{false, false, true}, {false, true, true}, {true, false, true}, {true, true, false},
	} {
		store, o := &pendingStore{}, &counts{}
		batch := newLimiterOn(t, store, o).NewBatch()
		call := callOf("a")
		call.Canceled = new(atomic.Bool)
		if _, err := batch.Add(call); err != nil {
			t.Fatal(err)
		}
		batch.Submit(time.Time{}, nil, func() {})
		call.Canceled.Store(c.canceled)
		if c.failed {
			store.batches[0].Fail(backend.ErrNotTaken)
		} else {
			store.batches[0].Decisions[0].Allowed = true
			store.batches[0].Finish()
		}
		batch.Finish(call)
		if (o.calls > 0) != c.observed {
			t.Errorf("%+v: observed %d times; want %v", c, o.calls, c.observed)
		}
	}
}

type counts struct{ calls int }

func (o *counts) Swapped(*limiter.Snapshot) {}

func (o *counts) Observe(*limiter.Call) { o.calls++ }

func TestTheConfigurationChangesDuringABatch(t *testing.T) {
	const before = "domain: d\ndescriptors: [{key: k, rate_limit: {algorithm: token_bucket, rate: 5, period: 1h}}]\n"
	for name, c := range map[string]struct {
		after string
		want  string
	}{
		"another limit":   {"domain: d\ndescriptors: [{key: k, rate_limit: {algorithm: token_bucket, rate: 9, period: 1h}}]\n", "9"},
		"another key":     {"domain: d\ndescriptors: [{key: other, rate_limit: {algorithm: token_bucket, rate: 9, period: 1h}}]\n", "none"},
		"another domain":  {"domain: e\n", "no domain"},
		"the same limits": {before, "5"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, before)
			batch, after := b.NewBatch(), compiled(t, c.after)
			var calls []*limiter.Call
			var planned []bool
			add := func() {
				t.Helper()
				call := callOf("k")
				ok, err := batch.Add(call)
				if err != nil {
					t.Fatal(err)
				}
				calls, planned = append(calls, call), append(planned, ok)
			}
			add()
			b.Swap(after)
			add()
			submit(t, batch)
			for i, call := range calls {
				if planned[i] {
					batch.Finish(call)
				}
			}
			rate := func(call *limiter.Call) string {
				switch {
				case call.Verdict.Domain == nil:
					return "no domain"
				case len(call.Results) == 0:
					return "none"
				default:
					return fmt.Sprint(call.Results[0].Policy.Limit.Rate)
				}
			}
			if got := rate(calls[0]); got != "5" {
				t.Errorf("the first request: %s; want %q", got, "5")
			}
			if got := rate(calls[1]); got != c.want || calls[1].Snapshot != after || c.want != "no domain" && calls[1].Verdict.Domain != after.Domains["d"] {
				t.Errorf("the second request: %s, want %s of the new configuration", got, c.want)
			}
		})
	}
}

// A Batch calls done when the store has decided, and not when Submit returns. After Reset, it has no decisions of
// its former calls.
func TestABatchEndsWithItsStore(t *testing.T) {
	store := &pendingStore{}
	batch := newLimiterOn(t, store, nil).NewBatch()
	for range 2 {
		batch.Reset()
		c, done := callOf("a"), 0
		if planned, err := batch.Add(c); !planned || err != nil {
			t.Fatalf("planned %v, error %v", planned, err)
		}
		batch.Submit(time.Time{}, nil, func() { done++ })
		if done != 0 || batch.Known(c) {
			t.Errorf("done was called %d times, known %v, before the store has decided", done, batch.Known(c))
		}
		b := store.batches[len(store.batches)-1]
		b.Decisions[0].Allowed = true
		b.SetKnown(0, 1)
		if b.Finish(); done != 1 {
			t.Errorf("done was called %d times, want 1", done)
		}
		batch.Finish(c)
	}
}
