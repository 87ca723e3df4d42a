package descriptors

import "github.com/rlsidecar/rlsidecar/pkg/algorithms"

// Policy is a limit as one place of a configuration uses it: the numbers and how the outcome is
// treated. It is immutable once compiled. Several policies may share the buckets of one named
// limit.
type Policy struct {
	// Index numbers the policies of one configuration from 0, so that counters are an array.
	Index int
	// Domain and Name say which limit this is, to people: the name of a named limit, or the path
	// of descriptors that leads to an inline one.
	Domain, Name string
	// Owner is Domain and limit in one text: equal for policies that share buckets.
	Owner string
	// Place is where the configuration says it: file:line.
	Place string
	// Limit is the numbers.
	Limit algorithms.Limit
	// Prefix starts the key of each of its buckets.
	Prefix []byte
	// Open lists the positions of the entries whose values tell its buckets apart.
	Open []int

	// Whole: its buckets are told apart by all keys and values of the descriptor, Open aside. So it
	// is where a "*" stands in a key.
	Whole bool
	// Shards is how many buckets a store that has several nodes splits one into; 0: one.
	Shards int

	// RateName is the rate_limit's own name: shown in answers, and what Replaces refers to.
	RateName string
	// Replaces lists the RateNames that are not evaluated in a request that meets this policy.
	Replaces []string
	// Unlimited always allows and charges nothing.
	Unlimited bool
	// Reference tells that the limit was written as the reference server has it: unit and
	// requests_per_unit.
	Reference bool
	// Shadow never denies: what it would have denied is counted.
	Shadow bool
	// Quota denies only together with all other quota policies of the request.
	Quota bool
	// Alone: decided on its own, not all-or-none with the request's others (`consume: each`).
	Alone bool
	// MaxDelay is how long an answer may be held for its turn in a leaky bucket; 0: not held.
	MaxDelay algorithms.Micros
	// OnFailure is the answer when the store cannot decide.
	OnFailure OnFailure
	// LocalShare is the part of the limit that OnFailure local gives out, in (0, 1].
	LocalShare float64

	// StatKey names the policy's counters as the reference server does:
	// domain.key_value.key_value…
	StatKey string
	// StatValues lists positions of entries whose runtime value goes into the stat key
	// (value_to_metric), or all of them (detailed_metric, then Detailed is set).
	StatValues []int
	Detailed   bool
	// Metadata is passed on in dynamic metadata of requests that pass; nil: none.
	Metadata map[string]any
}

// OnFailure is the answer to give when a store cannot decide in time.
type OnFailure uint8

// Deny is the default: a rate limiter that cannot count does not open the gate.
const (
	Deny  OnFailure = iota
	Allow           // let it pass
	Local           // this process's own bucket, of a share of the limit
	Error           // an RPC error, so that the proxy's own failure mode decides
)

var onFailureNames = [...]string{"deny", "allow", "local", "error"}

// String returns the name used in configurations.
func (f OnFailure) String() string { return onFailureNames[f] }

// ParseOnFailure reads the name used in configurations.
func ParseOnFailure(s string) (OnFailure, bool) {
	for i, name := range onFailureNames {
		if s == name {
			return OnFailure(i), true
		}
	}
	return Deny, false
}
