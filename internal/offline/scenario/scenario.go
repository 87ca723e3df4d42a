// Package scenario runs scenarios, which are users' tests of their limits: times, requests, and expected answers. Time
// is virtual, and each scenario starts with new buckets.
package scenario

import (
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

type File struct {
	// Configs are the paths of the configuration. A relative path is relative to the folder of the file.
	Configs   []string
	Scenarios []Scenario
}

type Scenario struct {
	Name  string
	Place Place
	// Start is the time at which the scenario begins; the times of its steps are counted from it.
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
	DryRun      bool
	// Reserves, if not empty, is the name for the reservations of the step's requests, in order.
	Reserves string
	// Done, if not empty, settles the reservations of the step whose Reserves is this name, one with each request. Real
	// is the real cost. -1 means that it is not known.
	Done   string
	Real   int64
	Expect Expectation
}

// Expectation describes the expected answers of a step, or of one limit.
type Expectation struct {
	// Values has the expected values by the keys of aspects. Other aspects may have any value.
	Values map[string]any
	// NotLimited means that no limit matched.
	NotLimited bool
	Limits     []LimitExpectation
}

// LimitExpectation describes the expected answer of one limit, also of a shadow limit.
type LimitExpectation struct {
	Place Place
	Name  string
	// Key identifies the bucket; nil means any bucket of the limit.
	Key []string
	Expectation
}

type Place struct {
	Line, Column int
}

const maxTimes = 1_000_000

// defaultStart is the start of a scenario that states none: New Year 2026, a Thursday, in UTC.
const defaultStart = algorithms.Micros(1_767_225_600_000_000)
