// Package weights converts costs in several kinds of units, such as input and output tokens, to units of one
// limit. It does no I/O.
package weights

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Weight is the cost of one unit of a kind: Parts/Of units of the limit.
type Weight struct{ Parts, Of int64 }

// Weights has the costs of several kinds of units, such as input and output tokens, in units of one limit. It
// is immutable.
type Weights struct {
	names       []string // the names of the kinds, sorted
	parts       []int64  // the cost of a unit of each kind, as a numerator over denominator
	denominator int64
}

const (
	// Max bounds the number of kinds in a limit. MaxName bounds the name of a kind, in bytes.
	Max, MaxName = 16, 64
	// maxExact is the largest cost. Redis scripts compute with doubles, which represent all whole numbers up
	// to 2^53 exactly.
	maxExact = 1 << 53
	// maxWeight bounds the numerator, the denominator and the common denominator of weights. So the sum of Max
	// products with costs of at most 2^53 has less than 128 bits: 4 + 53 + 2*30 bits.
	maxWeight = 1e9
)

// Parse parses a whole number, a decimal fraction with at most 9 digits after the point, or a fraction, such as 4,
// 0.1 or 1/10. The result is in lowest terms.
func Parse(text string) (Weight, error) {
	wrong := fmt.Errorf("%q must be a whole number, a decimal fraction or a fraction of 0 or more, such as 4, 0.1 or 1/10", text)
	above, below, isFraction := strings.Cut(text, "/")
	w := Weight{Of: 1}
	if !isFraction {
		whole, part, isDecimal := strings.Cut(text, ".")
		if isDecimal && (part == "" || len(part) > 9) {
			return Weight{}, wrong
		}
		for range part {
			w.Of *= 10
		}
		above, below = whole+part, strconv.FormatInt(w.Of, 10)
	}
	var err error
	if w.Parts, err = digits(above); err != nil {
		return Weight{}, wrong
	}
	if w.Of, err = digits(below); err != nil || w.Of == 0 {
		return Weight{}, wrong
	}
	shared := gcd(w.Parts, w.Of)
	w.Parts, w.Of = w.Parts/shared, w.Of/shared
	if w.Parts > maxWeight || w.Of > maxWeight {
		return Weight{}, fmt.Errorf("%q is too large or has too many decimal places: the numerator and the denominator must be at most 1000000000", text)
	}
	return w, nil
}

func digits(text string) (int64, error) {
	if strings.Trim(text, "0123456789") != "" {
		return 0, errors.New("no digits")
	}
	return strconv.ParseInt(text, 10, 64)
}

// Compile returns the Weights in which each name has its weight.
func Compile(byName map[string]Weight) (*Weights, error) {
	if len(byName) == 0 || len(byName) > Max {
		return nil, fmt.Errorf("must have 1 to %d names, but has %d", Max, len(byName))
	}
	w := &Weights{denominator: 1}
	for name, weight := range byName {
		if name == "" || len(name) > MaxName {
			return nil, fmt.Errorf("a name must have 1 to %d bytes, but has %d", MaxName, len(name))
		}
		w.names = append(w.names, name)
		if w.denominator = w.denominator / gcd(w.denominator, weight.Of) * weight.Of; w.denominator > maxWeight {
			return nil, errors.New("the common denominator must be at most 1000000000; use weights with fewer decimal places")
		}
	}
	slices.Sort(w.names)
	for _, name := range w.names {
		weight := byName[name]
		w.parts = append(w.parts, weight.Parts*(w.denominator/weight.Of)) // the product is at most 10^18
	}
	return w, nil
}

// String lists the weights, for example "cached: 1/10, input: 1".
func (w *Weights) String() string {
	texts := make([]string, len(w.names))
	for i, name := range w.names {
		shared := gcd(w.parts[i], w.denominator)
		texts[i] = fmt.Sprintf("%s: %d", name, w.parts[i]/shared)
		if of := w.denominator / shared; of > 1 {
			texts[i] += fmt.Sprintf("/%d", of)
		}
	}
	return strings.Join(texts, ", ")
}

// Cost returns the sum of costs multiplied by their weights. It rounds the sum up once. A name that is not in
// costs adds nothing. A name without a weight is an error, and so is a cost below 0, or a cost or sum above 2^53.
func (w *Weights) Cost(costs map[string]int64) (int64, error) {
	var high, low uint64
	names := make([]string, 0, len(costs))
	for name := range costs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		at, known := slices.BinarySearch(w.names, name)
		switch n := costs[name]; {
		case !known:
			return 0, fmt.Errorf("%q has no weight; known names are %s", name, strings.Join(w.names, ", "))
		case n < 0:
			return 0, fmt.Errorf("%q must be 0 or more, but is %d", name, n)
		case n > maxExact:
			return 0, fmt.Errorf("%q must be at most 2^53, but is %d", name, n)
		default:
			h, l := bits.Mul64(uint64(n), uint64(w.parts[at]))
			var carry uint64
			low, carry = bits.Add64(low, l, 0)
			high, _ = bits.Add64(high, h, carry)
		}
	}
	if high >= uint64(w.denominator) { // the quotient would have more than 64 bits
		return 0, errTooMuch
	}
	cost, rest := bits.Div64(high, low, uint64(w.denominator))
	if rest > 0 {
		cost++
	}
	if cost > maxExact {
		return 0, errTooMuch
	}
	return int64(cost), nil
}

var errTooMuch = errors.New("the sum of the weighted costs must be at most 2^53")

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
