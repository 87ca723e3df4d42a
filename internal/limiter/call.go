package limiter

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Call is one request and its answer, with the room both need. A listener keeps Calls to reuse them
// (Reset), so that a request costs no allocation. Strings in it may point into a buffer of the
// listener's: they are not kept after Check.
type Call struct {
	Request
	Verdict

	modes     Modes
	adjusted  *adjusted          // nil: nothing is
	blocked   bool               // an operator blocks a key: the request is denied whatever the modes say
	charges   []backend.Charge   // in a Batch: a part of its
	decisions []backend.Decision // so are these
	keys      []byte
	buckets   []uint32 // finds a charge by its key where there are many: its number, from 1, at the key's hash
	inBatch   span     // which part

	ids      IDs      // encodes what is reserved; nil: nothing can be settled
	reserved Reserved // what an id contains; its room is reused
	reserves int      // how many of Results reserve units
	done     int      // how many of Descriptors settle reservations
	groups   int      // how many groups of charges there are
}

// Request is what is asked: the descriptors a proxy sent, or limits by their names.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	// Limits asks for named limits instead; all of them or none. Domain may then be empty where
	// one domain alone has the name.
	Limits []LimitAsk
	// Once, where it has an ID, takes Limits once. It does not go with Look.
	Once Once
	// Look answers and takes nothing.
	Look bool
	// Inspect is Look for an operator: no Observer counts it, and the key of a named limit must have
	// as many values as the descriptors that use the limit leave open.
	Inspect bool
	// Arrived is when it came, by this process's clock; zero where the listener does not know.
	Arrived time.Time
	// Canceled, where it is not nil, becomes true when nobody wants the answer any more: then a request that the store
	// has queued is not charged.
	Canceled *atomic.Bool
	// Hold is set by listeners that can hold an answer until its turn in a leaky bucket has come: for
	// this long at the most. Listeners that report the wait leave it 0.
	Hold algorithms.Micros
}

// Descriptor is one descriptor of a Request.
type Descriptor struct {
	Entries []descriptors.Entry
	// Cost in units: 0 looks, a negative one gives back.
	Cost int64
	// Explicit means that the descriptor itself stated the cost, and Declared that it or its request did.
	Explicit, Declared bool
	// Override is a limit that came with the descriptor.
	Override    Override
	HasOverride bool
}

// Override is a limit that comes with a request: a fixed window, clock-aligned.
type Override struct {
	Rate uint32
	// Period in us; 0 for a unit that is not known.
	Period algorithms.Micros
}

// LimitAsk asks for a named limit.
type LimitAsk struct {
	Name    string
	Key     []string // empty: the one bucket of a limit without keys
	Count   int64
	Reserve bool
	// Of is, where Count gives back what was reserved, the moment at which that was charged.
	Of algorithms.Micros
	// Settle says that Count corrects what was reserved: 0, no difference, is always accepted.
	Settle bool
	// With Of: how fast the bucket refilled then, and what time it is now.
	ofInflow algorithms.Inflow
	now      algorithms.Micros
	// Inline is a limit that came with the request, by that name; nil: the configuration has it.
	Inline *descriptors.Policy
}

// Outcome is what one Result came to.
type Outcome uint8

// The outcomes. Only Denied and FailedDenied deny.
const (
	Allowed Outcome = iota
	Denied
	Shadowed      // would have been denied; shadow mode lets it pass
	Unlimited     // nothing to charge
	Replaced      // another limit of the request stands in for it: not charged
	FailedAllowed // the store could not decide; the policy lets it pass
	FailedDenied  // the store could not decide; the policy denies
)

// Denies reports whether o stands against the request.
func (o Outcome) Denies() bool { return o == Denied || o == FailedDenied }

// Result is what one limit said of a request.
type Result struct {
	// Descriptor (or Limits entry) it belongs to.
	Descriptor int
	// Policy is nil for an override that could not be read and had no configured limit: denied.
	Policy *descriptors.Policy
	// Key names the bucket; opaque. nil where nothing was charged.
	Key []byte
	// Cost is what this Result asked; a bucket met twice in a request is charged the sum.
	Cost     int64
	Decision backend.Decision
	Outcome  Outcome

	hash    uint64 // of the key
	slot    uint64
	of      algorithms.Micros
	reserve bool
	settle  bool
	local   bool // answered from this process's own bucket
	charge  int  // into Call.charges, or one of the values in plan.go
}

// Status is the answer to one descriptor: that of the limit that speaks for it.
type Status struct {
	// Result is the index of the limit that speaks; -1 where no limit applies, or none is known yet.
	Result int
	Denied bool
}

// Verdict is the answer to a Request.
type Verdict struct {
	// Snapshot is nil where there is none yet (Config.NoConfig).
	Snapshot *Snapshot
	// Domain is nil if it is not configured: then nothing is limited.
	Domain  *Domain
	Denied  bool
	Results []Result
	// Statuses has one Status for each descriptor, in order.
	Statuses []Status
	// Settlements are what the request settles, for each bucket.
	Settlements []Settlement
	// Replayed: this is the answer that was given before under the same ID. Nothing was taken now.
	Replayed bool
	// Spared: it would be Denied but for Modes.Shadow.
	Spared bool
	// Failed: a store could not decide, and a policy's OnFailure stood in.
	Failed bool
	// Err asks the listener to fail the call: OnFailure is error.
	Err error
	// Never: a denial for good, some cost being more than its limit can ever give, or Missing.
	Never bool
	// Missing is the Requirement of the Domain that the request does not meet, so that it is denied and nothing is
	// charged; nil: it meets all.
	Missing Requirement
	// quotasDeny: all quota limits deny, and so together the request.
	quotasDeny bool
	// RetryAfter is the longest of those that denied: the same request cannot succeed before.
	RetryAfter algorithms.Micros
	// Hold is how long the listener is to hold its answer, at most Request.Hold.
	Hold algorithms.Micros
}

// Denies reports whether r, one of v's Results, denies the request by itself or together with all other
// quota limits. A quota limit may deny on its own account while the request is denied by others.
func (v *Verdict) Denies(r *Result) bool {
	return v.Denied && r.Outcome.Denies() && (v.quotasDeny || r.Policy == nil || !r.Policy.Quota)
}

// Reset empties c for the next request, and keeps its room.
func (c *Call) Reset() {
	c.Request = Request{Descriptors: c.Descriptors[:0], Limits: c.Limits[:0]}
	c.Verdict = Verdict{Results: c.Results[:0], Statuses: c.Statuses[:0], Settlements: c.Settlements[:0]}
	c.ids, c.reserves, c.done, c.groups = nil, 0, 0, 0
	c.charges, c.keys = c.charges[:0], c.keys[:0]
	c.adjusted, c.blocked = nil, false
}

// Held is how many bytes c keeps room for, but for the entries of descriptors and what is the Batch's.
func (c *Call) Held() int {
	return cap(c.keys) + cap(c.buckets)*int(unsafe.Sizeof(c.buckets[0])) + cap(c.Results)*int(unsafe.Sizeof(Result{})) +
		cap(c.Statuses)*int(unsafe.Sizeof(Status{})) + cap(c.Descriptors)*int(unsafe.Sizeof(Descriptor{}))
}

// AddDescriptor returns room for one more descriptor, whose Entries may be reused.
func (c *Call) AddDescriptor() *Descriptor {
	if n := len(c.Descriptors); n < cap(c.Descriptors) {
		c.Descriptors = c.Descriptors[:n+1]
		d := &c.Descriptors[n]
		*d = Descriptor{Entries: d.Entries[:0]}
		return d
	}
	c.Descriptors = append(c.Descriptors, Descriptor{})
	return &c.Descriptors[len(c.Descriptors)-1]
}

// AppendValues appends the values that tell the bucket of r, one of c's Results, apart: those asked
// for, those of the entries left open, or all keys and values where the whole descriptor counts.
func (c *Call) AppendValues(dst []string, r *Result) []string {
	switch {
	case r.Key == nil:
		return dst
	case len(c.Limits) > 0:
		return append(dst, c.Limits[r.Descriptor].Key...)
	}
	entries := c.Descriptors[r.Descriptor].Entries
	if r.Policy.Whole {
		for _, e := range entries {
			dst = append(dst, e.Key, e.Value)
		}
		return dst
	}
	for _, i := range r.Policy.Open {
		dst = append(dst, entries[i].Value)
	}
	return dst
}
