package weights

import (
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func compiled(t interface{ Fatal(...any) }, texts map[string]string) *Weights {
	byName := map[string]Weight{}
	for name, text := range texts {
		w, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		byName[name] = w
	}
	w, err := Compile(byName)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWeightedCosts(t *testing.T) {
	w := compiled(t, map[string]string{"input": "1", "cached": "1/10", "output": "4", "image": "0.25", "free": "0", "third": "1/3"})
	if got, want := w.String(), "cached: 1/10, free: 0, image: 1/4, input: 1, output: 4, third: 1/3"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, c := range []struct {
		costs map[string]int64
		want  int64
		err   string
	}{
		{map[string]int64{"input": 1200, "output": 300}, 2400, ""},
		{map[string]int64{"input": 1200, "cached": 1, "output": 300}, 2401, ""},
		{map[string]int64{"cached": 1, "third": 1}, 1, ""}, // 13/30, rounded up once, and not twice
		{map[string]int64{"third": 3}, 1, ""},
		{map[string]int64{"free": 1 << 53}, 0, ""},
		{map[string]int64{}, 0, ""},
		{map[string]int64{"input": 0, "third": 1}, 1, ""},
		{map[string]int64{"input": 1 << 53}, 1 << 53, ""},
		{map[string]int64{"input": 1 << 53, "cached": 1}, 0, "the sum of the weighted costs must be at most 2^53"},
		{map[string]int64{"output": 1 << 53}, 0, "the sum of the weighted costs must be at most 2^53"},
		{map[string]int64{"input": 1<<53 + 1}, 0, `"input" must be at most 2^53, but is 9007199254740993`},
		{map[string]int64{"input": -1}, 0, `"input" must be 0 or more, but is -1`},
		{map[string]int64{"x": 1, "z": 1, "y": 1, "w": 1}, 0, `"w" has no weight; known names are cached, free, image, input, output, third`}, // the alphabetically first name without a weight
		{map[string]int64{"inputs": 1, "input": 1}, 0, `"inputs" has no weight; known names are cached, free, image, input, output, third`},
	} {
		got, err := w.Cost(c.costs)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%v: %d, %v; want %d, %s", c.costs, got, err, c.want, c.err)
		}
	}
}

func TestWeightsThatAreRefused(t *testing.T) {
	for _, text := range []string{"", "-1", "+1", "1e3", "1/0", "1/", "/2", "1/2/3", ".", "1.", "0.1234567891", "0.5000000000", "1000000001", "1/1000000001", "99999999999999999999", "0x1", " 1", "1_0"} {
		if w, err := Parse(text); err == nil {
			t.Errorf("%q is parsed as %+v; want an error", text, w)
		}
	}
	for want, byName := range map[string]map[string]Weight{
		"must have 1 to 16 names": {},
		"has 17":                  equalWeights(Max + 1),
		"must have 1 to 64 bytes": {strings.Repeat("n", 65): {1, 1}},
		"bytes, but has 0":        {"": {1, 1}},
		"common denominator":      {"a": {1, 999999937}, "b": {1, 2}},
	} {
		if _, err := Compile(byName); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", byName, err, want)
		}
	}
}

func equalWeights(n int) map[string]Weight {
	byName := map[string]Weight{}
	for i := range n {
		byName[strings.Repeat("n", i+1)] = Weight{1, 1}
	}
	return byName
}

func TestWeightedCostsAreExact(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	rapid.Check(t, func(rt *rapid.T) {
		texts, costs := map[string]string{}, map[string]int64{}
		sum := new(big.Rat)
		for _, name := range names {
			above, below := rapid.Int64Range(0, 1e6).Draw(rt, "above"), rapid.Int64Range(1, 150).Draw(rt, "below")
			weight := big.NewRat(above, below)
			texts[name] = weight.RatString()
			costs[name] = rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, 1<<53)).Draw(rt, "cost")
			sum.Add(sum, weight.Mul(weight, new(big.Rat).SetInt64(costs[name])))
		}
		want, rest := new(big.Int).DivMod(sum.Num(), sum.Denom(), new(big.Int))
		if rest.Sign() > 0 {
			want.Add(want, big.NewInt(1))
		}
		got, err := compiled(rt, texts).Cost(costs)
		if fits := want.Cmp(big.NewInt(1<<53)) <= 0; fits != (err == nil) || fits && got != want.Int64() {
			rt.Fatalf("%v of %v: %d, %v; want %s", costs, texts, got, err, want)
		}
	})
}

func TestWeightedCostsOfManyBitsAreExact(t *testing.T) {
	texts := map[string]string{"large": "1000000000", "larger": "999999999", "fine": "1/1000000000"}
	w := compiled(t, texts)
	for _, n := range []int64{1, 7, 1_000_003, 4_503_599, 9_007_198} {
		costs := map[string]int64{"large": n, "larger": n, "fine": n}
		sum := new(big.Rat)
		for _, text := range texts {
			weight, _ := new(big.Rat).SetString(text)
			sum.Add(sum, weight.Mul(weight, big.NewRat(n, 1)))
		}
		want := new(big.Int).Neg(new(big.Int).Div(new(big.Int).Neg(sum.Num()), sum.Denom())) // rounded up
		got, err := w.Cost(costs)
		if err != nil != (want.Cmp(big.NewInt(maxExact)) > 0) || err == nil && want.Cmp(big.NewInt(got)) != 0 {
			t.Errorf("%d of each: %d, %v; want %s", n, got, err, want)
		}
	}
}

func TestWeightsAreReduced(t *testing.T) {
	for text, want := range map[string]Weight{"2/4": {1, 2}, "0.000000001": {1, 1e9}, "0.50": {1, 2}, "2000000000/2000000000": {1, 1}, "0/7": {0, 1}} {
		if w, err := Parse(text); err != nil || w != want {
			t.Errorf("%s: got %+v, %v; want %+v", text, w, err, want)
		}
	}
	if got := compiled(t, map[string]string{"half": "1/2"}).String(); got != "half: 1/2" {
		t.Errorf("got %s, want half: 1/2", got)
	}
}

func TestTheLargestWeightsAreAccepted(t *testing.T) {
	texts := map[string]string{strings.Repeat("n", MaxName): "1/1000000000"}
	for len(texts) < Max {
		texts[strings.Repeat("m", len(texts))] = "3/1000000000"
	}
	if got, err := compiled(t, texts).Cost(map[string]int64{strings.Repeat("n", MaxName): 1_000_000_001}); got != 2 || err != nil {
		t.Errorf("got %d, %v; want 2", got, err)
	}
}

// The sum is 2^64, which has one bit more than a uint64.
func TestASumOf64BitsIsTooMuch(t *testing.T) {
	w := compiled(t, map[string]string{"large": "2048"})
	if got, err := w.Cost(map[string]int64{"large": 1 << 53}); err == nil {
		t.Errorf("got %d, want an error", got)
	}
}
