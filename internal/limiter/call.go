package limiter

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Call is a request and its answer, with the buffers of both. A listener reuses Calls (Reset), so that a
// request allocates nothing. The strings of a Call may point into a buffer of the listener. The Limiter does
// not use them after Check or Batch.Finish.
type Call struct {
	Request
	Verdict

	config    *Config
	adjusted  *adjusted          // nil if there are no adjustments
	since     algorithms.Micros  // inUse.since
	blocked   bool               // an operator blocks a key, so the request is denied in every mode
	excepted  bool               // because an operator blocks a key or made it unlimited, the request has other charges
	charges   []backend.Charge   // in a Batch: a part of the Batch's charges
	decisions []backend.Decision // in a Batch: a part of the Batch's decisions
	keys      []byte
	buckets   []uint32 // hash table by bucket key; it holds 1 + an index into charges, and 0 where it is free
	inBatch   span
	payers    []payer
	places    []place
	order     []int

	header   header
	reserved Reserved // the content of an id that is made or opened; its memory is reused
	reserves int      // how many parts the id of the answer has (inID), and those of shadow limits with slots
	done     int      // how many Descriptors settle reservations
	slotID   [16]byte // of the slots; zero if there are none
	slots    int      // how many charges take slots
	returns  []slotReturn
	together int // the Charge.Group of the limits that are charged together
	groups   int // the last used Charge.Group
}

// Request has either the descriptors that a proxy sent, or limits by name.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	// Limits are named limits. They are charged together, except limits in shadow or quota mode. Domain may be empty if
	// only one domain has the name.
	Limits []NamedCharge
	// Settle is a reservation that an application settles; nil means none. Check then adds the limits of the
	// reservation to Limits.
	Settle *Settle
	// IdempotencyKey is used for Limits if it has an ID. It cannot be combined with DryRun.
	IdempotencyKey IdempotencyKey
	DryRun         bool
	// ID is the id of a reservation that a proxy sends beside the descriptors, or "". The request then settles the
	// reserved buckets that its descriptors match, if these state their costs themselves.
	ID string
	// Unsettled means that the answer has no id, so that nothing settles what the request reserves.
	Unsettled bool
	// Returns means that the answer has an id with which its client returns slots. Otherwise concurrency limits deny.
	Returns bool
	// Inspect is DryRun for an operator. The Observer does not get the request. The key of a named limit
	// must have as many values as there are open entries in the descriptors that use the limit.
	Inspect bool
	// MadeFor is the configuration from which the listener made the request. If another one is in use, Check returns
	// ErrReloaded. nil means that the request does not depend on one.
	MadeFor *Snapshot
	// Arrived is the time of arrival by this process's clock. It is zero if the listener does not know it.
	Arrived time.Time
	// Listener is for telemetry only.
	Listener Listener
	// Canceled, if not nil, becomes true when the client no longer waits for the answer. A request that the
	// store has queued is then not charged.
	Canceled *atomic.Bool
	// MaxDelay is the longest time that the listener can delay the answer until its turn in a leaky bucket.
	// Listeners that report the wait leave it 0.
	MaxDelay algorithms.Micros
}

// Listener names the API through which a Request came.
type Listener uint8

// The listeners. The zero value is that of most requests.
const (
	OverGRPC Listener = iota // Envoy's RateLimitService
	OverJSON                 // the same messages in JSON
	OverHTTP                 // /v1/limit and its relatives, for applications
	OverAuth                 // /v1/auth, for proxies

	Listeners = iota // their number
)

// IsRateLimitService reports whether l is Envoy's RateLimitService, over gRPC or in JSON.
func (l Listener) IsRateLimitService() bool { return l <= OverJSON }

// String returns the name for metrics.
func (l Listener) String() string { return [...]string{"grpc", "json", "v1", "auth"}[l] }

// Descriptor is one descriptor of a Request, with the settings that the request has for it.
type Descriptor struct {
	Entries []descriptors.Entry
	// Cost is in units. 0 is a dry run, a negative cost is a refund.
	Cost int64
	// Explicit means that the descriptor itself stated the cost, and is no refund. Declared means that the descriptor or its
	// request did.
	Explicit, Declared bool
	Override           Override
	HasOverride        bool
}

// State sets the cost that d itself states.
func (d *Descriptor) State(cost int64) { d.Cost, d.Explicit, d.Declared = cost, cost >= 0, true }

// Override is a limit that comes with a request: a clock-aligned fixed window.
type Override struct {
	Rate uint32
	// Period is in microseconds; 0 means an unknown unit.
	Period algorithms.Micros
}

// NamedCharge is a request for a named limit.
type NamedCharge struct {
	Name  string
	Key   []string // empty for a limit that has only one bucket
	Count int64
	// Costs, if not nil, has numbers of units by kind. Count is then their cost by the weights of the
	// limit.
	Costs   map[string]int64
	Reserve bool
	MaxWait algorithms.Micros // the longest acceptable wait for the units (algorithms.Charge.MaxWait); 0 means no bound
	// Inline is a limit that came with the request under this Name. nil means that the limit is configured.
	Inline *Policy
}

// Outcome is the outcome of one Result.
type Outcome uint8

// The outcomes. Only Denied and FailedDenied deny.
const (
	Allowed Outcome = iota
	Denied
	Shadowed      // allowed only because of shadow mode
	Unlimited     // the configured limit is unlimited, so nothing is charged
	Replaced      // not charged: another limit of the request replaces this limit, or denies before anything is charged
	FailedAllowed // the store could not decide; on_backend_failure allows
	FailedDenied  // the store could not decide; on_backend_failure denies
)

// Denies reports whether o causes a denial. Quota limits deny only together; see Verdict.Denies.
func (o Outcome) Denies() bool { return o == Denied || o == FailedDenied }

// Result is the answer of one limit to a request.
type Result struct {
	// Descriptor is the index of the Result's descriptor, or of its entry in Limits.
	Descriptor int
	// For is set if the payer of a policy with Then paid. It is the policy that the descriptor matched;
	// Policy, Key and Decision are those of the payer.
	For *Policy
	// Policy is nil for an override that could not be parsed and replaces no configured limit. Such a
	// Result is denied.
	Policy *Policy
	// Key identifies the bucket; its bytes are opaque. It is nil if the request has no bucket: the Policy is
	// unlimited or nil.
	Key []byte
	// Cost is in units. A bucket that occurs twice in a request is charged the sum of both Costs. If For is set, Cost is
	// what the payer paid for all limits of the plan; it is 0 in all Results of the plan but one.
	Cost     int64
	Decision backend.Decision
	Outcome  Outcome
	// NoReturn means that a concurrency limit denies because the answer has no id, so that nothing could return a slot.
	NoReturn bool

	hash      uint64
	slot      uint64
	cell      uint64            // the number of the estimate; 0 means that no estimate is learned
	chargedAt algorithms.Micros // Charge.ChargedAt of a settlement; 0 for other charges
	maxWait   algorithms.Micros
	reserve   bool
	settle    bool
	open      bool  // Charge.Open: settle and open settle a reservation by bucket
	local     bool  // this process's own bucket decided
	payer     int   // 1 + index into Call.payers; 0 means none
	times     int64 // if For is set: how many Results of the request have the bucket whose cost was paid; else 0
	charge    int   // index into Call.charges, or noCharge or toCharge
}

// Status is the answer to one descriptor or named limit. For a descriptor it is that of its most restrictive limit.
type Status struct {
	// Result is the index of that limit's Result. It is -1 if no limit applies, or if none is known yet.
	Result int
	Denied bool
}

// Verdict is the answer to a Request.
type Verdict struct {
	// Snapshot is nil if none was loaded yet (Config.NoConfig).
	Snapshot *Snapshot
	// Domain is nil if it is not configured. The request is then allowed.
	Domain  *Domain
	Denied  bool
	Results []Result
	// Statuses has one Status for each descriptor or named limit, in order.
	Statuses []Status
	// Settlements has one Settlement for each reserved bucket that the request settles, and one for each id that
	// settles nothing.
	Settlements []Settlement
	// SlotOutcomes has the outcomes of the slots that the request returns, in no particular order.
	SlotOutcomes []SlotOutcome
	// Replayed means that the answer, or a part of it, is the stored answer to an earlier request with the same
	// idempotency key. That part consumed nothing now.
	Replayed bool
	// WouldDeny means that the request would be Denied without Modes.Shadow.
	WouldDeny bool
	// Failed means that a store could not decide, or that there is no valid configuration. Then on_backend_failure
	// decides, except that settlements are denied.
	Failed bool
	// Err makes the listener fail the call, because the store could not decide a limit with on_backend_failure: error.
	// It is nil otherwise.
	Err error
	// Never means that no wait can change the denial, for example because a cost exceeds the most that its limit can
	// ever allow, or because Missing is set. RetryAfter is then 0.
	Never bool
	// Busy means that only concurrency limits deny, so that the retry time is unknown. RetryAfter is then 0.
	Busy bool
	// Missing is the Requirement of the Domain that the request does not satisfy. Such a request is denied and
	// not charged. It is nil if the request satisfies all.
	Missing Requirement
	// quotasDeny means that all quota limits deny. Quota limits deny a request only together.
	quotasDeny bool
	// RetryAfter is the longest retry time of the limits that denied. Of quota limits only the shortest one counts. The same
	// request cannot succeed earlier.
	RetryAfter algorithms.Micros
	// Delay is the time for which the listener must delay its answer. It is at most Request.MaxDelay.
	Delay algorithms.Micros
}

// Denies reports whether r, one of v's Results, denies the request, by itself or together with all other
// quota limits. The outcome of a quota limit may be Denied although the request is denied only by other
// limits.
func (v *Verdict) Denies(r *Result) bool {
	return v.Denied && r.Outcome.Denies() && (v.quotasDeny || r.Policy == nil || !r.Policy.Quota)
}

// Reset empties c for the next request, and keeps its buffers.
func (c *Call) Reset() {
	// Emptied in place: a composite literal would be built on the stack and then copied, which takes three
	// times as long.
	descriptors, limits := c.Descriptors[:0], c.Limits[:0]
	results, statuses, settlements, outcomes := c.Results[:0], c.Statuses[:0], c.Settlements[:0], c.SlotOutcomes[:0]
	c.Request = Request{}
	c.Verdict = Verdict{}
	c.Descriptors, c.Limits = descriptors, limits
	c.Results, c.Statuses, c.Settlements, c.SlotOutcomes = results, statuses, settlements, outcomes
	c.reserves, c.done, c.together, c.groups, c.header.opened = 0, 0, 0, 0, false
	c.slotID, c.slots, c.returns = [16]byte{}, 0, c.returns[:0]
	c.charges, c.keys, c.payers = c.charges[:0], c.keys[:0], c.payers[:0]
	c.config, c.adjusted, c.blocked, c.excepted = nil, nil, false, false
}

// Consumed reports whether the store, or this process's own bucket, consumed the Cost of r, one of c's Results. It reads
// the store's decision and not the verdict: a request can be allowed although a limit denied it, for example in
// shadow mode, and a limit allows a cost that its group does not consume.
func (c *Call) Consumed(r *Result) bool {
	if r.charge < 0 {
		return false
	}
	d := &c.decisions[r.charge]
	if c.charges[r.charge].Terms.DryRun && !d.Replayed {
		return false
	}
	if d.Err != nil || r.local {
		return d.Err == nil && d.Allowed
	}
	start := r.charge
	for start > 0 && c.charges[start-1].Group == c.charges[start].Group {
		start--
	}
	end := start + backend.GroupLen(c.charges[start:])
	return backend.Allowed(c.charges[start:end], c.decisions[start:end])
}

// BufferBytes returns the size in bytes of the buffers that grow with the number of descriptors. It leaves out the
// entries of descriptors, and charges and decisions, which in a Batch belong to the Batch.
func (c *Call) BufferBytes() int {
	return cap(c.keys) + cap(c.buckets)*int(unsafe.Sizeof(c.buckets[0])) + cap(c.Results)*int(unsafe.Sizeof(Result{})) +
		cap(c.Statuses)*int(unsafe.Sizeof(Status{})) + cap(c.Descriptors)*int(unsafe.Sizeof(Descriptor{})) +
		cap(c.payers)*int(unsafe.Sizeof(payer{})) + cap(c.places)*int(unsafe.Sizeof(place{})) + cap(c.order)*int(unsafe.Sizeof(0)) +
		cap(c.Settlements)*int(unsafe.Sizeof(Settlement{}))
}

// AddDescriptor adds an empty descriptor to c and returns it. Its Entries may use memory of an earlier request.
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

// AppendValues appends the values that identify the bucket of r, one of c's Results. These are the
// requested key, or the values of the open entries, or all keys and values if the whole descriptor
// identifies the bucket.
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
