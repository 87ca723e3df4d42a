package adjust

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

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

// The MAC must differ if bytes move from one part to the next.
func TestPartsOfASumDoNotRunIntoEachOther(t *testing.T) {
	c := NewChain([]byte("key"))
	if c.sum("entry", "ab", "c") == c.sum("entry", "a", "bc") || c.sum("a", "") == c.sum("a") {
		t.Error("two lists of parts have one sum")
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

// Sidecars of several versions share adjustments and their audit, so the IDs of targets and the signatures of entries must
// never change.
func TestIDsAndSignaturesStay(t *testing.T) {
	e := &Entry{At: 3, Operation: "o", Author: "ann", Reason: "launch", Target: "t"}
	if err := NewChain(nil).Next(Head{4, "mac"}, e); err != nil {
		t.Fatal(err)
	}
	one, all := Target{Domain: "edge", Limit: "l", Key: []string{"bob"}}, Target{Domain: "edge", Limit: "l", AllKeys: true}
	for _, test := range [][2]string{
		{one.ID(), "d806f031adf53f8dd0afcbcf"},
		{all.ID(), "4a534f8ae84cdbdd1f4f6e86"},
		{e.MAC, "f4ec69a8416765ea2c046cfcc1b8d62d03e3f9242a5b64f8c93748276d486424"},
	} {
		if test[0] != test[1] {
			t.Errorf("got %s, want %s", test[0], test[1])
		}
	}
}

func TestEachSecretSignsDifferently(t *testing.T) {
	seen := map[string]bool{}
	for _, secret := range []string{"", "a", "b"} {
		e := &Entry{Target: "t"}
		if err := NewChain([]byte(secret)).Next(Head{}, e); err != nil {
			t.Fatal(err)
		}
		seen[e.MAC] = true
	}
	if len(seen) != 3 {
		t.Errorf("3 secrets make %d signatures; want 3", len(seen))
	}
}
