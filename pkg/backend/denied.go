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
// A denial is forgotten as soon as this process consumes or refunds units of one of its buckets, so that
// an answer is what next would say but for what other processes did. Remaining and ResetAfter of
// other buckets than token buckets and fixed windows, of shards and of limits with a penalty are those of
// the moment that is remembered.
//
// Of a limit with a penalty only what is denied by a block is remembered, and no longer than the block
// lasts: each denial before it counts.
//
// Forget and ForgetBucket forget at once.
func Denied(next Taker, c DeniedConfig) *DeniedStore {
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
	next   Taker
	config DeniedConfig
	trips  sync.Pool

	remembered atomic.Int64  // how many groups there are
	takes      atomic.Uint64 // numbers the Takes of next
	forgotten  atomic.Uint64 // the newest Take when all were forgotten
	// changed is, by a part of a key's hash, the newest Take when this process last changed a bucket. A
	// denial by that Take, or one before, may be out of date.
	changed [1024]atomic.Uint64

	mu      sync.RWMutex
	groups  map[uint64]*denial  // by the hash of all keys of a group; guarded by mu
	buckets map[uint64][]uint64 // the groups that a bucket denied in, by its key's hash; guarded by mu
	listed  int                 // how many groups buckets lists, those forgotten since included; guarded by mu
}

// unknown is a time that is not known.
const unknown algorithms.Micros = -1

// denial is what next answered to a group.
type denial struct {
	hash      uint64 // of its group
	charges   []Charge
	decisions []Decision
	stays     []algorithms.Micros // how long each Remaining stays as it is; unknown where the decision does not tell all of its bucket
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
	now, take := s.config.Clock(), s.takes.Add(1)
	for at := 0; at < len(charges) && s.remembered.Load() > 0; {
		end := at + GroupLen(charges[at:])
		if s.find(charges[at:end], decisions[at:end], now) != nil {
			return false
		}
		at = end
	}
	return Start(s.next, charges, decisions, func() {
		defer done() // even if learning panics
		for at := 0; at < len(charges); {
			end := at + GroupLen(charges[at:])
			s.learn(charges[at:end], decisions[at:end], now, take)
			at = end
		}
	})
}

// takeRuns takes n groups, those that are not known to be denied in one Take of next.
func (s *DeniedStore) takeRuns(ctx context.Context, charges []Charge, decisions []Decision, n int) {
	s.forgetGivenBack(charges)
	now, take := s.config.Clock(), s.takes.Add(1)
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
		s.learn(charges[at:end], decisions[at:end], now, take)
	}
	if len(t.again) > 0 {
		s.forgetOld(t.again...)
	}
	s.forgetGivenBack(charges)
}

// ask asks next about the groups at places only.
func (t *deniedTrip) ask(ctx context.Context, next Taker, charges []Charge, decisions []Decision) {
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
	now := s.config.Clock()
	known, old := s.known(charges, decisions, now)
	if known {
		return
	}
	take := s.takes.Add(1)
	s.next.Take(ctx, charges, decisions)
	s.learn(charges, decisions, now, take)
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
	switch more := ask.Cost > was.Ask.Cost; {
	case more && (answer.Allowed || d.stays[i] == unknown):
		return false // what allowed one cost may not allow more
	case more:
		answer.RetryAfter = c.retryLater(answer, passed)
	case !answer.Allowed:
		answer.RetryAfter -= passed
		answer.Blocked = max(0, answer.Blocked-passed)
	}
	if stays := d.stays[i]; stays == unknown || passed < stays {
		answer.ResetAfter = max(0, answer.ResetAfter-passed)
	} else {
		answer.Remaining, answer.ResetAfter = c.remainsLater(answer, passed)
	}
	return answer.Allowed || answer.RetryAfter > 0
}

// retryLater is the retry time of c when passed us have passed since d denied a smaller cost, where Value
// tells all there is to know of the bucket; 0: it can never fit, or would be allowed.
func (c *Charge) retryLater(d *Decision, passed algorithms.Micros) algorithms.Micros {
	return c.peekLater(d, passed, c.Ask).RetryAfter
}

func (c *Charge) peekLater(d *Decision, passed algorithms.Micros, ask algorithms.Ask) algorithms.Decision {
	ask.Look = true
	_, later := c.Limit.Take(algorithms.State{By: c.Limit, Value: d.Value, At: d.At}, d.At+passed, ask)
	return later
}

// remainsLater is Remaining and ResetAfter when passed us have passed since d, where Value tells all
// there is to know of the bucket.
func (c *Charge) remainsLater(d *Decision, passed algorithms.Micros) (int64, algorithms.Micros) {
	later := c.Limit.Seen(d.Value, d.At, d.At+passed, c.Ask.Hash)
	return later.Remaining, later.ResetAfter
}

// stays is how long Remaining of d, the answer to c, stays as it is. It is unknown where d does not tell
// all there is to know of the bucket: where that has parts, or its state is in other numbers or of a clock
// that stepped back.
func (c *Charge) stays(d *Decision) algorithms.Micros {
	kind := c.Limit.Kind
	if kind != algorithms.TokenBucket && kind != algorithms.FixedWindow || c.Limit.Rate == 0 || len(c.Shards) > 0 || c.Limit.Penalty.After > 0 {
		return unknown
	}
	remaining, reset := c.remainsLater(d, 0)
	if remaining != d.Remaining || reset != d.ResetAfter || !d.Allowed && c.retryLater(d, 0) != d.RetryAfter {
		return unknown
	}
	return c.peekLater(d, 0, algorithms.Ask{Cost: d.Remaining + 1, Hash: c.Ask.Hash}).RetryAfter
}

// learn remembers a denial that lasts, and forgets those of buckets that have been charged. The group
// was sent at asked, by that Take.
func (s *DeniedStore) learn(charges []Charge, decisions []Decision, asked time.Time, take uint64) {
	if Took(charges, decisions) {
		s.consumed(charges)
		return
	}
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
	d := &denial{hash: groupHash(charges), decisions: slices.Clone(decisions), at: asked}
	d.retry = asked.Add(time.Duration(lasts) * time.Microsecond)
	d.until = asked.Add(min(s.config.MaxAge, d.retry.Sub(asked)))
	for i := range charges {
		c := charges[i]
		c.Key = bytes.Clone(c.Key)
		d.charges = append(d.charges, c)
		d.stays = append(d.stays, c.stays(&decisions[i]))
	}
	s.remember(d, take)
}

// remember remembers d, which that Take was answered, unless it may be out of date.
func (s *DeniedStore) remember(d *denial, take uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// First, so that a goroutine that changes a bucket from now on waits for the lock.
	s.remembered.Store(int64(len(s.groups)) + 1)
	defer func() { s.remembered.Store(int64(len(s.groups))) }()
	if s.outdated(d.charges, take) {
		return
	}
	// A group that is forgotten for one of its buckets stays listed under the others.
	if len(s.groups) >= s.config.MaxGroups || s.listed >= 8*s.config.MaxGroups {
		s.clear()
	}
	for i := range d.charges {
		if bucket := xxhash.Sum64(d.charges[i].Key); s.groups[d.hash] == nil {
			s.buckets[bucket] = append(s.buckets[bucket], d.hash)
			s.listed++
		}
	}
	s.groups[d.hash] = d
}

// outdated reports whether this process may have changed one of the buckets, or forgotten all denials,
// since that Take began.
func (s *DeniedStore) outdated(charges []Charge, take uint64) bool {
	if s.forgotten.Load() >= take {
		return true
	}
	for i := range charges {
		if s.changedBy(xxhash.Sum64(charges[i].Key)).Load() >= take {
			return true
		}
	}
	return false
}

func (s *DeniedStore) changedBy(bucket uint64) *atomic.Uint64 {
	return &s.changed[bucket%uint64(len(s.changed))]
}

// consumed forgets the denials of buckets that have been charged.
func (s *DeniedStore) consumed(charges []Charge) {
	for i := range charges {
		c := &charges[i]
		if c.Ask.Cost <= 0 || c.Ask.Look {
			continue
		}
		s.ForgetBucket(c.Key)
	}
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
	bucket := xxhash.Sum64(key)
	s.changedBy(bucket).Store(s.takes.Load())
	if s.remembered.Load() == 0 {
		return
	}
	s.mu.RLock()
	listed := len(s.buckets[bucket])
	s.mu.RUnlock()
	if listed == 0 { // one that is being learned sees that the bucket has changed
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
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
	s.forgotten.Store(s.takes.Load())
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
