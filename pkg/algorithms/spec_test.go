package algorithms

import (
	"testing"

	"pgregory.net/rapid"
)

func TestSpecOfLimitCompilesToIt(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				_, l := newDice(t).limit(k.kind)
				again, err := Compile(l.Spec())
				if err != nil {
					t.Fatalf("spec %+v of %+v: %v", l.Spec(), *l, err)
				}
				if again != *l {
					t.Fatalf("spec %+v\n of %+v\nis %+v", l.Spec(), *l, again)
				}
			})
		})
	}
}

func TestSpecOfLimitThatNeverAllows(t *testing.T) {
	epoch := Micros(0)
	l, err := Compile(Spec{Kind: FixedWindow, Period: Second, Start: &epoch})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Compile(l.Spec()); err != nil || again != l {
		t.Fatalf("got %+v, %v; want %+v", again, err, l)
	}
}

// A Spec with the default max_reserved would not compile if its capacity were raised.
func TestSpecOfLimitHasNoDefaults(t *testing.T) {
	for _, k := range []Kind{TokenBucket, FixedWindow} {
		if s := mustCompile(t, Spec{Kind: k, Rate: 5, Period: sec}).Spec(); s.MaxReserved != nil || s.Initial != nil || s.Penalty != nil || s.MaxDebt != nil {
			t.Errorf("%v: got %+v; want no max_reserved, initial, penalty and max_debt", k, s)
		}
		if s := mustCompile(t, Spec{Kind: k, Rate: 5, Period: sec, MaxReserved: new(int64(7)), Initial: new(int64(3))}).Spec(); s.MaxReserved == nil || *s.MaxReserved != 7 || s.Initial == nil || *s.Initial != 3 {
			t.Errorf("%v: got %+v; want max_reserved 7 and initial 3", k, s)
		}
	}
}
