package descriptors

import (
	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Policy is a limit as one place of a configuration uses it: the numbers and how the outcome is
// treated. It is immutable once compiled. Several policies may share the buckets of one named
// limit. Its fields are those that a request needs at hand: a part apart would be another cache line to read.
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
	// OpenKeys are the keys of these entries as the configuration has them, for people.
	OpenKeys []string

	// Whole: its buckets are told apart by all keys and values of the descriptor, Open aside. So it
	// is where a "*" stands in a key.
	Whole bool
	// Shards is how a store of several nodes splits each bucket; none: not at all.
	Shards []algorithms.Limit
	// Lease is what a process may borrow of each bucket, with a store that others share; nil: nothing.
	Lease *algorithms.Lease
	// Slot says which buckets a store of several nodes keeps in one place, so that limits of one
	// request can be charged in one step; the zero Slot: each on its own.
	Slot Slot

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
	// Local is the numbers of this process's own bucket, which OnFailure local gives out from.
	Local *algorithms.Limit

	// StatKey names the policy's counters as the reference server does:
	// domain.key_value.key_value…
	StatKey string
	// StatLevels are the parts of StatKey below the domain: one for each entry.
	StatLevels []string
	// StatValues lists positions of entries whose runtime value goes into the stat key
	// (value_to_metric), or all of them (detailed_metric, then Detailed is set).
	StatValues []int
	Detailed   bool
	// Metadata is passed on in dynamic metadata of requests that pass; nil: none.
	Metadata map[string]any
}

// Slot is what buckets that are kept in one place have in common: something fixed, or a value.
type Slot struct {
	// Fixed is a number of their own; 0: none.
	Fixed uint64
	// Value is 1 + the position of the value among those of the key; 0: none.
	Value int
	// Entry is the key of the entry with the value, for a policy that is Whole.
	Entry string
}

// SlotOf is a number that buckets to be kept in one place share; 0: the bucket of this descriptor
// is on its own.
func (p *Policy) SlotOf(entries []Entry) uint64 {
	switch {
	case p.Slot.Value > 0:
		return SlotNumber(entries[p.Open[p.Slot.Value-1]].Value)
	case p.Slot.Entry != "":
		for i := range entries {
			if entries[i].Key == p.Slot.Entry {
				return SlotNumber(entries[i].Value)
			}
		}
	}
	return p.Slot.Fixed
}

// SlotOfKey is SlotOf for values that are given as they are, as an API client does.
func (p *Policy) SlotOfKey(key []string) uint64 {
	if i := p.Slot.Value; i > 0 && i <= len(key) {
		return SlotNumber(key[i-1])
	}
	return p.Slot.Fixed
}

// SlotNumber is the Slot of all that share text.
func SlotNumber(text string) uint64 { return xxhash.Sum64String(text) | 1 }

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
