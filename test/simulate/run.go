package simulate

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

type Result struct {
	Problems []string
	Counts   Counts
	Steps    int
	Requests int
	Hash     uint64 // runs with the same hash were equal
}

// Run runs the simulation p. It calls log, unless nil, for each event.
func Run(p Plan, log func(format string, args ...any)) (r Result) {
	w := newWorld(p, log)
	defer func() {
		if v := recover(); v != nil {
			w.judge.fail("panic: %v\n%s", v, debug.Stack())
		}
		r = Result{Problems: w.judge.problems, Counts: w.counts, Steps: w.steps, Requests: len(w.judge.requests), Hash: w.hash}
		w.releaseEnded()
	}()
	w.runPlan()
	return r
}

// Command returns the shell command that repeats p.
func (p Plan) Command() string {
	text := fmt.Sprintf("go test ./test/simulate -run TestSimulation -v -seed %d", p.Seed)
	if len(p.Without) > 0 {
		text += " -without " + strings.Join(p.Without, ",")
	}
	if p.Until > 0 {
		text += " -until " + p.Until.String()
	}
	return text
}

// Shrink removes clients, faults and time that p does not need to fail.
func Shrink(p Plan) Plan {
	fails := func(q Plan) bool { return len(Run(q, nil).Problems) > 0 }
	w := newWorld(p, nil)
	func() {
		defer func() { _ = recover() }() // Run reports a panic as a problem
		w.runPlan()
	}()
	for _, part := range w.parts() {
		less := p
		less.Without = append(slices.Clone(p.Without), part)
		if fails(less) {
			p = less
		}
	}
	for length := w.length / 2; length > time.Millisecond; length /= 2 {
		less := p
		if less.Until == 0 {
			less.Until = w.length
		}
		if less.Until -= length; less.Until > 0 && fails(less) {
			p = less
		}
	}
	return p
}
