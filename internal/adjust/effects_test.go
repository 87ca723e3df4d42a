package adjust

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// A block denies everything: it ends shadow mode and quota mode. The policy as configured stays as it is. Every adjusted
// policy refers to its adjustment.
func TestABlockEndsShadowAndQuotaMode(t *testing.T) {
	p := policy(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: minute})
	p.Shadow, p.Quota, p.Reference = true, true, true
	for _, c := range []Change{{Block: true}, {Unlimited: true}, {Factor: 2000}} {
		got, err := (&Adjustment{ID: "id", Change: c, Created: 3, Expires: 7}).Apply(p)
		if err != nil {
			t.Fatal(err)
		}
		want := descriptors.Adjusted{ID: "id", Expires: 7, Unlimited: c.Unlimited, Block: c.Block}
		if *got.Adjusted != want || got.Shadow == c.Block || got.Quota == c.Block || !got.Reference {
			t.Errorf("%s: got %+v, shadow mode %v, quota mode %v; want %+v, and both modes unless it is a block",
				c.String(), got.Adjusted, got.Shadow, got.Quota, want)
		}
	}
	if p.Adjusted != nil || !p.Shadow || !p.Quota {
		t.Error("the configured policy has changed")
	}
}

// A limit without numbers can be blocked. Other adjustments are mistakes. A block of a limit that allows nothing has no
// window to report.
func TestOnlyABlockAppliesToALimitWithoutNumbers(t *testing.T) {
	unlimited := &descriptors.Policy{Limit: &algorithms.Limit{}, Unlimited: true, Reference: true}
	zero := policy(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 0, Period: minute})
	zero.Reference = true
	for name, p := range map[string]*descriptors.Policy{"unlimited": unlimited, "rate 0": zero} {
		if got, err := (&Adjustment{Change: Change{Block: true}}).Apply(p); err != nil || got.Reference {
			t.Errorf("%s: a block: %v; want no error, and no window to report", name, err)
		}
		if _, err := (&Adjustment{Change: Change{Factor: 2000}}).Apply(p); err == nil || !strings.Contains(err.Error(), "no numbers to change") {
			t.Errorf("%s: a factor: %v; want an error with \"no numbers to change\"", name, err)
		}
	}
	if _, err := (&Adjustment{Change: Change{Unlimited: true}}).Apply(unlimited); err == nil {
		t.Error("an unlimited limit was adjusted to unlimited; want an error")
	}
}

// Policies share their Extras. An adjustment of one must not change the others.
func TestAnAdjustmentLeavesSharedExtrasAlone(t *testing.T) {
	spec := algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 100, Period: minute}
	p := policy(t, spec)
	local, err := algorithms.Compile(descriptors.Part(spec, 0.2))
	if err != nil {
		t.Fatal(err)
	}
	p.Extras.Lease, p.Extras.Local, p.Extras.LocalShare = &algorithms.Lease{Most: 30, For: 1000}, &local, 0.2
	got, err := (&Adjustment{Change: Change{Factor: 500}}).Apply(p)
	if err != nil {
		t.Fatal(err)
	}
	if p.Extras.Lease.Most != 30 || p.Extras.Local.Rate != 20 || got.Extras.Lease.Most != 15 || got.Extras.Local.Rate != 10 {
		t.Errorf("the lease is %d, adjusted %d; the local rate is %d, adjusted %d; want 30, 15, 20, 10",
			p.Extras.Lease.Most, got.Extras.Lease.Most, p.Extras.Local.Rate, got.Extras.Local.Rate)
	}
}

// Algorithms without a capacity refuse one. A leaky bucket keeps the length of its queue when its rate changes, also if
// the two numbers are equal. The initial units of a bucket are at most its capacity.
func TestTheCapacityOfAnAdjustedLimit(t *testing.T) {
	for _, kind := range []algorithms.Kind{algorithms.SlidingWindow, algorithms.SlidingLog} {
		p := policy(t, algorithms.Spec{Kind: kind, Rate: 10, Period: minute})
		if _, err := (&Adjustment{Change: Change{Capacity: number(3)}}).Apply(p); err == nil || !strings.Contains(err.Error(), "has no capacity") {
			t.Errorf("%s: %v; want an error with \"has no capacity\"", kind, err)
		}
	}
	queue := policy(t, algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 5, Period: minute, Capacity: number(5)})
	got, err := (&Adjustment{Change: Change{Rate: number(8)}}).Apply(queue)
	want := policy(t, algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 8, Period: minute, Capacity: number(5)})
	if err != nil || *got.Limit != *want.Limit {
		t.Errorf("got %+v, %v; want %+v", got, err, want.Limit)
	}
	initial := policy(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Initial: number(8)})
	got, err = (&Adjustment{Change: Change{Factor: 500}}).Apply(initial)
	want = policy(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 5, Period: minute, Initial: number(5)})
	if err != nil || *got.Limit != *want.Limit {
		t.Errorf("got %+v, %v; want %+v", got, err, want.Limit)
	}
}

func TestScaleIsExactAndBounded(t *testing.T) {
	for _, test := range []struct{ n, by, of, want int64 }{
		{7, 1500, 1000, 10},
		{math.MaxInt64, 3, 3, math.MaxInt64},
		{math.MaxInt64, 2, 3, 6148914691236517204},
		{math.MaxInt64, 2, 1, math.MaxInt64},
		{math.MaxInt64, 1000, 1, math.MaxInt64},
		{1 << 62, 4, 1, math.MaxInt64},
		{1 << 62, 3, 1, math.MaxInt64},
	} {
		if got := scale(test.n, test.by, test.of); got != test.want {
			t.Errorf("%d * %d / %d is %d, want %d", test.n, test.by, test.of, got, test.want)
		}
	}
}

func TestAnAdjustmentHasNoEffectAtItsExpiry(t *testing.T) {
	ctx, c := context.Background(), newClock()
	s, k := service(t, "", c)
	set, _, err := s.Set(ctx, bob(Change{Factor: 2000}))
	if err != nil {
		t.Fatal(err)
	}
	if created := algorithms.Micros(c.now.UnixMicro()); set.Created != created || set.Expires != created+120*minute {
		t.Errorf("created %d, expires %d; want %d, and two hours later", set.Created, set.Expires, created)
	}
	c.now = c.now.Add(2 * time.Hour)
	if all, _ := s.List(); len(all) > 0 || len(s.InForce()) > 0 {
		t.Errorf("%d adjustments are listed, want none", len(all))
	}
	if _, err := s.Find(set.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("found: %v; want ErrNotFound", err)
	}
	if _, err := s.Delete(ctx, set.ID, "ann", "over", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted: %v; want ErrNotFound", err)
	}
	if p, err := s.Preview(bob(Change{Factor: 3000})); err != nil || strings.Contains(p.Words, "replaces") {
		t.Errorf("the preview of another adjustment is %q, %v; want nothing replaced", p.Words, err)
	}
	other := bob(Change{Factor: 3000})
	other.Target.Key = []string{"eve"}
	if _, _, err := s.Set(ctx, other); err != nil || k.Set().Len() != 1 {
		t.Errorf("%d adjustments after the next change, %v; want that one only", k.Set().Len(), err)
	}
}

func TestAnUnexpectedVersionChangesNothing(t *testing.T) {
	ctx := context.Background()
	s, _ := service(t, "", newClock())
	logged := 0
	s.changed = func(*Entry) { logged++ }
	set, _, err := s.Set(ctx, bob(Change{Factor: 2000}))
	if err != nil {
		t.Fatal(err)
	}
	old := uint64(0)
	if _, err := s.Delete(ctx, set.ID, "ann", "over", &old); !errors.Is(err, ErrConflict) {
		t.Errorf("deleted: %v; want ErrConflict", err)
	}
	p := bob(Change{Factor: 3000})
	p.Expect = &old
	if _, _, err := s.Set(ctx, p); !errors.Is(err, ErrConflict) {
		t.Errorf("set: %v; want ErrConflict", err)
	}
	if _, err := s.Delete(ctx, set.ID, " ", "over", nil); err == nil || !strings.Contains(err.Error(), "author is missing") {
		t.Errorf("deleted without an author: %v; want a mistake", err)
	}
	if s.Version() != 1 || logged != 1 {
		t.Errorf("version %d, and %d changes are logged; want 1 of both", s.Version(), logged)
	}
	long := bob(Change{Factor: 3000})
	long.For = math.MaxInt64
	if _, err := s.Preview(long); err == nil || !strings.Contains(err.Error(), "30 days") {
		t.Errorf("for 292 years: %v; want a mistake with \"30 days\"", err)
	}
	long.For = -time.Second
	if _, err := s.Preview(long); err == nil || !strings.Contains(err.Error(), "every adjustment expires") {
		t.Errorf("for a negative time: %v; want a mistake with \"every adjustment expires\"", err)
	}
}

// If the audit cannot be written, the change is not made. The next change writes the whole file again, because it may end
// in an incomplete line.
func TestAChangeThatIsNotInTheAuditIsNotMade(t *testing.T) {
	ctx, c, dir := context.Background(), newClock(), t.TempDir()
	s, k := service(t, dir, c)
	if _, _, err := s.Set(ctx, bob(Change{Factor: 2000})); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, auditFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil { // a folder in place of the file cannot be written
		t.Fatal(err)
	}
	if _, _, err := s.Set(ctx, bob(Change{Factor: 3000})); err == nil || s.Version() != 1 || k.Status().Err == nil {
		t.Errorf("version %d, the error %v, the status %v; want version 1, and an error in both", s.Version(), err, k.Status().Err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(text, []byte(`{"mac":"ab","en`)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Set(ctx, bob(Change{Factor: 3000})); err != nil || k.Status().Err != nil {
		t.Fatalf("got %v, and the status %v; want no error", err, k.Status().Err)
	}
	again, _ := service(t, dir, c)
	if n, err := again.Verify(ctx); n != 2 || err != nil {
		t.Errorf("verified %d, %v; want 2 and no error", n, err)
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*.json*.*")); err != nil || len(names) > 0 {
		t.Errorf("temporary files are left: %v, %v", names, err)
	}
}

func TestADamagedFileOfAdjustmentsIsRefused(t *testing.T) {
	dir, bad := t.TempDir(), valid()
	bad.Expires = bad.Created
	if err := WriteSet(dir, NewSet(Head{1, "mac"}, []*Adjustment{bad})); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSet(dir); err == nil || !strings.Contains(err.Error(), "in the past") {
		t.Errorf("got %v; want an error with \"in the past\"", err)
	}
}

func TestTheOrderOfASet(t *testing.T) {
	var all []*Adjustment
	for _, target := range []Target{
		{Domain: "b", Limit: "a"},
		{Domain: "a", Limit: "b", Key: []string{"x"}},
		{Domain: "a", Limit: "b", Key: []string{"w"}},
		{Domain: "a", Limit: "c"},
	} {
		all = append(all, &Adjustment{ID: target.ID(), Target: target, Expires: 5})
	}
	set := NewSet(Head{7, "mac"}, all)
	for i, want := range []*Adjustment{all[2], all[1], all[3], all[0]} {
		if got := set.All()[i]; got != want {
			t.Errorf("at %d: got %s, want %s", i, got.Target.String(), want.Target.String())
		}
	}
	for now, want := range map[algorithms.Micros]int{4: 0, 5: 3} {
		if got := len(set.Expired(now, 3)); got != want {
			t.Errorf("at the time %d, %d of at most 3 have expired, want %d", now, got, want)
		}
	}
	if rest := set.Without(set.Expired(5, 3)); rest.Head != set.Head || rest.Len() != 1 {
		t.Errorf("the head is %+v, of %d adjustments; want %+v, 1", rest.Head, rest.Len(), set.Head)
	}
}

func TestWatchStartsWithThePresentSet(t *testing.T) {
	s, k := service(t, "", newClock())
	var versions []uint64
	if _, _, err := s.Set(context.Background(), bob(Change{Factor: 2000})); err != nil {
		t.Fatal(err)
	}
	k.Watch(func(set *Set) { versions = append(versions, set.Head.Version) })
	if _, _, err := s.Set(context.Background(), bob(Change{Factor: 3000})); err != nil {
		t.Fatal(err)
	}
	if len(versions) != 2 || versions[0] != 1 || versions[1] != 2 {
		t.Errorf("the versions are %v, want 1 and 2", versions)
	}
}

// When old entries are trimmed, the file of the audit starts with a checkpoint, also after a restart.
func TestTheFileOfATrimmedAuditStartsWithACheckpoint(t *testing.T) {
	c, dir := newClock(), t.TempDir()
	s, k := service(t, dir, c)
	head := Head{}
	for range MaxEntries + trimBy {
		e := &Entry{At: 1, Operation: "o", Author: "ann", Reason: "launch", Target: "t"}
		if err := k.chain.Next(head, e); err != nil {
			t.Fatal(err)
		}
		k.entries, head = append(k.entries, e), Head{e.Version, e.MAC}
	}
	k.set.Store(NewSet(head, nil))
	if err := writeFile(dir, auditFile, auditText(k.from, k.entries)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Set(context.Background(), bob(Change{Factor: 2000})); err != nil {
		t.Fatal(err)
	}
	again, _ := service(t, dir, c)
	if n, err := again.Verify(context.Background()); n != MaxEntries+1 || err != nil {
		t.Errorf("verified %d entries, %v; want %d, and no error", n, err, MaxEntries+1)
	}
}

// A key must have as many values as the buckets of a descriptor that uses the limit. Where the whole descriptor
// identifies them, keys and values alternate.
func TestAKeyHasTheValuesOfABucket(t *testing.T) {
	named := &descriptors.Policy{Extras: &descriptors.Extras{Named: true}}
	whole, open := &descriptors.Policy{Whole: true}, &descriptors.Policy{Open: []int{0}}
	for _, test := range []struct {
		policies []*descriptors.Policy
		values   int
		ok       bool
	}{
		{[]*descriptors.Policy{named}, 3, true},
		{[]*descriptors.Policy{named, open}, 0, false},
		{[]*descriptors.Policy{named, open}, 1, true},
		{[]*descriptors.Policy{named, whole}, 1, false},
		{[]*descriptors.Policy{named, whole}, 2, true},
		{[]*descriptors.Policy{open, whole}, 1, true},
	} {
		err := reaches(&Target{Limit: "l", Key: make([]string, test.values)}, test.policies)
		if (err == nil) != test.ok {
			t.Errorf("%d policies and %d values: got %v; want an error: %v", len(test.policies), test.values, err, !test.ok)
		}
	}
}

func TestAKeyThatIsNotTextIsNotShownAsText(t *testing.T) {
	for want, key := range map[bool][]string{true: {"a", "b"}, false: {"\xff", "b"}} {
		a := Adjustment{Target: Target{Key: key}}
		if f := a.form(); (f.Key != nil) != want || len(f.KeyB64) != 2 {
			t.Errorf("%q is shown as %q; want it shown: %v", key, f.Key, want)
		}
	}
}

func TestTheBodyOfAProposalIsReadStrictly(t *testing.T) {
	const start = `{"limit": "l", "author": "a", "reason": "r", "for": "1h", "rate": 5`
	for text, want := range map[string]string{
		start + `}`:            "",
		start + `} {}`:         "text after the JSON object",
		start + `, "size": 1}`: "unknown field",
		start + `, "key": ["a"], "key_b64": ["YQ=="]}`: "give the key once",
		start + `, "version": 7}`:                      "",
	} {
		if _, err := ParseProposal([]byte(text)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v; want an error with %q", text, err, want)
		}
	}
	version := uint64(7)
	until := time.Date(2026, 3, 1, 16, 0, 0, 0, time.UTC)
	for _, p := range []Proposal{
		{Target: Target{Limit: "l", Key: []string{"\xff"}}, Change: Change{Block: true}, For: 90 * time.Minute, Author: "a", Reason: "r", Expect: &version},
		{Target: Target{Limit: "l", AllKeys: true}, Change: Change{Period: 7 * minute}, Until: until, Author: "a", Reason: "r"},
	} {
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseProposal(text)
		if err != nil || got.For != p.For || !got.Until.Equal(p.Until) || (got.Expect == nil) != (p.Expect == nil) || got.Change.Period != p.Change.Period ||
			strings.Join(got.Target.Key, ",") != strings.Join(p.Target.Key, ",") {
			t.Errorf("%s is read as %+v, %v; want %+v", text, got, err, p)
		}
	}
	if got := Duration(math.MaxInt64); got != 36_500*24*time.Hour {
		t.Errorf("the longest span is %v, want 100 years", got)
	}
}

func TestTheAuditIsTrimmedAtItsBound(t *testing.T) {
	for _, test := range []struct{ checkpoint, added, want uint64 }{
		{0, MaxEntries + trimBy, 0}, {0, MaxEntries + trimBy + 1, trimBy}, {trimBy, MaxEntries + 2*trimBy, 0}, {trimBy, MaxEntries + 2*trimBy + 1, 2 * trimBy},
	} {
		if got := TrimTo(test.checkpoint, test.added); got != test.want {
			t.Errorf("after checkpoint %d, entry %d: trimmed up to %d, want %d", test.checkpoint, test.added, got, test.want)
		}
	}
}

// A gap in the version numbers is an error, even if the signatures of the entries fit.
func TestAMissingNumberBreaksTheChain(t *testing.T) {
	chain, first, third := NewChain([]byte{}), &Entry{Target: "t"}, &Entry{Target: "t"}
	if err := chain.Next(Head{}, first); err != nil {
		t.Fatal(err)
	}
	if err := chain.Next(Head{2, first.MAC}, third); err != nil {
		t.Fatal(err)
	}
	if err := chain.Broken(Checkpoint{}, []*Entry{first, third}, Head{3, third.MAC}); err == nil || !strings.Contains(err.Error(), "entry 2 is missing") {
		t.Errorf("got %v; want an error with \"entry 2 is missing\"", err)
	}
	if err := NewChain(nil).Broken(Checkpoint{}, []*Entry{first}, Head{1, first.MAC}); err != nil {
		t.Errorf("an empty key is another key than none: %v", err)
	}
}

// The incomplete last line that a crash has left is removed, so that the next entry starts a line.
func TestAnIncompleteLineIsRemovedFromTheAudit(t *testing.T) {
	ctx, c, dir := context.Background(), newClock(), t.TempDir()
	s, _ := service(t, dir, c)
	for factor := range Factor(3) {
		if _, _, err := s.Set(ctx, bob(Change{Factor: 2000 + factor})); err != nil {
			t.Fatal(err)
		}
		if err := appendFile(filepath.Join(dir, auditFile), []byte(`{"mac":"ab","en`)); err != nil {
			t.Fatal(err)
		}
		s, _ = service(t, dir, c)
		if n, err := s.Verify(ctx); n != int(factor)+1 || err != nil {
			t.Errorf("verified %d, %v; want %d and no error", n, err, factor+1)
		}
	}
}

func TestAFailedWriteLeavesNoTemporaryFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, setFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(dir, setFile, []byte("{}")); err == nil {
		t.Error("a file replaced a folder; want an error")
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*.*.*")); err != nil || len(names) > 0 {
		t.Errorf("the files %v are left, %v; want none", names, err)
	}
}

func TestAnEntryIsReadAsItWasWritten(t *testing.T) {
	chain := NewChain(nil)
	e := &Entry{At: 3, Operation: "o", Author: "ann", Reason: "launch", Target: "t", Before: valid(), After: valid()}
	e.Before.ID, e.After.ID = e.Before.Target.ID(), e.After.Target.ID()
	if err := chain.Next(Head{4, "mac"}, e); err != nil {
		t.Fatal(err)
	}
	got, err := ParseEntry(e.Body, e.MAC)
	if err != nil || got.Version != 5 || got.At != 3 || got.Operation != "o" || got.Author != "ann" || got.Reason != "launch" || got.Target != "t" || got.MAC != e.MAC ||
		!got.Before.equal(e.Before) || !got.After.equal(e.After) {
		t.Errorf("got %+v, %v; want %+v", got, err, e)
	}
	from := chain.Checkpoint(Head{4, "mac"})
	if err := chain.Broken(from, []*Entry{e}, Head{5, e.MAC}); err != nil {
		t.Error(err)
	}
	if err := chain.Broken(from, []*Entry{e}, Head{5, "other"}); err == nil {
		t.Error("the head has another signature than the newest entry; want an error")
	}
}
