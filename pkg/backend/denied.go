package backend

import (
	"bytes"
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Denied remembers denials, so that a key under attack costs next almost nothing: the same group,
// asking as much or more, is denied again without asking next until its retry could succeed, but for
// MaxAge at most. It never admits; it may deny up to MaxAge longer than next would when tokens come
// back in a way this process did not see (another process gives back, or resets). When MaxAge is over
// and the retry could not succeed yet, one asks next, and what others are answered is as old as that
// question takes.
//
// Of a limit with a penalty only what is denied by a block is remembered, and no longer than the block
// lasts: each denial before it counts.
//
// What this process gives back forgets the bucket's denials at once, and so does Forget.
func Denied(next Store, c DeniedConfig) *DeniedStore {
	if c.MaxAge <= 0 {
		c.MaxAge = time.Second
	}
	if c.MaxGroups <= 0 {
		c.MaxGroups = 65_536
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	s := &DeniedStore{next: next, config: c, groups: map[uint64]*denial{}, buckets: map[uint64][]uint64{}}
	s.trips.New = func() any { return &deniedTrip{} }
	return s
}

// DeniedConfig configures Denied; zero fields are the defaults.
type DeniedConfig struct {
	MaxAge    time.Duration    // how long a denial is believed at the most (1 s)
	MaxGroups int              // how many are remembered (65,536); beyond it all are forgotten
	Clock     func() time.Time // time.Now
}

// DeniedStore is the Store that Denied makes.
type DeniedStore struct {
	next   Store
	config DeniedConfig
	trips  sync.Pool

	forgot     atomic.Uint64 // counts what was forgotten
	remembered atomic.Int64  // how many groups there are

	mu      sync.RWMutex
	groups  map[uint64]*denial  // by the hash of all keys of a group; guarded by mu
	buckets map[uint64][]uint64 // the groups that a bucket denied in, by its key's hash; guarded by mu
	listed  int                 // how many groups buckets lists, those forgotten since included; guarded by mu
}

// denial is what next answered to a group.
type denial struct {
	hash      uint64 // of its group
	charges   []Charge
	decisions []Decision
	at, until time.Time
	retry     time.Time   // it lasts until then, as far as this process knows
	asked     atomic.Bool // somebody asks again
}

// Take implements Store.
func (s *DeniedStore) Take(ctx context.Context, charges []Charge, decisions []Decision) {
	if n := runs(charges); n > 1 || givesBack(charges) {
		s.takeRuns(ctx, charges, decisions, n)
		return
	}
	s.takeRun(ctx, charges, decisions)
}

// deniedTrip is what one Take of several groups asks of next. It is reused.
type deniedTrip struct {
	asked   []Charge
	answers []Decision
	places  []int     // where the groups that are asked begin
	again   []*denial // too old to be believed
}

func (t *deniedTrip) reset() {
	clear(t.asked)
	clear(t.again)
	t.asked, t.places, t.again = t.asked[:0], t.places[:0], t.again[:0]
}

// Ready implements Early.
func (s *DeniedStore) Ready() bool {
	early, ok := s.next.(Early)
	return s.remembered.Load() > 0 || ok && early.Ready()
}

// TakeEarly implements Early: it answers groups that are all known to be denied, and what next answers
// early. A denial that is too old to be believed is for Take to ask about.
func (s *DeniedStore) TakeEarly(charges []Charge, decisions []Decision) bool {
	if givesBack(charges) {
		return false
	}
	if s.remembered.Load() > 0 {
		now, all := s.config.Clock(), true
		for at := 0; at < len(charges) && all; {
			end := at + GroupLen(charges[at:])
			d := s.find(charges[at:end], decisions[at:end], now)
			all = d != nil && (now.Before(d.until) || d.asked.Load())
			at = end
		}
		if all {
			return true
		}
	}
	early, ok := s.next.(Early)
	return ok && early.TakeEarly(charges, decisions)
}

// Start implements Starter for groups of which none is known to be denied, where the Store below does.
func (s *DeniedStore) Start(charges []Charge, decisions []Decision, done func()) bool {
	if givesBack(charges) {
		return false
	}
	now, forgot := s.config.Clock(), s.forgot.Load()
	for at := 0; at < len(charges) && s.remembered.Load() > 0; {
		end := at + GroupLen(charges[at:])
		if s.find(charges[at:end], decisions[at:end], now) != nil {
			return false
		}
		at = end
	}
	return Start(s.next, charges, decisions, func() {
		for at := 0; at < len(charges); {
			end := at + GroupLen(charges[at:])
			s.learn(charges[at:end], decisions[at:end], now, forgot)
			at = end
		}
		done()
	})
}

// takeRuns takes n groups, those that are not known to be denied in one Take of next.
func (s *DeniedStore) takeRuns(ctx context.Context, charges []Charge, decisions []Decision, n int) {
	s.forgetGivenBack(charges)
	now, forgot := s.config.Clock(), s.forgot.Load()
	t := s.trips.Get().(*deniedTrip)
	defer s.trips.Put(t)
	defer t.reset()
	for at := 0; at < len(charges); {
		end := at + GroupLen(charges[at:])
		known, old := s.known(charges[at:end], decisions[at:end], now)
		if !known {
			t.places = append(t.places, at)
		}
		if old != nil {
			t.again = append(t.again, old)
		}
		at = end
	}
	switch len(t.places) {
	case 0:
		return
	case n: // the usual case: there is nothing to leave out
		clear(decisions)
		s.next.Take(ctx, charges, decisions)
	default:
		t.ask(ctx, s.next, charges, decisions)
	}
	for _, at := range t.places {
		end := at + GroupLen(charges[at:])
		s.learn(charges[at:end], decisions[at:end], now, forgot)
	}
	if len(t.again) > 0 {
		s.forgetOld(t.again...)
	}
	s.forgetGivenBack(charges)
}

// ask asks next about the groups at places only.
func (t *deniedTrip) ask(ctx context.Context, next Store, charges []Charge, decisions []Decision) {
	for _, at := range t.places {
		t.asked = append(t.asked, charges[at:at+GroupLen(charges[at:])]...)
	}
	t.answers = slices.Grow(t.answers[:0], len(t.asked))[:len(t.asked)]
	clear(t.answers)
	next.Take(ctx, t.asked, t.answers)
	answers := t.answers
	for _, at := range t.places {
		end := GroupLen(charges[at:])
		copy(decisions[at:at+end], answers[:end])
		answers = answers[end:]
	}
}

func (s *DeniedStore) takeRun(ctx context.Context, charges []Charge, decisions []Decision) {
	now, forgot := s.config.Clock(), s.forgot.Load()
	known, old := s.known(charges, decisions, now)
	if known {
		return
	}
	s.next.Take(ctx, charges, decisions)
	s.learn(charges, decisions, now, forgot)
	if old != nil {
		s.forgetOld(old)
	}
}

// known answers a group from memory, if it can. Where the denial has become too old to be believed,
// the first to ask is told, to ask next and then to forget it.
func (s *DeniedStore) known(charges []Charge, decisions []Decision, now time.Time) (known bool, old *denial) {
	d := s.find(charges, decisions, now)
	if d != nil && !now.Before(d.until) && d.asked.CompareAndSwap(false, true) {
		return false, d
	}
	return d != nil, nil
}

// find answers a group from the denial that is remembered, however old; nil: there is none.
func (s *DeniedStore) find(charges []Charge, decisions []Decision, now time.Time) *denial {
	if charges[0].Once != nil { // it may have been taken before the denial
		return nil
	}
	if s.remembered.Load() == 0 { // usually; it saves the hash
		return nil
	}
	s.mu.RLock()
	d := s.groups[groupHash(charges)]
	s.mu.RUnlock()
	if d == nil || !now.Before(d.retry) || len(charges) != len(d.charges) {
		return nil
	}
	passed := algorithms.Micros(now.Sub(d.at) / time.Microsecond)
	denied := false
	for i := range charges {
		if !d.answer(i, &charges[i], passed, &decisions[i]) {
			return nil
		}
		denied = denied || !decisions[i].Allowed
	}
	if !denied {
		return nil
	}
	return d
}

// forgetOld forgets denials that next has been asked about again, if they are still remembered.
func (s *DeniedStore) forgetOld(old ...*denial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range old {
		if s.groups[d.hash] == d {
			delete(s.groups, d.hash)
		}
	}
	s.remembered.Store(int64(len(s.groups)))
}

// answer is what charge i of what was denied says of c, which must be the same but for a cost at
// least as large, passed us later.
func (d *denial) answer(i int, c *Charge, passed algorithms.Micros, answer *Decision) bool {
	was := &d.charges[i]
	ask := was.Ask
	ask.Cost = max(ask.Cost, c.Ask.Cost)
	if was.Limit != c.Limit || ask != c.Ask || !bytes.Equal(was.Key, c.Key) {
		return false
	}
	*answer = d.decisions[i]
	switch {
	case answer.Allowed:
		// It was not charged, for another denied; a larger cost might be denied too.
		if ask.Cost > was.Ask.Cost {
			return false
		}
	case ask.Cost == was.Ask.Cost:
		answer.RetryAfter -= passed
		answer.Blocked = max(0, answer.Blocked-passed)
	case !c.retell(passed, answer):
		return false
	}
	answer.ResetAfter = max(0, answer.ResetAfter-passed)
	return answer.Allowed || answer.RetryAfter > 0
}

// retell answers c, which asks more than answer was for, where Value tells all there is to know of
// the bucket.
func (c *Charge) retell(passed algorithms.Micros, answer *Decision) bool {
	kind := c.Limit.Kind
	if c.Limit.Penalty.After > 0 {
		return false
	}
	whole := kind == algorithms.TokenBucket || kind == algorithms.LeakyBucket || kind == algorithms.FixedWindow
	if !whole || len(c.Shards) > 0 {
		return false
	}
	ask := c.Ask
	ask.Look = true
	was := algorithms.State{By: c.Limit, Value: answer.Value, At: answer.At}
	reset := answer.ResetAfter
	_, answer.Decision = c.Limit.Take(was, answer.At+passed, ask)
	answer.ResetAfter = reset
	return !answer.Allowed && !answer.Never
}

// learn remembers a denial that lasts.
func (s *DeniedStore) learn(charges []Charge, decisions []Decision, now time.Time, forgot uint64) {
	lasts, blocked := algorithms.Micros(0), algorithms.Micros(math.MaxInt64)
	for i := range charges {
		d := &decisions[i]
		if charges[i].Limit.Penalty.After > 0 {
			blocked = min(blocked, d.Blocked)
		}
		switch {
		case d.Err != nil || charges[i].Limit.ChargesDenied() || charges[i].Ask.Cost < 0:
			return
		case d.Never:
			return // costs next nothing to find out
		case !d.Allowed:
			lasts = max(lasts, d.RetryAfter)
		}
	}
	if lasts = min(lasts, blocked); lasts == 0 {
		return
	}
	hash := groupHash(charges)
	d := &denial{hash: hash, decisions: slices.Clone(decisions), at: now}
	d.retry = now.Add(time.Duration(lasts) * time.Microsecond)
	d.until = now.Add(min(s.config.MaxAge, d.retry.Sub(now)))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forgot.Load() != forgot { // something came back meanwhile: this may be out of date
		return
	}
	// A group that is forgotten for one of its buckets stays listed under the others.
	if len(s.groups) >= s.config.MaxGroups || s.listed >= 8*s.config.MaxGroups {
		s.clear()
	}
	for i := range charges {
		c := charges[i]
		c.Key = bytes.Clone(c.Key)
		d.charges = append(d.charges, c)
		if bucket := xxhash.Sum64(c.Key); s.groups[hash] == nil {
			s.buckets[bucket] = append(s.buckets[bucket], hash)
			s.listed++
		}
	}
	s.groups[hash] = d
	s.remembered.Store(int64(len(s.groups)))
}

// forgetGivenBack forgets the denials of buckets that get something back.
func (s *DeniedStore) forgetGivenBack(charges []Charge) {
	for i := range charges {
		if charges[i].Ask.Cost < 0 {
			s.ForgetBucket(charges[i].Key)
		}
	}
}

// ForgetBucket forgets the denials of one bucket.
func (s *DeniedStore) ForgetBucket(key []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgot.Add(1)
	bucket := xxhash.Sum64(key)
	for _, group := range s.buckets[bucket] {
		delete(s.groups, group)
	}
	s.remembered.Store(int64(len(s.groups)))
	s.listed -= len(s.buckets[bucket])
	delete(s.buckets, bucket)
}

// Forget forgets all denials.
func (s *DeniedStore) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgot.Add(1)
	s.clear()
}

// clear forgets all denials; s.mu is held.
func (s *DeniedStore) clear() {
	clear(s.groups)
	s.remembered.Store(0)
	clear(s.buckets)
	s.listed = 0
}

func groupHash(charges []Charge) uint64 {
	if len(charges) == 1 {
		return xxhash.Sum64(charges[0].Key)
	}
	var h uint64
	for i := range charges {
		h = h*0x9E3779B97F4A7C15 + xxhash.Sum64(charges[i].Key)
	}
	return h
}

// runs is how many groups charges are.
func runs(charges []Charge) (n int) {
	for len(charges) > 0 {
		charges = charges[GroupLen(charges):]
		n++
	}
	return n
}

func givesBack(charges []Charge) bool {
	for i := range charges {
		if charges[i].Ask.Cost < 0 {
			return true
		}
	}
	return false
}
