// Package scenario runs scenarios that users write for their limits: a time, a request, and the
// answer expected. Time is virtual, and each scenario starts with empty buckets.
package scenario

import (
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// File is one file of scenarios.
type File struct {
	// Configs are the paths of the configuration, as the file has them: relative to it.
	Configs   []string
	Scenarios []Scenario
}

// Scenario is a sequence of steps.
type Scenario struct {
	Name  string
	Place Place
	// Start is the moment that the steps count from.
	Start algorithms.Micros
	Steps []Step
}

// Step sends the same request a number of times.
type Step struct {
	Place Place
	// At is the time of the first request, from the scenario's start; Every is the time between requests.
	At, Every   algorithms.Micros
	Times       int
	Domain      string
	Descriptors []limiter.Descriptor
	Limits      []limiter.NamedCharge
	// Look answers and takes nothing.
	Look bool
	// Reserves, if not empty, names what the step's requests reserve, in order.
	Reserves string
	// Done, if not empty, settles what the step of this name has reserved, one reservation with each request. Real is
	// the real cost; -1 means that it is not known.
	Done   string
	Real   int64
	Expect Expectation
}

// Expectation is what a step's answers must be; what is nil may be anything.
type Expectation struct {
	OK        *bool
	Never     *bool // denied for good
	Remaining *int64
	// RetryAfter is 0 where the answer is ok or never.
	RetryAfter *algorithms.Micros
	Wait       *algorithms.Micros
	// Reserved is the number of units that the request reserves of limits with settle.
	Reserved *int64
	// Settlement is how each reservation of the request was settled, or why it was not. Cost is the settled cost, and
	// Lost the units beyond max_debt.
	Settlement *string
	Cost, Lost *int64
	// NotLimited: no limit is met.
	NotLimited bool
	// Limits are answers of single limits.
	Limits []LimitExpectation
}

// LimitExpectation is what one limit's own answer must be, shadow or not.
type LimitExpectation struct {
	Place Place
	Name  string
	// Key is which of its buckets; nil: any.
	Key []string
	Expectation
}

// Place is where a file says something.
type Place struct {
	Line, Column int
}

// maxTimes bounds the requests of a step.
const maxTimes = 1_000_000

// defaultStart is the start of a scenario that gives none: New Year 2026, a Thursday, in UTC.
const defaultStart = algorithms.Micros(1_767_225_600_000_000)
