package algorithms_test

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// A Store outside of this module may encode a State in any format, here as JSON.
func TestASavedStateOfALimitThatSettlesIsExact(t *testing.T) {
	type saved struct {
		Value, At int64
		Peaks     []algorithms.Peak
	}
	rapid.Check(t, func(t *rapid.T) {
		limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 100, Period: algorithms.Second, Settles: true})
		if err != nil {
			t.Fatal(err)
		}
		var kept, loaded algorithms.State
		type open struct {
			at       algorithms.Micros
			reserved int64
		}
		var calls []open
		now := algorithms.Micros(1_000_000)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now += algorithms.Micros(rapid.Int64Range(0, 300_000).Draw(t, "pause"))
			charge := algorithms.Charge{Cost: rapid.Int64Range(1, 40).Draw(t, "cost")}
			if len(calls) > 0 && rapid.Bool().Draw(t, "settles") {
				i := rapid.IntRange(0, len(calls)-1).Draw(t, "call")
				charge = algorithms.Charge{Cost: charge.Cost - calls[i].reserved, ChargedAt: calls[i].at, Settle: true}
				calls = append(calls[:i], calls[i+1:]...)
			}
			var want, got algorithms.Decision
			kept, want = limit.Take(kept, now, charge)
			loaded, got = limit.Take(loaded, now, charge)
			if got != want {
				t.Fatalf("at %d, %+v: a State that was saved answers %+v, want %+v", now, charge, got, want)
			}
			if want.Allowed && !charge.Settle {
				calls = append(calls, open{now, charge.Cost})
			}
			text, err := json.Marshal(saved{loaded.Value, int64(loaded.At), loaded.Peaks.All()})
			if err != nil {
				t.Fatal(err)
			}
			var s saved
			if err := json.Unmarshal(text, &s); err != nil {
				t.Fatal(err)
			}
			loaded = algorithms.State{By: &limit, Value: s.Value, At: algorithms.Micros(s.At), Peaks: algorithms.NewPeaks(s.Peaks)}
		}
	})
	if algorithms.NewPeaks(nil) != nil || algorithms.NewPeaks([]algorithms.Peak{}) == nil {
		t.Error("only peaks that are unknown are nil")
	}
}
