package adjust

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/calendar"
)

const minute = 60 * algorithms.Second

func policy(t testing.TB, s algorithms.Spec) *descriptors.Policy {
	t.Helper()
	l, err := algorithms.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	return &descriptors.Policy{
		Domain: "edge", Name: "send_message", Limit: &l, Open: []int{0}, Extras: &descriptors.Extras{OpenKeys: []string{"user_id"}},
	}
}

func number(n int64) *int64 { return &n }

// limits has one limit, "send_message" of the domain "edge": 10 a minute, and at most 20 at once.
type limits struct{ p *descriptors.Policy }

func (l limits) Adjustable(domain, limit string) (string, []*descriptors.Policy, error) {
	if limit != l.p.Name || domain != "" && domain != l.p.Domain {
		return "", nil, fmt.Errorf("no limit is named %q", limit)
	}
	return l.p.Domain, []*descriptors.Policy{l.p}, nil
}

type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func service(t *testing.T, dir string, c *clock) (*Service, *Local) {
	t.Helper()
	k, err := NewLocal(dir, NewChain(nil), c.Now)
	if err != nil {
		t.Fatal(err)
	}
	p := policy(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Capacity: number(20)})
	return NewService(k, limits{p}, nil), k
}

func bob(c Change) Proposal {
	return Proposal{Target: Target{Limit: "send_message", Key: []string{"bob"}}, Change: c, For: 2 * time.Hour, Author: "ann", Reason: "launch"}
}

func newClock() *clock { return &clock{time.Date(2026, 3, 1, 16, 0, 0, 0, time.UTC)} }

func TestAnAdjustmentIsSetListedReplacedAndDeleted(t *testing.T) {
	ctx, c := context.Background(), newClock()
	s, _ := service(t, "", c)
	set, version, err := s.Set(ctx, bob(Change{Rate: number(100), Capacity: number(200)}))
	if err != nil || version != 1 {
		t.Fatalf("version %d, %v; want version 1 and no error", version, err)
	}
	want := "limit send_message of domain edge, key bob: token bucket: 100 per 1m, up to 200 at once, until 2026-03-01 18:00:00 UTC" +
		" (configured: token bucket: 10 per 1m, up to 20 at once); consumed units stay consumed"
	if set.Words != want {
		t.Errorf("words\n%s, want\n%s", set.Words, want)
	}
	const replaces = `; replaces the adjustment "rate 100, capacity 200" by ann (launch), which would have ended at 2026-03-01 18:00:00 UTC`
	if p, err := s.Preview(bob(Change{Factor: 10_000})); err != nil || !strings.HasSuffix(p.Words, replaces) {
		t.Errorf("a preview of the same target: %s, %v; want no error, and the end %s", p.Words, err, replaces)
	}
	set, _, err = s.Set(ctx, bob(Change{Factor: 10_000}))
	if err != nil || !strings.HasSuffix(set.Words, replaces) {
		t.Fatalf("the same target: %s, %v; want no error, and the end %s", set.Words, err, replaces)
	}
	all, version := s.List()
	if len(all) != 1 || version != 2 || all[0].Change.Factor != 10_000 || all[0].Left != 2*time.Hour {
		t.Fatalf("version %d, %+v; want version 2, and only the factor 10, for two hours", version, all)
	}
	if _, err := s.Delete(ctx, all[0].ID, "ann", "over", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Delete(ctx, all[0].ID, "ann", "over", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted twice: %v; want ErrNotFound", err)
	}
	entries, err := s.Audit(ctx, 0, 10)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d entries, %v; want 3 and no error", len(entries), err)
	}
	if last := entries[0]; last.After != nil || last.Before.Change.Factor != 10_000 || last.Author != "ann" || last.Reason != "over" || last.Version != 3 {
		t.Errorf("the newest entry is %+v; want the deletion of the factor 10 by ann, version 3", last)
	}
	if page, _ := s.Audit(ctx, 3, 1); len(page) != 1 || page[0].Version != 2 {
		t.Errorf("before version 3: %+v; want version 2 only", page)
	}
	if n, err := s.Verify(ctx); n != 3 || err != nil {
		t.Errorf("verified %d, %v; want 3 and no error", n, err)
	}
}

func TestAnAdjustmentExpiresByItself(t *testing.T) {
	c := newClock()
	s, k := service(t, "", c)
	set, _, err := s.Set(context.Background(), bob(Change{Block: true}))
	if err != nil {
		t.Fatal(err)
	}
	c.now = c.now.Add(2*time.Hour - time.Microsecond)
	if _, err := s.Find(set.ID); err != nil {
		t.Errorf("1 us before its end: %v; want no error", err)
	}
	c.now = c.now.Add(time.Microsecond)
	if _, err := s.Find(set.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("at its end: %v; want ErrNotFound", err)
	}
	if all, _ := s.List(); len(all) != 0 {
		t.Errorf("listed: %+v; want none", all)
	}
	if _, err := s.Delete(context.Background(), set.ID, "ann", "late", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted: %v; want ErrNotFound", err)
	}
	if _, _, err := s.Set(context.Background(), bob(Change{Unlimited: true})); err != nil || k.Set().Len() != 1 {
		t.Errorf("%d kept, %v; want only the new one, and no error", k.Set().Len(), err)
	}
}

func TestOfTwoOperatorsTheLastWinsUnlessAVersionIsExpected(t *testing.T) {
	ctx := context.Background()
	s, _ := service(t, "", newClock())
	seen := s.Version()
	if _, _, err := s.Set(ctx, bob(Change{Factor: 2000})); err != nil {
		t.Fatal(err)
	}
	late := bob(Change{Factor: 3000})
	late.Expect = &seen
	if _, _, err := s.Set(ctx, late); !errors.Is(err, ErrConflict) {
		t.Errorf("with an old version: %v; want ErrConflict", err)
	}
	late.Expect = nil
	if got, _, err := s.Set(ctx, late); err != nil || got.Change.Factor != 3000 {
		t.Errorf("got %+v, %v; want the factor 3000", got, err)
	}
	if entries, _ := s.Audit(ctx, 0, 10); len(entries) != 2 || entries[0].Before.Change.Factor != 2000 {
		t.Errorf("the audit: %+v; want both changes, the second with the factor 2 before it", entries)
	}
}

func TestMistakesNameTheRemedy(t *testing.T) {
	s, _ := service(t, "", newClock())
	for want, change := range map[string]func(*Proposal){
		"no limit is named \"sent_message\"":       func(p *Proposal) { p.Target.Limit = "sent_message" },
		"author is missing":                        func(p *Proposal) { p.Author = " " },
		"reason is missing":                        func(p *Proposal) { p.Reason = "" },
		"on one line":                              func(p *Proposal) { p.Reason = "a\nb" },
		"512 bytes":                                func(p *Proposal) { p.Reason = strings.Repeat("a", 513) },
		"every adjustment expires":                 func(p *Proposal) { p.For = 0 },
		"not both":                                 func(p *Proposal) { p.Until = time.Now() },
		"30 days":                                  func(p *Proposal) { p.For = MaxFor + time.Microsecond },
		"in the past":                              func(p *Proposal) { p.For, p.Until = 0, time.Unix(1, 0) },
		"state what to change":                     func(p *Proposal) { p.Change = Change{} },
		"exclude each other":                       func(p *Proposal) { p.Change.Block = true },
		"at least 1, is 0":                         func(p *Proposal) { p.Change = Change{Rate: number(0)} },
		"one key or for all keys":                  func(p *Proposal) { p.Target.AllKeys = true },
		"identified by 1 (user_id)":                func(p *Proposal) { p.Target.Key = []string{"a", "b"} },
		"the key has 0 values":                     func(p *Proposal) { p.Target.Key = nil },
		"4096 bytes":                               func(p *Proposal) { p.Target.Key = []string{strings.Repeat("a", 4097)} },
		"less than 1":                              func(p *Proposal) { p.Change = Change{Factor: 1} },
		"the largest number computed exactly":      func(p *Proposal) { p.Change = Change{Rate: number(math.MaxInt64)} },
		"the largest that fits is":                 func(p *Proposal) { p.Change = Change{Capacity: number(1 << 52)} },
		"the factor must be from 0.001 to 1000000": func(p *Proposal) { p.Change = Change{Factor: maxFactor + 1} },
	} {
		p := bob(Change{Rate: number(100)})
		change(&p)
		_, err := s.Preview(p)
		if _, ok := errors.AsType[*Mistake](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v; want a *Mistake that contains the quoted text", want, err)
		}
		if _, _, err := s.Set(context.Background(), p); err == nil {
			t.Errorf("%q was set", want)
		}
	}
	if s.Version() != 0 {
		t.Errorf("version %d; want 0", s.Version())
	}
}

func TestAFolderKeepsAdjustmentsAndTheirAudit(t *testing.T) {
	ctx, c, dir := context.Background(), newClock(), t.TempDir()
	s, _ := service(t, dir, c)
	hostile := Proposal{
		Target: Target{Limit: "send_message", Key: []string{"\xff\x00,\n" + strings.Repeat("k", 4000)}},
		Change: Change{Block: true}, For: time.Hour, Author: "ann", Reason: "attack",
	}
	empty := bob(Change{Factor: 1500})
	empty.Target.Key = []string{""}
	for _, p := range []Proposal{hostile, empty, bob(Change{Rate: number(7), Period: 2 * minute})} {
		if _, _, err := s.Set(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	again, k := service(t, dir, c)
	if d := Differences(s.keeper.Set(), k.Set()); len(d) > 0 || k.Set().Len() != 3 || k.Set().Head != s.keeper.Set().Head {
		t.Fatalf("after a restart: %d adjustments, of which %+v differ; want 3, and none", k.Set().Len(), d)
	}
	if n, err := again.Verify(ctx); n != 3 || err != nil {
		t.Errorf("verified %d, %v; want 3 and no error", n, err)
	}
	// These are the files after crashes: the adjustments were not written, and the last line of the audit is
	// incomplete.
	if err := os.Remove(filepath.Join(dir, setFile)); err != nil {
		t.Fatal(err)
	}
	if err := appendFile(filepath.Join(dir, auditFile), []byte(`{"mac":"ab","entr`)); err != nil {
		t.Fatal(err)
	}
	again, k = service(t, dir, c)
	if k.Set().Len() != 3 {
		t.Errorf("after a crash: %+v; want 3 adjustments", k.Set().All())
	}
	if _, _, err := again.Set(ctx, bob(Change{Block: true})); err != nil {
		t.Fatal(err)
	}
	if n, err := again.Verify(ctx); n != 4 || err != nil {
		t.Errorf("verified %d, %v; want 4 and no error", n, err)
	}
	again, _ = service(t, dir, c) // the new entry is a line of its own
	if n, err := again.Verify(ctx); n != 4 || err != nil {
		t.Errorf("after a restart: verified %d, %v; want 4 and no error", n, err)
	}
	for _, name := range []string{setFile, auditFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v, %v; want a file that only its owner may read and write (0600)", name, info.Mode(), err)
		}
	}
}

// Changed and removed entries of the audit must be detected, and so must entries and checkpoints that were signed with
// another key.
func TestTheChainShowsTampering(t *testing.T) {
	chain, entries, head := NewChain([]byte("secret")), []*Entry(nil), Head{}
	for i := range 6 {
		e := &Entry{Operation: fmt.Sprint(i), Author: "ann", Reason: "test", Target: "x"}
		if err := chain.Next(head, e); err != nil {
			t.Fatal(err)
		}
		entries, head = append(entries, e), Head{e.Version, e.MAC}
	}
	if err := chain.Broken(Checkpoint{}, entries, head); err != nil {
		t.Fatal(err)
	}
	trimmed := chain.Checkpoint(Head{entries[1].Version, entries[1].MAC})
	if err := chain.Broken(trimmed, entries[2:], head); err != nil {
		t.Errorf("after trimming: %v; want no error", err)
	}
	changed := *entries[3]
	changed.Body = []byte(strings.Replace(string(changed.Body), "ann", "bob", 1))
	unsigned := trimmed
	unsigned.Signature = NewChain(nil).Checkpoint(trimmed.Head).Signature
	for name, got := range map[string]error{
		"changed":              chain.Broken(Checkpoint{}, []*Entry{entries[0], entries[1], entries[2], &changed, entries[4], entries[5]}, head),
		"removed":              chain.Broken(Checkpoint{}, slices.Delete(slices.Clone(entries), 3, 4), head),
		"removed at the start": chain.Broken(Checkpoint{}, entries[2:], head),
		"removed at the end":   chain.Broken(Checkpoint{}, entries[:5], head),
		"another key":          NewChain(nil).Broken(Checkpoint{}, entries, head),
		"a false checkpoint":   chain.Broken(unsigned, entries[2:], head),
	} {
		if got == nil {
			t.Errorf("%s: not noticed; want an error", name)
		}
	}
}

func TestTheAuditIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("makes more than 10,000 changes")
	}
	ctx := context.Background()
	s, k := service(t, "", newClock())
	for range MaxEntries + 2*trimBy + 1 {
		if _, _, err := s.Set(ctx, bob(Change{Factor: 2000})); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := k.Verify(ctx); err != nil || n > MaxEntries+trimBy || n < MaxEntries {
		t.Errorf("%d entries, %v; want %d to %d and no error", n, err, MaxEntries, MaxEntries+trimBy)
	}
}

func TestThereIsABoundOnAdjustments(t *testing.T) {
	now := algorithms.Micros(1)
	var all []*Adjustment
	for i := range MaxAdjustments {
		a := &Adjustment{Target: Target{Domain: "d", Limit: "l", Key: []string{fmt.Sprint(i)}}, Expires: 10}
		a.ID = a.Target.ID()
		all = append(all, a)
	}
	set, chain := NewSet(Head{}, all), NewChain(nil)
	one := &Adjustment{Target: Target{Domain: "d", Limit: "l", AllKeys: true}, Change: Change{Block: true}, Author: "a", Reason: "r"}
	one.ID = one.Target.ID()
	o := Operation{Target: one.ID, After: one, For: time.Hour, Author: "a", Reason: "r"}
	if _, err := o.Entry(chain, set, now); err == nil || !strings.Contains(err.Error(), "10000 adjustments") {
		t.Errorf("one more: %v; want an error that contains \"10000 adjustments\"", err)
	}
	if _, err := o.Entry(chain, set, 10); err != nil {
		t.Errorf("after they have expired: %v; want no error", err)
	}
	same := *all[0]
	same.Change, same.Author, same.Reason = one.Change, "a", "r"
	if _, err := (&Operation{Target: same.ID, After: &same, For: time.Hour, Author: "a", Reason: "r"}).Entry(chain, set, now); err != nil {
		t.Errorf("in the place of another: %v; want no error", err)
	}
}

// An adjustment must be equal after it is written and read again, for all kinds of adjustments and any bytes
// in keys.
func TestAdjustmentsAreReadAsTheyWereWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := &Adjustment{
			Target:    Target{Domain: "edge", Limit: "l", Key: rapid.SliceOfN(rapid.String(), 0, 3).Draw(t, "key")},
			Algorithm: algorithms.Kind(rapid.IntRange(1, 6).Draw(t, "algorithm")), Author: "a", Reason: "r",
			Created: 1, Expires: algorithms.Micros(rapid.Int64Range(2, 1<<52).Draw(t, "expires")),
		}
		if a.Target.AllKeys = len(a.Target.Key) == 0; !a.Target.AllKeys {
			a.Target.Key[0] += string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		}
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 0:
			a.Change.Rate, a.Change.Period = number(rapid.Int64Range(1, 1<<53).Draw(t, "rate")), algorithms.Micros(rapid.Int64Range(1, 1<<50).Draw(t, "period"))
		case 1:
			a.Change.Factor = Factor(rapid.Int64Range(1, int64(maxFactor)).Draw(t, "factor"))
		case 2:
			a.Change.Block = true
		case 3:
			a.Change.Unlimited = true
		}
		a.ID = a.Target.ID()
		text, err := a.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var b Adjustment
		if err := b.UnmarshalJSON(text); err != nil || !a.equal(&b) {
			t.Fatalf("%s: got %+v, %v; want an equal change", text, b, err)
		}
	})
}

func TestAdjustedLimits(t *testing.T) {
	bucket := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute}
	with := func(change func(*algorithms.Spec)) algorithms.Spec {
		s := bucket
		change(&s)
		return s
	}
	for _, test := range []struct {
		name   string
		was    algorithms.Spec
		change Change
		want   algorithms.Spec
	}{
		{"a rate, and with it the capacity that was not configured", bucket, Change{Rate: number(50)}, with(func(s *algorithms.Spec) { s.Rate = 50 })},
		{"a rate, and the capacity stays", with(func(s *algorithms.Spec) { s.Capacity = number(20) }), Change{Rate: number(50)},
			with(func(s *algorithms.Spec) { s.Rate, s.Capacity = 50, number(20) })},
		{"a capacity below initial", with(func(s *algorithms.Spec) { s.Capacity, s.Initial = number(20), number(15) }), Change{Capacity: number(5)},
			with(func(s *algorithms.Spec) { s.Capacity, s.Initial = number(5), number(5) })},
		{"a factor", with(func(s *algorithms.Spec) { s.Capacity = number(15) }), Change{Factor: 1500},
			with(func(s *algorithms.Spec) { s.Rate, s.Capacity = 15, number(22) })},
		{"a factor of both rates", with(func(s *algorithms.Spec) { s.Minimum = &algorithms.Rate{Units: 2, Period: algorithms.Second} }), Change{Factor: 3000},
			with(func(s *algorithms.Spec) {
				s.Rate, s.Minimum = 30, &algorithms.Rate{Units: 6, Period: algorithms.Second}
			})},
		{"a queue", algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Period: minute, Capacity: number(4)}, Change{Factor: 2000},
			algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 10, Period: minute, Capacity: number(8)}},
		{"a period", bucket, Change{Period: 2 * minute}, with(func(s *algorithms.Spec) { s.Period = 2 * minute })},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := &Adjustment{Change: test.change}
			got, err := a.Apply(policy(t, test.was))
			if err != nil {
				t.Fatal(err)
			}
			if want := policy(t, test.want).Limit; *got.Limit != *want {
				t.Errorf("got %+v, want %+v", got.Limit, want)
			}
		})
	}
}

func TestShardsLeaseAndLocalShareFollowTheNumbers(t *testing.T) {
	spec := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 100, Period: minute}
	p := policy(t, spec)
	p.Extras.Shards, _ = algorithms.Split(spec, 4)
	p.Extras.Lease, p.Extras.LocalShare = &algorithms.Lease{Most: 10, For: 1000}, 0.2
	local, _ := algorithms.Compile(descriptors.Part(spec, 0.2))
	p.Extras.Local = &local
	got, err := (&Adjustment{Change: Change{Factor: 10_000}}).Apply(p)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, s := range got.Extras.Shards {
		sum += s.Capacity
	}
	if len(got.Extras.Shards) != 4 || sum != 1000 || got.Extras.Lease.Most != 100 || got.Extras.Local.Rate != 200 || p.Extras.Lease.Most != 10 {
		t.Errorf("shards hold %d, lease %+v, local %+v; want 4 shards of 1000 together, a lease of 100, and a local rate of 200", sum, got.Extras.Lease, got.Extras.Local)
	}
	if _, err := (&Adjustment{Change: Change{Rate: number(3)}}).Apply(p); err == nil || !strings.Contains(err.Error(), "4 shards") {
		t.Errorf("3 units on 4 shards: %v; want an error that contains \"4 shards\"", err)
	}
}

func TestAnAdjustmentOfAnotherAlgorithmIsIgnoredAndReported(t *testing.T) {
	window := policy(t, algorithms.Spec{Kind: algorithms.SlidingWindow, Rate: 10, Period: minute})
	a := &Adjustment{Change: Change{Factor: 2000}, Algorithm: algorithms.TokenBucket}
	if _, err := a.Apply(window); err == nil || err.Error() != "the limit is a sliding_window now; the adjustment was made for a token_bucket" {
		t.Errorf("got %v; want an error about the other algorithm", err)
	}
	a.Change = Change{Block: true}
	if got, err := a.Apply(window); err != nil || !got.Adjusted.Block {
		t.Errorf("a block applies to any algorithm: %v; want no error, and a block", err)
	}
	if _, err := (&Adjustment{Change: Change{Capacity: number(3)}}).Apply(window); err == nil {
		t.Error("a sliding window got a capacity; want an error")
	}
}

// If a fixed window has a calendar, the calendar sets its period. An adjustment can change the rate, but not the
// period.
func TestTheCalendarKeepsItsPeriod(t *testing.T) {
	day := policy(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Calendar: calendar.Day.In(time.UTC)})
	if _, err := (&Adjustment{Change: Change{Period: minute}}).Apply(day); err == nil || !strings.Contains(err.Error(), "the calendar sets the period") {
		t.Errorf("got %v; want an error that contains \"the calendar sets the period\"", err)
	}
	if got, err := (&Adjustment{Change: Change{Rate: number(20)}}).Apply(day); err != nil || got.Limit.Calendar == nil || got.Limit.Rate != 20 {
		t.Errorf("got %+v, %v; want no error, and the rate 20 in calendar windows", got, err)
	}
}

// Other sidecars must see that an adjustment was prolonged.
func TestAProlongedAdjustmentIsADifference(t *testing.T) {
	until := func(at algorithms.Micros) *Set { return NewSet(Head{}, []*Adjustment{{ID: "a", Expires: at}}) }
	if got := Differences(until(1), until(2)); len(got) != 1 {
		t.Errorf("got %v; want one difference", got)
	}
}

// An operator who gets an error must not find the change in force.
func TestAChangeThatCannotBeWrittenIsNotMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, k := service(t, dir, newClock())
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Set(t.Context(), bob(Change{Block: true})); err == nil || k.Set().Len() != 0 || k.Status().Err == nil {
		t.Errorf("got the error %v and %d adjustments, status %v; want errors and no adjustment", err, k.Set().Len(), k.Status().Err)
	}
}

func TestAnInvalidAdjustmentInTheFileIsAnError(t *testing.T) {
	dir := t.TempDir()
	a := &Adjustment{ID: "a", Target: Target{Domain: "d", Limit: "l"}, Change: Change{Block: true}, Expires: 2, Author: "ann"} // without a reason
	if err := WriteSet(dir, NewSet(Head{Version: 1}, []*Adjustment{a})); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSet(dir); err == nil || !strings.Contains(err.Error(), "reason is missing") {
		t.Errorf("got the error %v; want one that the reason is missing", err)
	}
}

func TestChangesAreReported(t *testing.T) {
	_, k := service(t, "", newClock())
	p := policy(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute})
	var reported []string
	s := NewService(k, limits{p}, func(e *Entry) { reported = append(reported, e.Reason) })
	shown, _, err := s.Set(t.Context(), bob(Change{Block: true}))
	if err != nil {
		t.Fatal(err)
	}
	stale := uint64(0)
	if _, err := s.Delete(t.Context(), shown.ID, "ann", "refused", &stale); err == nil {
		t.Error("a deletion with an old version returned no error")
	}
	if _, err := s.Delete(t.Context(), shown.ID, "ann", "over", nil); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(reported, []string{"launch", "over"}) {
		t.Errorf("reported %q, want the change and the deletion", reported)
	}
}

func TestEachDifferenceOfTwoSetsIsFound(t *testing.T) {
	of := func(id string, rate int64) *Adjustment {
		return &Adjustment{ID: id, Change: Change{Rate: number(rate)}}
	}
	a := NewSet(Head{}, []*Adjustment{of("equal", 1), of("changed", 2), of("deleted", 3)})
	b := NewSet(Head{}, []*Adjustment{of("equal", 1), of("changed", 4), of("added", 5)})
	for _, sets := range [][2]*Set{{a, b}, {b, a}} {
		var ids []string
		for _, d := range Differences(sets[0], sets[1]) {
			ids = append(ids, d.ID)
		}
		slices.Sort(ids)
		if !slices.Equal(ids, []string{"added", "changed", "deleted"}) {
			t.Errorf("got %v; want added, changed, deleted", ids)
		}
	}
}

func TestFactors(t *testing.T) {
	for text, want := range map[string]Factor{"10": 10_000, "0.5": 500, "1.001": 1001, "1000000": maxFactor, "0.001": 1} {
		if f, err := ParseFactor(text); f != want || err != nil || f.String() != text {
			t.Errorf("%s: got %d, %v, %s; want %d and the same text", text, f, err, f, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "1.", ".5", "0.0001", "1e3", "1000000.001", "99999999999999999999", "NaN"} {
		if f, err := ParseFactor(text); err == nil {
			t.Errorf("%q is %d; want an error", text, f)
		}
	}
}

func TestProposalsAreReadFromJSON(t *testing.T) {
	p, err := ParseProposal([]byte(`{"limit":"send_message","key_b64":["/wA="],"rate":100,"period":"1m30s","for":"2h","author":"ann","reason":"launch","version":7}`))
	if err != nil || p.Target.Key[0] != "\xff\x00" || *p.Change.Rate != 100 || p.Change.Period != 90*algorithms.Second || p.For != 2*time.Hour || *p.Expect != 7 {
		t.Errorf("got %+v, %v; want the values of the text", p, err)
	}
	text, err := p.MarshalJSON()
	if again, wrong := ParseProposal(text); err != nil || wrong != nil || again.Target.ID() != p.Target.ID() || again.For != p.For {
		t.Errorf("%s: got %v, %v; want an equal proposal", text, err, wrong)
	}
	for _, bad := range []string{`{"factr":2}`, `{"factor":0.0001}`, `{"period":"1"}`, `{"key":["a"],"key_b64":["YQ=="]}`, `{} {}`, `[]`, `{"for":"soon"}`, `{"period":"9223372036854775807w"}`} {
		if _, err := ParseProposal([]byte(bad)); err == nil {
			t.Errorf("%s was read; want an error", bad)
		}
	}
}

// TestMain keeps rapid from writing files beside the tests; a failure names its seed.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	m.Run()
}

// The audit must have an author and a reason for every change.
func TestDeletingNeedsAReason(t *testing.T) {
	s, _ := service(t, "", newClock())
	set, _, err := s.Set(context.Background(), bob(Change{Block: true}))
	if err != nil {
		t.Fatal(err)
	}
	for _, author := range [][2]string{{"", "over"}, {"ann", ""}, {"ann", " "}} {
		var mistake *Mistake
		if _, err := s.Delete(context.Background(), set.ID, author[0], author[1], nil); !errors.As(err, &mistake) {
			t.Errorf("author %q, reason %q: %v; want a *Mistake", author[0], author[1], err)
		}
	}
}

// Requests read a Set without a lock, so the removal of expired adjustments must not change it.
func TestTheSweepOfExpiredAdjustmentsLeavesTheSetInUse(t *testing.T) {
	was := NewSet(Head{Version: 1}, []*Adjustment{{ID: "a"}, {ID: "b"}})
	if is := was.Without([]string{"a"}); is.Len() != 1 || is.Find("b") == nil || was.Len() != 2 {
		t.Errorf("%d are left, and %d in the set before; want b, and 2", is.Len(), was.Len())
	}
}

func TestTargetsHaveTheirOwnIDs(t *testing.T) {
	seen := map[string]Target{}
	for _, target := range []Target{
		{Domain: "d", Limit: "l"}, {Domain: "d", Limit: "l", AllKeys: true}, {Domain: "d", Limit: "l", Key: []string{""}},
		{Domain: "d", Limit: "l", Key: []string{"a", "b"}}, {Domain: "d", Limit: "l", Key: []string{"ab"}}, {Domain: "d", Limit: "l", Key: []string{"a\x01b"}},
		{Domain: "dl"}, {Domain: "e", Limit: "l"}, {Domain: "d", Limit: "l", Key: []string{"all keys"}},
	} {
		id := target.ID()
		if other, twice := seen[id]; twice {
			t.Errorf("%+v and %+v have one ID", other, target)
		}
		seen[id] = target
	}
}

// The MAC must differ if bytes move from one part to the next.
func TestPartsOfASumDoNotRunIntoEachOther(t *testing.T) {
	c := NewChain([]byte("key"))
	if c.sum("entry", "ab", "c") == c.sum("entry", "a", "bc") || c.sum("a", "") == c.sum("a") {
		t.Error("two lists of parts have one sum")
	}
}
