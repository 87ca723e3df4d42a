package descriptors

import (
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/internal/weights"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Policy is a limit as one place of a configuration uses it: its numbers, and how its decisions are
// treated. It is immutable. Several policies may share the buckets of one named limit.
//
// A configuration may have 100,000 policies. So the fields that most limits do not need are in Extras.
type Policy struct {
	// Index numbers the policies of one domain from 0, so that counters are an array.
	Index int
	// Domain and Name identify the limit for display. Name is the name of a named limit, or the path of descriptors to
	// an inline one.
	Domain, Name string
	// Owner identifies the limit in Stores. Policies that share buckets have the same Owner.
	Owner string
	// Place is the place in the configuration.
	Place Place
	// Limit has the numbers. Policies with equal numbers share it, so it must be replaced and never
	// changed.
	Limit *algorithms.Limit
	// Prefix is the prefix of the keys of the policy's buckets.
	Prefix string
	// Open lists the positions of the entries whose values identify a bucket.
	Open []int

	// Whole means that all keys and values of the descriptor identify a bucket, not only the entries in
	// Open. It is set for patterns with a "*" in a key.
	Whole bool
	// Unlimited always allows and charges nothing.
	Unlimited bool
	// Reference means that the limit is written in the reference server's form, with unit and
	// requests_per_unit.
	Reference bool
	// Shadow never denies. Requests that it would have denied are counted.
	Shadow bool
	// Quota denies only together with all other quota policies of the request.
	Quota bool
	// Alone means that the policy is charged on its own, not together with the request's other policies
	// (`consume: each`).
	Alone bool
	// Detailed means that the runtime values of all entries go into the stat key (detailed_metric).
	Detailed bool
	// OnFailure is the answer when the store cannot decide.
	OnFailure OnFailure
	// Adjusted is set in the copy of a policy that an operator's adjustment made. It is nil if the policy
	// is as configured.
	Adjusted *Adjusted

	// RateName is the name of the rate_limit itself. It appears in answers, and Replaces refers to it.
	RateName string
	// StatKey names the policy's counters as the reference server does:
	// domain.key_value.key_value…
	StatKey string

	// Extras has the fields that most limits do not need. nil means that all of them are zero. Read them
	// with Extra. Policies share Extras, so they must be replaced and never changed.
	Extras *Extras
}

// Extras is the part of a Policy that is equal for many policies, or zero for most.
type Extras struct {
	// Named means that the policy is a named limit itself, not a place that uses it.
	Named bool
	// OpenKeys has the keys of the entries in Policy.Open in the configuration's notation.
	OpenKeys []string
	// Shards has the parts into which a store of several nodes splits each bucket; empty means that it is not split.
	Shards []algorithms.Limit
	// Lease bounds what a process may borrow from each bucket of a shared store; nil means nothing.
	Lease *algorithms.Lease
	// Slot groups the buckets that a Redis Cluster keeps in one slot, so that the limits of one request can be
	// charged in one step. The zero Slot groups nothing.
	Slot Slot
	// Replaces lists the RateNames of policies. If they and this policy match the same request, this one
	// replaces them.
	Replaces []string
	// MaxDelay is how long an answer may be held back until its turn in a leaky bucket; 0 means not at all.
	MaxDelay algorithms.Micros
	// Local has the numbers of this process's own bucket, for OnFailure local: LocalShare of the limit.
	Local      *algorithms.Limit
	LocalShare float64
	// StatValues lists positions of entries whose runtime value goes into the stat key (value_to_metric).
	StatValues []int
	// StatLevels are the parts of StatKey below the domain, one for each entry. They are set only if
	// runtime values go into the stat key.
	StatLevels []string
	// Weights has the cost of each kind of units. It is nil if the limit has one kind.
	Weights *weights.Weights
	// DenyBody is the body of denials by this limit. NoBody means the body of the domain.
	DenyBody Body
	// Unit is what the limit counts. NoUnit means that clients are not informed.
	Unit Unit
	// Settle describes how requests reserve units until their real cost is known. nil means that they do
	// not.
	Settle *Settle
	// Then is the policy that pays for requests that this one does not allow, with the same values of the
	// descriptor. nil means none.
	Then *Policy
	// Metadata is added to the dynamic metadata of allowed requests; nil means none.
	Metadata map[string]any
}

// Settle describes how a request reserves units of a limit, for work whose cost is known only afterwards.
// It can be compared with ==.
type Settle struct {
	// Estimate is the number of units that a request reserves if it declares less.
	Estimate int64
	// Least and Most bound the number of units that a request reserves.
	Least, Most int64
	// TrustDeclared means that a request reserves the number that it declares, even if that is less than
	// Estimate.
	TrustDeclared bool
	// Unknown is the cost of a request whose real cost is not reported; -1 means what it reserved.
	Unknown int64
	// TTL is the time during which a reservation can be refunded.
	TTL algorithms.Micros
	// Learn, if not nil, means that Estimate is used only until enough costs are known to learn an
	// estimate.
	Learn *Learn
}

// Learn describes how the estimate of a limit is learned from real costs.
type Learn struct {
	// Quantile is the quantile of the costs that becomes the estimate, in (0, 1).
	Quantile float64
	// Per lists the keys of the entries whose values have estimates of their own. Values has those values
	// for each key. All other values share one estimate.
	Per    []string
	Values map[string]map[string]bool
}

// Reserves returns the number of units that a request reserves. declared is the number that the request
// declares; 0 or less means that it declares nothing.
func (s *Settle) Reserves(estimate, declared int64) int64 {
	units := max(declared, estimate)
	if s.TrustDeclared && declared > 0 {
		units = declared
	}
	return max(s.Least, min(units, s.Most))
}

// PerSecond reports whether l is a limit per second, as the reference server defines it. Buckets of such
// limits may be in a Redis of their own.
func PerSecond(l *algorithms.Limit) bool {
	return l.Kind == algorithms.FixedWindow && l.Period() == algorithms.Second && !scaled.Of(l).PhaseFromKey
}

// PrefixNumber returns a number that identifies a limit by the prefix of its keys (Policy.Prefix).
func PrefixNumber(prefix string) uint64 { return xxhash.Sum64String(prefix) }

// Adjusted describes how an operator's adjustment changed a policy, beside its numbers.
type Adjusted struct {
	// ID is the ID of the adjustment.
	ID string
	// Expires is the time at which the adjustment ends, by the clock of the store of adjustments.
	Expires algorithms.Micros
	// Unlimited means that the bucket is charged but never denies.
	Unlimited bool
	// Block denies everything.
	Block bool
}

var noExtras Extras

// Extra returns the Extras of p, or empty ones. The caller must not change them.
func (p *Policy) Extra() *Extras {
	if p.Extras == nil {
		return &noExtras
	}
	return p.Extras
}

// Place is a place in a configuration.
type Place struct {
	// File is a file, or a place in a message of a control plane.
	File string
	// Line counts from 1. 0 means that there is no line.
	Line int
}

// String returns file:line, or the file alone.
func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line)
}

// Slot determines the buckets that are kept in one slot: those with the same fixed number, or those with an
// equal value.
type Slot struct {
	// Fixed is the number; 0 means none.
	Fixed uint64
	// Value is 1 + the position of the value in the key; 0 means none.
	Value int
	// Entry is the key of the entry that has the value, for a policy that is Whole.
	Entry string
}

// SlotOf returns a number that all buckets of one slot share. It returns 0 if the bucket of this descriptor is not
// grouped.
func (p *Policy) SlotOf(entries []Entry) uint64 {
	if p.Extras == nil {
		return 0
	}
	slot := &p.Extras.Slot
	switch {
	case slot.Value > 0:
		return SlotNumber(entries[p.Open[slot.Value-1]].Value)
	case slot.Entry != "":
		for i := range entries {
			if entries[i].Key == slot.Entry {
				return SlotNumber(entries[i].Value)
			}
		}
	}
	return slot.Fixed
}

// SlotOfKey is SlotOf for a list of values instead of entries.
func (p *Policy) SlotOfKey(key []string) uint64 {
	slot := &p.Extra().Slot
	if i := slot.Value; i > 0 && i <= len(key) {
		return SlotNumber(key[i-1])
	}
	return slot.Fixed
}

// SlotNumber returns the number of the slot for text; it is never 0.
func SlotNumber(text string) uint64 { return xxhash.Sum64String(text) | 1 }

// OnFailure is the answer when a store cannot decide in time.
type OnFailure uint8

// The answers. The default is Deny, because a rate limiter that cannot count must not admit everything.
const (
	Deny  OnFailure = iota
	Allow           // allow the request
	Local           // decide with this process's own bucket, which has a share of the limit
	Error           // return an RPC error, so that the proxy's own failure mode decides
)

var onFailureNames = [...]string{"deny", "allow", "local", "error"}

// String returns the name used in configurations.
func (f OnFailure) String() string { return onFailureNames[f] }

// ParseOnFailure reads the name used in configurations. It reports whether it knows the name.
func ParseOnFailure(s string) (OnFailure, bool) {
	for i, name := range onFailureNames {
		if s == name {
			return OnFailure(i), true
		}
	}
	return Deny, false
}

// Body is the format of the body of a denial.
type Body uint8

// The formats.
const (
	NoBody        Body = iota
	OpenAIBody         // an error object of the OpenAI API
	AnthropicBody      // an error object of the Anthropic API
	ProblemBody        // problem details, RFC 9457
	TextBody           // a sentence
)

var bodyNames = [...]string{"none", "openai", "anthropic", "problem+json", "text"}

// String returns the name used in configurations.
func (b Body) String() string { return bodyNames[b] }

// Unit is what a limit counts, for clients.
type Unit uint8

// The units.
const (
	NoUnit Unit = iota
	Requests
	Tokens
)

var unitNames = [...]string{"none", "requests", "tokens"}

// String returns the name used in configurations.
func (u Unit) String() string { return unitNames[u] }
