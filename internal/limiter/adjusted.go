package limiter

import (
	"slices"
	"sync"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// inUse is immutable. Adjust and Swap replace it as a whole.
type inUse struct {
	snapshot *Snapshot
	adjusted *adjusted // nil if there are no adjustments
	// since is when snapshot replaced another one; before that, limits may have had other numbers. It is 0 for the first
	// one, because a restart rarely changes numbers, and if no reservation can be settled.
	since algorithms.Micros
}

// adjusted is immutable. It contains only policies that have an adjustment.
type adjusted struct {
	limits map[*Policy]*adjustedLimit
	now    func() algorithms.Micros
}

// All policies with the same buckets share one adjustedLimit.
type adjustedLimit struct {
	all     *change            // nil if there is none
	keys    map[string]*change // by the key of the bucket
	matches []match            // those of all keys with one value; one for each entry
}

// match has the adjustments of all keys with one value of an entry, by the value. Blocks come first.
type match struct {
	entry     string
	positions map[int]int // the index of the value in a key that is not of a whole descriptor, by the length of the key
	block     bool
	byValue   map[string]*change
}

// of returns the change for the key of r, or nil. A settlement has no values, and no adjustment of a value.
func (m *match) of(c *Call, r *Result) *change {
	if r.settle {
		return nil
	}
	var room [8]string
	key := c.AppendValues(room[:0], r)
	if !r.Policy.Whole {
		at := slices.Index(r.Policy.Extra().OpenKeys, m.entry)
		if i, has := m.positions[len(key)]; has && len(c.Limits) > 0 { // such a key has no names, so those of a descriptor with as many values count
			at = i
		}
		if at < 0 {
			return nil
		}
		return m.byValue[key[at]]
	}
	for i := 0; i < len(key); i += 2 {
		if one := m.byValue[key[i+1]]; key[i] == m.entry && one != nil {
			return one
		}
	}
	return nil
}

// positionsOf returns the positions in a key of the value of an entry, by the length of the key: several descriptors may use
// a named limit. policies are those of the limit. has is false if no key of the limit has such an entry. Keys of a whole
// descriptor can have any entry, at any position.
func positionsOf(policies []*Policy, entry string) (positions map[int]int, has bool) {
	positions = map[int]int{}
	for _, p := range policies {
		keys := p.Extra().OpenKeys
		if i := slices.Index(keys, entry); i >= 0 {
			if _, known := positions[len(keys)]; !known {
				positions[len(keys)] = i
			}
		}
		has = has || p.Whole
	}
	return positions, has || len(positions) > 0
}

// Several policies with different settings may use the adjusted limit, and each of them needs an adjusted copy. The
// copy of original is made in advance, each other copy at the first request that needs it.
type change struct {
	adjustment *adjust.Adjustment
	original   *Policy
	copy       *Policy
	others     sync.Map // maps a *Policy to its adjusted copy, or to itself if the adjustment does not apply
}

// policy returns a copy of p with the adjusted numbers, or p itself if the adjustment does not apply to p.
func (c *change) policy(p *Policy) *Policy {
	if p == c.original {
		return c.copy
	}
	if found, ok := c.others.Load(p); ok {
		return found.(*Policy)
	}
	changed, err := apply(c.adjustment, p)
	if err != nil {
		changed = p
	} else if p.Limit == c.original.Limit {
		changed.Limit = c.copy.Limit // equal limits share a pointer, because stores compare pointers first
	}
	found, _ := c.others.LoadOrStore(p, changed)
	return found.(*Policy)
}

// Adjusted describes how a Set of adjustments applies to a configuration.
type Adjusted struct {
	// InForce is the number of adjustments that change a limit. Ignored is the number of unexpired adjustments
	// that change no limit: the limit is not configured, or cannot have these numbers.
	InForce, Ignored int
	// Next is the time at which the next adjustment expires; 0 if there is none.
	Next algorithms.Micros
}

// Adjust replaces the adjustments in force by those in set. They apply to all Calls that start from now on, in the
// current configuration and in later ones. clock returns the time that decides whether an adjustment has expired.
// Adjust returns what Adjusted returns afterwards.
func (l *Limiter) Adjust(set *adjust.Set, clock func() algorithms.Micros) Adjusted {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set, l.now = set, clock
	return l.use(l.Current())
}

// use does nothing if s is nil. l.mu must be held.
func (l *Limiter) use(s *Snapshot) (result Adjusted) {
	if s == nil {
		return result
	}
	next := &inUse{snapshot: s}
	if was := l.current.Load(); was != nil && l.config.Now != nil {
		if next.since = was.since; was.snapshot != s {
			next.since = l.config.Now()
		}
	}
	if l.set != nil && l.set.Len() > 0 {
		next.adjusted, result = compileAdjusted(s, l.set, l.now)
	}
	l.current.Store(next)
	l.effect = result
	return result
}

// Adjusted returns how the adjustments apply to the current configuration.
func (l *Limiter) Adjusted() Adjusted {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.effect
}

func compileAdjusted(s *Snapshot, set *adjust.Set, now func() algorithms.Micros) (*adjusted, Adjusted) {
	var result Adjusted
	byName := map[[2]string][]*adjust.Adjustment{}
	for _, a := range set.All() {
		if a.Expires <= now() {
			continue
		}
		if result.Next == 0 || a.Expires < result.Next {
			result.Next = a.Expires
		}
		result.Ignored++ // counts all first; those that apply are subtracted at the end
		name := [2]string{a.Target.Domain, a.Target.Limit}
		byName[name] = append(byName[name], a)
	}
	if len(byName) == 0 {
		return nil, result
	}
	compiled := &adjusted{limits: map[*Policy]*adjustedLimit{}, now: now}
	owners := map[string]*adjustedLimit{}
	applied := map[string]bool{}
	for name, list := range byName {
		policies := s.Find(name[0], name[1])
		for _, p := range policies {
			limit, known := owners[p.Owner]
			if !known {
				limit = compileLimit(p, policies, list, applied)
				owners[p.Owner] = limit
			}
			if limit != nil {
				compiled.limits[p] = limit
			}
		}
	}
	result.InForce = len(applied)
	result.Ignored -= len(applied)
	if len(compiled.limits) == 0 {
		return nil, result
	}
	return compiled, result
}

// compileLimit compiles the adjustments of the limit of p. policies are all policies of the limit. It sets
// applied[a.ID] for each adjustment a that changes the limit of p. It returns nil if there is none.
func compileLimit(p *Policy, policies []*Policy, list []*adjust.Adjustment, applied map[string]bool) *adjustedLimit {
	limit := &adjustedLimit{keys: map[string]*change{}}
	for _, a := range list {
		copied, err := apply(a, p)
		if err != nil {
			continue
		}
		var positions map[int]int
		has := true
		if a.Target.Entry != "" {
			positions, has = positionsOf(policies, a.Target.Entry)
		}
		if !has {
			continue
		}
		applied[a.ID] = true
		c := &change{adjustment: a, original: p, copy: copied}
		switch {
		case a.Target.AllKeys:
			limit.all = c
		case a.Target.Entry != "":
			limit.addMatch(positions, c)
		default:
			limit.keys[string(bucketKey(p, a.Target.Key))] = c
		}
	}
	if limit.all == nil && len(limit.keys) == 0 && limit.matches == nil {
		return nil
	}
	slices.SortStableFunc(limit.matches, func(a, b match) int {
		switch {
		case a.block == b.block:
			return 0
		case a.block:
			return -1
		}
		return 1
	})
	return limit
}

func (l *adjustedLimit) addMatch(positions map[int]int, c *change) {
	t, block := &c.adjustment.Target, c.adjustment.Change.Block
	i := slices.IndexFunc(l.matches, func(m match) bool { return m.entry == t.Entry && m.block == block })
	if i < 0 {
		i = len(l.matches)
		l.matches = append(l.matches, match{t.Entry, positions, block, map[string]*change{}})
	}
	l.matches[i].byValue[t.Value] = c
}

func bucketKey(p *Policy, values []string) []byte {
	key, _ := p.AppendKeyOf(nil, values)
	return key
}

// adjust replaces r.Policy if an adjustment is in force. r.Key must be set. An adjustment of the key takes precedence
// over one of all keys with one value, and that over one of all keys.
func (c *Call) adjust(r *Result) {
	limit := c.adjusted.limits[r.Policy]
	if limit == nil {
		return
	}
	now := c.adjusted.now()
	inForce := func(one *change) bool {
		if one == nil || now >= one.adjustment.Expires {
			return false
		}
		r.Policy = one.policy(r.Policy)
		return true
	}
	if inForce(limit.keys[string(r.Key)]) {
		return
	}
	for i := range limit.matches {
		if inForce(limit.matches[i].of(c, r)) {
			return
		}
	}
	inForce(limit.all)
}

// adjustOverridden adds a Result for each limit that the override of descriptor i replaces, if an adjustment of
// the limit is in force for the key and does not make it unlimited. So the stricter of the adjusted limit and
// the override decides.
func (c *Call) adjustOverridden(i int) {
	d := &c.Descriptors[i]
	node := c.Verdict.Domain.Tree.Match(d.Entries)
	if node == nil {
		return
	}
	for _, p := range node.Found.Policies {
		if c.adjusted.limits[p] == nil {
			continue
		}
		keys := len(c.keys)
		c.apply(i, p)
		last := len(c.Results) - 1
		if a := c.Results[last].Policy.Adjusted; a == nil || a.Unlimited {
			c.Results, c.keys = c.Results[:last], c.keys[:keys]
		}
	}
}

// isBlocked reports whether an operator's block denies r. A block does not deny refunds and settlements of
// units that were consumed earlier.
func (r *Result) isBlocked() bool {
	return r.Policy != nil && r.Policy.Adjusted != nil && r.Policy.Adjusted.Block && r.Cost >= 0 && !r.settle
}

// isUnlimited reports whether the limit of r allows r and charges nothing: it is configured as unlimited, or an operator
// has made it so for the key. In the second case refunds still change the bucket, because the units were
// consumed before, or bought.
func (r *Result) isUnlimited() bool {
	p := r.Policy
	adjusted := p.Adjusted != nil && p.Adjusted.Unlimited
	return p.Unlimited && !r.isBlocked() && !(adjusted && r.Cost < 0)
}

// allowUnlimited makes r an Unlimited Result if isUnlimited is true. An operator who inspects buckets gets the state of the
// bucket, if the limit has one.
func (c *Call) allowUnlimited(r *Result) {
	if r.isUnlimited() && !(c.Inspect && r.Policy.Limit.Rate > 0) {
		r.Outcome, r.charge, r.Key = Unlimited, noCharge, nil
		c.excepted = true
	}
}

// deniedByBlock denies a request without charging it if an operator blocks one of its keys. It reports
// whether it did. An operator who inspects buckets is not denied, and gets their state.
func (c *Call) deniedByBlock() bool {
	for i := range c.Results {
		c.blocked = c.blocked || c.Results[i].isBlocked()
	}
	return c.blocked && !c.Inspect && c.deny(func(r *Result) bool {
		if r.isBlocked() {
			r.block(c.adjusted.now())
		}
		return r.isBlocked()
	})
}

// neverFits reports whether no bucket of p can ever hold the cost of charge. An adjusted limit that cannot hold it is no
// reason if the configured one can: the adjustment expires.
func neverFits(p *Policy, charge *backend.Charge) bool {
	return charge.NeverFits() && !fitsConfigured(p, charge)
}

// fitsConfigured reports whether an adjustment has changed the numbers of p, and the configured limit can hold the cost
// of charge.
func fitsConfigured(p *Policy, charge *backend.Charge) bool {
	if p.Adjusted == nil || p.Adjusted.Configured == nil {
		return false
	}
	cost, reserve := charge.Terms.Cost, charge.Terms.Reserve
	if own := charge.Own; own != nil {
		cost, reserve = own.Cost, own.Reserve
	}
	return cost <= p.Adjusted.Configured.Most(reserve)
}

// deniedUntilExpiry gives the denials by adjusted limits that can never hold their costs a retry time, if the
// configured limits can hold them. It is the time until the adjustment expires.
func (c *Call) deniedUntilExpiry() {
	if c.adjusted == nil {
		return
	}
	set := func(p *Policy, charge int) {
		if d := &c.decisions[charge]; d.Never && fitsConfigured(p, &c.charges[charge]) {
			d.Never, d.RetryAfter = false, max(1, p.Adjusted.Expires-c.adjusted.now())
		}
	}
	for i := range c.Results {
		if r := &c.Results[i]; r.charge >= 0 {
			set(r.Policy, r.charge)
		}
	}
	for i := range c.payers {
		set(c.payers[i].Policy, c.payers[i].charge)
	}
}

func (r *Result) block(now algorithms.Micros) {
	left := max(1, r.Policy.Adjusted.Expires-now)
	d := &r.Decision
	d.Allowed, d.Remaining = false, 0
	d.Blocked, d.RetryAfter = max(d.Blocked, left), max(d.RetryAfter, left)
}

// Adjustable implements adjust.Limits. The error is ErrNoConfig, a *RequestError, or describes a mistake in the key of t.
func (l *Limiter) Adjustable(t *adjust.Target) (domain string, algorithm algorithms.Kind, err error) {
	policies, err := l.adjustable(t)
	if err != nil {
		return "", 0, err
	}
	return policies[0].Domain, policies[0].Limit.Kind, checkTarget(t, policies)
}

// Words implements adjust.Limits.
func (l *Limiter) Words(a *adjust.Adjustment) (string, error) {
	policies, err := l.adjustable(&a.Target)
	if err != nil {
		return "", err
	}
	if err := checkTarget(&a.Target, policies); err != nil && a.Target.Entry != "" {
		return "", err
	}
	return AdjustmentWords(a, policies[0])
}

// adjustable returns the policies of the limit of t. The error is a *RequestError or ErrNoConfig.
func (l *Limiter) adjustable(t *adjust.Target) ([]*Policy, error) {
	s := l.Current()
	if s == nil {
		return nil, ErrNoConfig
	}
	return s.uses(t.Domain, t.Limit, notAdjustable)
}

// notAdjustable ends the error for a limit that is not configured. A limit that comes with requests cannot be
// distinguished from a misspelled name, because it is known only from requests. So the error explains both.
const notAdjustable = " in the configuration; a limit that comes with requests (config) cannot be adjusted: configure it under this name, and leave out config in the requests"

// Buckets returns the keys of the buckets that a affects. Each key occurs once. If a may affect every bucket of its
// limit, all is true and keys is nil. If the limit is not configured, keys is nil too.
func (l *Limiter) Buckets(a *adjust.Adjustment) (keys [][]byte, all bool) {
	s := l.Current()
	if s == nil {
		return nil, false
	}
	owners := map[string]bool{}
	for _, p := range s.Find(a.Target.Domain, a.Target.Limit) {
		if owners[p.Owner] {
			continue
		}
		owners[p.Owner] = true
		if a.Target.AllKeys || a.Target.Entry != "" {
			return nil, true
		}
		keys = append(keys, bucketKey(p, a.Target.Key))
	}
	return keys, false
}

var _ adjust.Limits = (*Limiter)(nil)
