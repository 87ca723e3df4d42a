package adjust

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestAnAdjustmentIsSetListedReplacedAndDeleted(t *testing.T) {
	ctx, c := context.Background(), newClock()
	s, _ := service(c)
	set, version, err := s.Set(ctx, bob(Change{Rate: number(100), Capacity: number(200)}))
	if err != nil || version != 1 {
		t.Fatalf("version %d, %v; want version 1 and no error", version, err)
	}
	if want := "limit send_message of domain edge, key bob: rate 100, capacity 200"; set.Words != want {
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
	entries := s.Audit(10)
	if len(entries) != 3 {
		t.Fatalf("%d entries; want 3", len(entries))
	}
	if last := entries[0]; last.After != nil || last.Before.Change.Factor != 10_000 || last.Author != "ann" || last.Reason != "over" || last.Version != 3 {
		t.Errorf("the newest entry is %+v; want the deletion of the factor 10 by ann, version 3", last)
	}
	for i, e := range entries {
		if len(e.ID) != 32 || i > 0 && e.ID == entries[i-1].ID {
			t.Errorf("version %d: the operation is %q; want 32 hexadecimal digits of its own", e.Version, e.ID)
		}
	}
	if one := s.Audit(1); len(one) != 1 || one[0] != entries[0] {
		t.Errorf("one entry: %+v; want the newest", one)
	}
}

// The bounds that do not depend on the service are in TestTheBoundsOfAnAdjustment.
func TestMistakesNameTheRemedy(t *testing.T) {
	s, _ := service(newClock())
	for want, change := range map[string]func(*Proposal){
		"no limit is named \"sent_message\"":   func(p *Proposal) { p.Target.Limit = "sent_message" },
		"reason is missing":                    func(p *Proposal) { p.Reason = "" },
		"every adjustment expires":             func(p *Proposal) { p.For = 0 },
		"not both":                             func(p *Proposal) { p.Until = time.Now() },
		"30 days":                              func(p *Proposal) { p.For = MaxFor + 1 },
		"at most 30 days":                      func(p *Proposal) { p.For = math.MaxInt64 },
		"state the duration of the adjustment": func(p *Proposal) { p.For = -1 },
		"in the past":                          func(p *Proposal) { p.For, p.Until = 0, time.Unix(1, 0) },
		"state what to change":                 func(p *Proposal) { p.Change = Change{} },
		"identified by 1 (user_id)":            func(p *Proposal) { p.Target.Key = []string{"a", "b"} },
		"the key has 0 values":                 func(p *Proposal) { p.Target.Key = nil },
		"less than 1":                          func(p *Proposal) { p.Change = Change{Factor: 1} },
		"the largest number computed exactly":  func(p *Proposal) { p.Change = Change{Rate: number(math.MaxInt64)} },
		"the largest that fits is":             func(p *Proposal) { p.Change = Change{Capacity: number(1 << 52)} },
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
	if _, version := s.List(); version != 0 {
		t.Errorf("version %d; want 0", version)
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
	set := NewSet(Head{}, all)
	one := &Adjustment{Target: Target{Domain: "d", Limit: "l", AllKeys: true}, Change: Change{Block: true}, Author: "a", Reason: "r"}
	one.ID = one.Target.ID()
	o := Operation{Entry: Entry{Author: "a", Reason: "r", Target: one.ID, After: one}, For: Span(60 * minute)}
	if _, err := o.entry(set, now); err == nil || !strings.Contains(err.Error(), "10000 adjustments") {
		t.Errorf("one more: %v; want an error that contains \"10000 adjustments\"", err)
	}
	if _, err := o.entry(set, 10); err != nil {
		t.Errorf("after they have expired: %v; want no error", err)
	}
	same := *all[0]
	same.Change, same.Author, same.Reason = one.Change, "a", "r"
	if _, err := (&Operation{Entry: Entry{Author: "a", Reason: "r", Target: same.ID, After: &same}, For: Span(60 * minute)}).entry(set, now); err != nil {
		t.Errorf("in the place of another: %v; want no error", err)
	}
}

func TestAnAdjustmentHasNoEffectAtItsExpiry(t *testing.T) {
	ctx, c := context.Background(), newClock()
	s, k := service(c)
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
	s, _ := service(newClock())
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
	for want, by := range map[string][2]string{"author is missing": {" ", "over"}, "reason is missing": {"ann", ""}} {
		_, err := s.Delete(ctx, set.ID, by[0], by[1], nil)
		if _, is := errors.AsType[*Mistake](err); !is || !strings.Contains(err.Error(), want) {
			t.Errorf("deleted by %q, because %q: %v; want a *Mistake with %q", by[0], by[1], err, want)
		}
	}
	if _, version := s.List(); version != 1 || logged != 1 {
		t.Errorf("version %d, and %d changes are logged; want 1 of both", version, logged)
	}
}

func TestAnAdjustmentWithoutALimitIsShownAsIgnored(t *testing.T) {
	s, k := service(newClock())
	set, _, err := s.Set(t.Context(), bob(Change{Factor: 2000}))
	if err != nil {
		t.Fatal(err)
	}
	removed := tenPerMinute()
	removed.name = "another"
	for _, test := range []struct {
		limits         Limits
		words, ignored string
	}{
		{s.limits, set.Words, ""},
		{removed, "", `no limit is named "send_message"`},
	} {
		got, err := NewService(k, test.limits, nil).Find(set.ID)
		if err != nil || got.Words != test.words || got.Ignored != test.ignored {
			t.Errorf("got %q, ignored %q, %v; want %q, ignored %q", got.Words, got.Ignored, err, test.words, test.ignored)
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var fields struct {
			ID, Words, Ignored string
			Left               int64 `json:"left_s"`
		}
		if err := json.Unmarshal(text, &fields); err != nil || fields.ID != set.ID || fields.Words != test.words || fields.Ignored != test.ignored || fields.Left != 7200 {
			t.Errorf("%s: %v; want the words %q, ignored %q, and 7,200 s left", text, err, test.words, test.ignored)
		}
	}
}

func TestAnAdjustmentUntilATime(t *testing.T) {
	c := newClock()
	s, _ := service(c)
	p := bob(Change{Period: Span(2 * minute)})
	p.For, p.Until, p.Expect = 0, c.now.Add(time.Hour), new(uint64(0))
	got, version, err := s.Set(t.Context(), p)
	if err != nil || version != 1 || got.Left != time.Hour || got.Expires != algorithms.Micros(p.Until.UnixMicro()) {
		t.Errorf("got %+v, version %d, %v; want an hour", got, version, err)
	}
	if _, _, err := s.Set(t.Context(), p); !errors.Is(err, ErrConflict) {
		t.Errorf("with the version before: got %v; want ErrConflict", err)
	}
	if _, err := s.Find("unknown"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown ID: got %v; want ErrNotFound", err)
	}
}
