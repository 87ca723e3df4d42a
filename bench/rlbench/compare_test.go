package main

import (
	"math"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

func TestRequirementsOfCompare(t *testing.T) {
	for args, ok := range map[string]bool{
		"--sidecar=compare.go": true, "--target=a:1 --pid=7": true,
		"": false, "--target=a:1": false, "--sidecar=compare.go --pid=7": false, "--sidecar=compare.go --target=a:1 --pid=7": false,
	} {
		parser, err := kong.New(&commands{}, options()...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(append([]string{"compare"}, strings.Fields(args)...)); (err == nil) != ok {
			t.Errorf("%q: got %v; want valid %t", args, err, ok)
		}
	}
}

func TestRatiosAreOfTheSameRound(t *testing.T) {
	r := row{
		Ceiling: []load.Result{{CPU: 10}, {CPU: 20}, {CPU: 10}, {CPU: 10}},
		Sidecar: []load.Result{{CPU: 11}, {CPU: 22}, {CPU: 12}, {CPU: 30}},
	}
	if got := median(r.ratios()); math.Abs(got-1.15) > 1e-9 { // 1.1 1.1 1.2 3.0
		t.Errorf("got %v; want 1.15, the median", got)
	}
	if got := medianOf(r.Sidecar[:3], cpu); got != 12 {
		t.Errorf("got %v; want 12, the median", got)
	}
}
