package adjust

import (
	"slices"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestAProlongedAdjustmentIsADifference(t *testing.T) {
	until := func(at algorithms.Micros) *Set { return NewSet(Head{}, []*Adjustment{{ID: "a", Expires: at}}) }
	if got := Differences(until(1), until(2)); len(got) != 1 {
		t.Errorf("got %v; want one difference", got)
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

// Requests read a Set without a lock, so the removal of expired adjustments must not change it.
func TestTheRemovalOfExpiredAdjustmentsLeavesTheSetUnchanged(t *testing.T) {
	was := NewSet(Head{Version: 1}, []*Adjustment{{ID: "a"}, {ID: "b"}})
	if is := was.Without([]string{"a"}); is.Len() != 1 || is.Find("b") == nil || was.Len() != 2 {
		t.Errorf("%d are left, and %d in the set before; want b, and 2", is.Len(), was.Len())
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
