package limiter

import (
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/internal/weights"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Policy is a limit as one place of a configuration uses it. It has the numbers of the limit, and settings
// for its decisions. It is immutable. Several policies may share the buckets of one named limit.
//
// A configuration may have 100,000 policies. So the fields that most limits do not need are in Extras.
type Policy struct {
	// Index numbers the policies of one domain from 0, so that their counters can be an array. It is -1 for a
	// limit that comes with a request.
	Index int
	// Domain and Name identify the limit for display. Name is the name of a named limit. For a limit inside a
	// descriptor it is the path of descriptors.
	Domain, Name string
	// Owner identifies the limit in Stores. Policies that share buckets have the same Owner.
	Owner string
	// Place is where the configuration uses the limit.
	Place Place
	// Limit has the numbers. Policies with equal numbers may share one Limit, so replace it, and never change it.
	Limit *algorithms.Limit
	// Keys makes the keys of the policy's buckets. They are Whole for most limits at or below a key with a "*", and
	// for overrides.
	descriptors.Keys

	// Unlimited means that the policy always allows and charges nothing.
	Unlimited bool
	// Reference means that the limit is written in the reference server's form, with unit and
	// requests_per_unit.
	Reference bool
	// Shadow means that the policy never denies. Requests that it would have denied are counted.
	Shadow bool
	// Quota means that the policy denies only if all other quota policies of the request deny too.
	Quota bool
	// Alone means that the policy is charged on its own, not together with the request's other policies
	// (`consume: each`).
	Alone bool
	// Detailed means that the request's values of all entries are part of the stat key (detailed_metric).
	Detailed bool
	// OnFailure determines the answer when the store cannot decide.
	OnFailure OnFailure
	// Adjusted is set in the copy of a policy that an operator's adjustment has created. It is nil for a
	// configured policy.
	Adjusted *PolicyAdjustment

	// RateName is the name that a rate_limit states. It appears in answers, and Replaces refers to it.
	RateName string
	// StatKey is the name of the policy's counters in the reference server: domain.key_value.key_value…
	StatKey string

	// Extras has the fields that most limits do not need. nil means that all of them are zero. Read them with
	// Extra. Policies may share Extras, so replace them, and never change them.
	Extras *Extras
}

// Extras has the fields of a Policy that are equal for many policies, or zero for most.
type Extras struct {
	// Named means that the policy is the definition of a named limit, not a place that uses it.
	Named bool
	// OpenKeys has the keys of the entries in Policy.Open, as the configuration writes them.
	OpenKeys []string
	// Shards are the parts into which a store of several nodes splits each bucket. Empty means that buckets
	// are not split.
	Shards []algorithms.Limit
	// Lease bounds what a process may borrow from each bucket of a shared store. nil means that it may borrow
	// nothing.
	Lease *algorithms.Lease
	// Slot groups the buckets that a Redis Cluster keeps in one slot, so that the limits of one request can be
	// charged in one step. The zero Slot groups nothing.
	Slot Slot
	// Replaces lists RateNames. If policies with these names match the same request as this policy, this
	// policy replaces them.
	Replaces []string
	// MaxDelay is how long an answer may wait for its turn in a leaky bucket. 0 means that answers do not
	// wait.
	MaxDelay algorithms.Micros
	// Local has the numbers of this process's own bucket, for OnFailure local. LocalShare is its share of the
	// limit.
	Local      *algorithms.Limit
	LocalShare float64
	// StatValues lists the positions of the entries whose value in the request is part of the stat key
	// (value_to_metric).
	StatValues []int
	// StatLevels are the parts of StatKey below the domain, one for each entry. They are set only if values of
	// requests are part of the stat key.
	StatLevels []string
	// Weights has the cost of each kind of unit. It is nil if the limit has only one kind.
	Weights *weights.Weights
	// DenyBody is the format of the body of denials by this limit. NoBody means the format of the domain.
	DenyBody Body
	// Unit is what the limit counts. NoUnit means that answers do not state the unit.
	Unit Unit
	// Settle describes how requests reserve units until their real cost is known. nil means that they reserve
	// nothing.
	Settle *SettleTerms
	// Then is the policy that pays for requests that this policy does not allow, with the same values of the
	// descriptor. nil means that there is none.
	Then *Policy
	// Metadata is added to the dynamic metadata of allowed requests. nil means that there is none.
	Metadata map[string]any
}

// SettleTerms describe how a request reserves units of a limit, for work whose cost is known only when the work
// is done.
type SettleTerms struct {
	// Estimate is the number of units that a request reserves if it declares nothing. If TrustDeclared is false, a
	// request that declares less reserves Estimate too.
	Estimate int64
	// Least and Most bound the number of units that a request reserves.
	Least, Most int64
	// TrustDeclared means that a request reserves the number that it declares, even if that number is less
	// than Estimate.
	TrustDeclared bool
	// Unknown is the cost of a request whose real cost is not reported. -1 means the units that the request
	// reserved, and with Learn at least Estimate.
	Unknown int64
	// TTL is how long a reservation can be refunded.
	TTL algorithms.Micros
	// ByBucket means that a proxy settles without an id. The bucket stores what is open (algorithms.Spec.OpenFor). A cost
	// of 0 that a descriptor itself states reserves, and a higher one settles. All other requests are charged their cost.
	ByBucket bool
	// Learn, if not nil, means that Estimate is used only until enough costs are known to learn an
	// estimate.
	Learn *Learn
}

// Learn describes how the estimate of a limit is learned from real costs.
type Learn struct {
	// Quantile is the quantile of the costs that becomes the estimate, in (0, 1). Least bounds that estimate.
	Quantile float64
	Least    int64
	// Per lists the keys of the entries whose values have estimates of their own. Values has these values for
	// each key. All other values share one estimate.
	Per    []string
	Values map[string]map[string]bool
}

// Reserves returns the number of units that a request reserves. estimate is s.Estimate, or the learned estimate.
// declared is the number that the request declares; 0 or less means that it declares nothing.
func (s *SettleTerms) Reserves(estimate, declared int64) int64 {
	units := max(declared, estimate)
	if s.TrustDeclared && declared > 0 {
		units = declared
	}
	return max(s.Least, min(units, s.Most))
}

// Within returns s for a bucket that holds at most capacity units: a request that reserves more would always be denied.
func (s *SettleTerms) Within(capacity int64) *SettleTerms {
	most := max(1, capacity) // 0 units would always be allowed
	if s.Most <= most {
		return s
	}
	cut := *s
	cut.Estimate, cut.Least, cut.Most = min(s.Estimate, most), min(s.Least, most), most
	return &cut
}

// AppendKey appends to dst the key of p's bucket for a descriptor. It also returns the hash from which a fixed window
// derives its phase; for other algorithms the hash is 0.
func (p *Policy) AppendKey(dst []byte, entries []descriptors.Entry) (key []byte, hash uint64) {
	return p.Keys.Append(dst, entries, p.Limit.Kind == algorithms.FixedWindow)
}

// AppendKeyOf does what AppendKey does, but key lists the values that identify the bucket. For a policy that is
// Whole, key has the key and the value of each entry.
func (p *Policy) AppendKeyOf(dst []byte, key []string) ([]byte, uint64) {
	return p.Keys.AppendOf(dst, key, p.Limit.Kind == algorithms.FixedWindow)
}

// Limits is what a descriptor finds in the Tree of a domain.
type Limits struct {
	// Policies are the limits at this place. If there are none, the configuration does not limit descriptors that
	// end here.
	Policies []*Policy
	// MaxOverride bounds the limits that come with requests for this place. nil means that the place sets no bound.
	MaxOverride *Policy
}

// Tree finds the limits of descriptors in one domain, and Node is a place in it.
type (
	Tree = descriptors.Tree[Limits]
	Node = descriptors.Node[Limits]
)

// HasLimits reports whether n has limits.
func HasLimits(n *Node) bool { return len(n.Found.Policies) > 0 }

// PerSecond reports whether l is a limit per second, as the reference server defines it. The buckets of such
// limits can be kept in a separate Redis.
func PerSecond(l *algorithms.Limit) bool {
	return l.Kind == algorithms.FixedWindow && l.Period() == algorithms.Second && !l.Numbers().PhaseFromKey
}

// PrefixNumber returns a number that identifies a limit by the prefix of its keys (Policy.Prefix).
func PrefixNumber(prefix string) uint64 { return xxhash.Sum64String(prefix) }

// PolicyAdjustment describes the adjustment of a policy by an operator, except the adjusted numbers.
type PolicyAdjustment struct {
	ID string
	// Expires is when the adjustment ends, on the clock of the store of adjustments.
	Expires algorithms.Micros
	// Unlimited means that the bucket is charged but never denies.
	Unlimited bool
	// Block means that the policy denies every request.
	Block bool
	// Configured is the limit without the adjustment. It is nil if the adjustment does not change the numbers.
	Configured *algorithms.Limit
}

var noExtras Extras

// Extra returns the Extras of p, or empty ones if p has none. The caller must not change the result.
func (p *Policy) Extra() *Extras {
	if p.Extras == nil {
		return &noExtras
	}
	return p.Extras
}

// Place is where a configuration has a limit.
type Place struct {
	// File is the name of a file, or a place in a message of a control plane.
	File string
	// Line counts from 1. 0 means that the place has no line.
	Line int
}

// String returns file:line, or only the file if there is no line.
func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line)
}

// Slot determines which buckets share a slot: those with the same fixed number, or those with an equal value.
type Slot struct {
	// Fixed is the number. 0 means that the slot is not fixed.
	Fixed uint64
	// Value is 1 + the position of the value in the key. 0 means that no value determines the slot.
	Value int
	// Entry is the key of the entry whose value determines the slot, for a policy that is Whole.
	Entry string
}

// SlotOf returns a number that all buckets of one slot share. It returns 0 if the bucket of this descriptor is not
// grouped.
func (p *Policy) SlotOf(entries []descriptors.Entry) uint64 {
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

// SlotOfKey does what SlotOf does, for a key in the form of AppendKeyOf.
func (p *Policy) SlotOfKey(key []string) uint64 {
	slot := &p.Extra().Slot
	if i := slot.Value; i > 0 && i <= len(key) {
		return SlotNumber(key[i-1])
	}
	if slot.Entry != "" {
		for i := 0; i+1 < len(key); i += 2 {
			if key[i] == slot.Entry {
				return SlotNumber(key[i+1])
			}
		}
	}
	return slot.Fixed
}

// SlotNumber returns the number of the slot for text. The number is never 0.
func SlotNumber(text string) uint64 { return xxhash.Sum64String(text) | 1 }

// OnFailure determines the answer when a store cannot decide in time.
type OnFailure uint8

// The answers. The default is Deny, because a rate limiter that cannot count must not allow everything.
const (
	Deny  OnFailure = iota
	Allow           // allow the request
	Local           // decide with this process's own bucket, which has a share of the limit
	Error           // return an error (over HTTP 503), so that the proxy's own failure mode applies
)

var onFailureNames = [...]string{"deny", "allow", "local", "error"}

func (f OnFailure) String() string { return onFailureNames[f] }

// OnFailures has the answers by the names that configurations use.
var OnFailures = map[string]OnFailure{"deny": Deny, "allow": Allow, "local": Local, "error": Error}

// Body is the format of the body of a denial.
type Body uint8

const (
	NoBody        Body = iota
	OpenAIBody         // an error object of the OpenAI API
	AnthropicBody      // an error object of the Anthropic API
	ProblemBody        // problem details, RFC 9457
	TextBody           // a sentence in plain text
)

var bodyNames = [...]string{"none", "openai", "anthropic", "problem+json", "text"}

func (b Body) String() string { return bodyNames[b] }

// Unit is what a limit counts, as stated to clients.
type Unit uint8

const (
	NoUnit Unit = iota
	Requests
	Tokens
)

var unitNames = [...]string{"none", "requests", "tokens"}

func (u Unit) String() string { return unitNames[u] }
