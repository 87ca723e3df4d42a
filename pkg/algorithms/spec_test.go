package algorithms

import (
	"testing"

	"pgregory.net/rapid"
)

// The Spec of a Limit compiles to the same Limit, for random limits of every kind.
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
