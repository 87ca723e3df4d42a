package backend

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Lease answers charges of hot keys from units borrowed of next, so that a key asked a hundred
// thousand times a second costs next a few charges a second. It does so for charges that bring
// lease terms (Charge.Lease), and only for keys that are asked often.
//
// When such a key has nothing on loan, more than its cost is charged, in the same step: that is spent
// in next. What is more serves those who come after, until it is used or its time is over, and
// what is then left is given back. Before that the next loan is borrowed in the background, so that
// nobody waits for it, however late next answers. So
//
//   - a fixed window never gives out more than it holds, nor later than its end, by the clock of next;
//   - a token bucket admits at most capacity + floor((T + For)*rate/period) in any span T;
//   - it denies up to Most units a process early while they are on loan elsewhere. What a process
//     that dies had on loan is lost, and so is what next was asked to lend without an answer. A token
//     bucket is given back what is left less what has flowed in since it was lent (Ask.Of).
//
// It never denies: a denial is next's own, of the cost alone, and what the process had on loan of the
// bucket has been given back before; but for what is being borrowed at that moment. An answer from a
// loan is what next would say had nobody else asked since. Only plain charges are answered so:
// reservations, give-backs, looks and what is taken once are next's to answer, and do not see what is on
// loan. Of a group, what is on loan is used if the rest of it is allowed by next. A group with a bucket
// that a denial changes (overdraw, penalty) borrows nothing.
//
// Changed numbers, and Reset, drop what is on loan. Run must run for units that nobody asks for any
// more to be given back.
func Lease(next Store, c LeaseConfig) *LeaseStore {
	if c.Timeout <= 0 {
		c.Timeout = time.Second
	}
	if c.MaxKeys <= 0 {
		c.MaxKeys = 16_384
	}
	if c.Clocks == nil {
		c.Clocks = systemClocks()
	}
	s := &LeaseStore{next: next, config: c, elapsed: newElapsed(c.Clocks), wake: make(chan struct{}, 1), aheads: NewUndos(c.Timeout)}
	for i := range s.shards {
		s.shards[i].most = max(1, c.MaxKeys/leaseShards)
		s.shards[i].loans = map[string]*loan{}
	}
	s.trips.New = func() any {
		t := &leaseTrip{store: s}
		t.inner.Done = t.ended
		return t
	}
	return s
}

// LeaseConfig configures Lease; zero fields are the defaults.
type LeaseConfig struct {
	Timeout time.Duration // of giving back and of borrowing ahead, for which nobody waits (1 s)
	MaxKeys int           // about how many keys may be leased at a time (16,384)
	// Clocks returns the readings of the monotonic clock and of the wall clock, each since a moment of
	// its own (the system's). A lease ends when either says so.
	Clocks func() (monotonic, wall time.Duration)
}

// LeaseStore is the Store that Lease makes.
type LeaseStore struct {
	next    Store
	config  LeaseConfig
	elapsed *elapsed
	wake    chan struct{} // there are loans again
	aheads  *Undos        // what is being borrowed ahead
	trips   sync.Pool
	shards  [leaseShards]leaseShard
}

// Submit implements Store.
func (s *LeaseStore) Submit(b *Batch) {
	switch {
	case hasReset(b.Charges):
		s.reset(b)
	case !anyLease(b.Charges):
		s.next.Submit(b)
	case len(b.Charges) == 1:
		s.submitOne(b)
	default:
		s.submitGroups(b)
	}
}

// submitGroups answers the groups of b that what is on loan is enough for, and asks next about the others.
func (s *LeaseStore) submitGroups(b *Batch) {
	t := s.trip(b, s.now())
	for at := 0; at < len(b.Charges); {
		end := at + GroupLen(b.Charges[at:])
		if s.plan(t, b.Charges[at:end], b.Decisions[at:end], b.Deadline) {
			b.know(at, end)
		}
		at = end
	}
	if len(t.asked) == 0 {
		t.end()
		return
	}
	t.ask(b.Waits)
}

func (s *LeaseStore) now() time.Duration { return s.elapsed.now() }

func anyLease(charges []Charge) bool {
	for i := range charges {
		if charges[i].Lease != nil {
			return true
		}
	}
	return false
}

// canLease reports whether c may be answered from a lease.
func canLease(c *Charge) bool {
	a := &c.Ask
	return c.Lease != nil && c.Once == nil && a.Cost > 0 && !a.Look && !a.Reserve && !a.Raw && c.Limit.CanReserve() && !c.recordsDenied()
}

// recordsDenied reports whether a denial changes the bucket of c: its limit consumes what it denies, or
// a penalty counts the denial.
func (c *Charge) recordsDenied() bool { return c.Limit.ChargesDenied() || c.Limit.Penalty.After > 0 }

// recordDenied reports whether a denial changes a bucket of the group. Such a group borrows nothing: a
// grant that is refused makes the group be sent a second time, which would record its denial twice.
func recordDenied(group []Charge) bool {
	return slices.ContainsFunc(group, func(c Charge) bool { return c.recordsDenied() })
}

// leaseTrip is what one Batch asks of next. It is reused.
type leaseTrip struct {
	store   *LeaseStore
	outer   *Batch
	inner   Batch
	began   time.Duration
	sees    *loan // of a Batch of one charge that is next's to answer; nil: another
	seenAt  algorithms.Micros
	asked   []Charge
	answers []Decision
	groups  []leaseGroup
	parts   []leasePart // of all groups, in order
	backs   []Charge    // given back before what is asked
	number  int         // of the last group asked
}

// leaseGroup is one group of the caller's that next is asked of.
type leaseGroup struct {
	charges   []Charge
	decisions []Decision
	parts     int // its first part
	done      bool
}

// leasePart is one charge of a group.
type leasePart struct {
	loan   *loan // where its key is a hot one
	spent  bool
	from   [2]spent
	borrow int64 // units asked for beyond the cost
	asked  int   // its place among those asked
}

func (s *LeaseStore) trip(b *Batch, now time.Duration) *leaseTrip {
	t := s.trips.Get().(*leaseTrip)
	t.outer, t.began = b, now
	return t
}

// end ends the Batch of t.
func (t *leaseTrip) end() {
	b := t.outer
	clear(t.asked)
	clear(t.groups)
	clear(t.parts)
	clear(t.backs)
	t.asked, t.groups, t.parts, t.backs = t.asked[:0], t.groups[:0], t.parts[:0], t.backs[:0]
	t.outer, t.sees = nil, nil
	t.inner = Batch{Done: t.inner.Done}
	t.store.trips.Put(t)
	b.Done(b)
}

// add puts c on the trip, as one more of the last group.
func (t *leaseTrip) add(c *Charge) int {
	t.asked = append(t.asked, *c)
	t.asked[len(t.asked)-1].Group = t.number
	return len(t.asked) - 1
}

// plan answers a group from loans, or puts on the trip what next must be asked, which answers by deadline. It
// reports whether the group is answered.
func (s *LeaseStore) plan(t *leaseTrip, charges []Charge, decisions []Decision, deadline time.Time) (answered bool) {
	now := t.began
	g := leaseGroup{charges: charges, decisions: decisions, parts: len(t.parts)}
	whole := true
	for i := range charges {
		p := s.spendPart(&charges[i], &decisions[i], now)
		whole = whole && p.spent
		t.parts = append(t.parts, p)
	}
	parts := t.parts[g.parts:]
	if whole {
		t.parts = t.parts[:g.parts]
		for i := range charges {
			s.served(&charges[i])
		}
		return true
	}
	t.groups = append(t.groups, g)
	mayBorrow := !recordDenied(charges)
	for i := range charges {
		p := &parts[i]
		ending := p.spent && !p.outlasts(deadline, now)
		if ending {
			s.putBack(&charges[i], p, &decisions[i], now)
		}
		if p.spent || !canLease(&charges[i]) {
			continue
		}
		p.loan, p.borrow, t.backs = s.borrow(&charges[i], ending, mayBorrow, t.backs[:0], now)
		for i := range t.backs {
			t.number++
			t.add(&t.backs[i])
		}
	}
	s.askFor(t, &t.groups[len(t.groups)-1])
	return false
}

// outlasts reports whether what p was spent of lasts until next has answered, which is by deadline.
func (p *leasePart) outlasts(deadline time.Time, now time.Duration) bool {
	return !deadline.IsZero() && p.from[0].lot.until >= now+time.Until(deadline)
}

// askFor puts a group on the trip: what is not spent of loans already.
func (s *LeaseStore) askFor(t *leaseTrip, g *leaseGroup) {
	t.number++
	for i := range g.charges {
		p := &t.parts[g.parts+i]
		if p.spent {
			continue
		}
		p.asked = t.add(&g.charges[i])
		t.asked[p.asked].Ask.Cost += p.borrow
	}
}

// ask submits the trip to next; waits as in Batch.
func (t *leaseTrip) ask(waits bool) {
	t.answers = slices.Grow(t.answers[:0], len(t.asked))[:len(t.asked)]
	clear(t.answers)
	t.submit(t.asked, t.answers, waits)
}

func (t *leaseTrip) submit(charges []Charge, decisions []Decision, waits bool) {
	in, b := &t.inner, t.outer
	in.Charges, in.Decisions, in.Waits = charges, decisions, waits
	in.Deadline, in.Detached, in.Source = b.Deadline, b.Detached, b.Source
	t.store.next.Submit(in)
}

// ended follows the end of inner.
func (t *leaseTrip) ended(*Batch) {
	if t.sees != nil {
		t.store.saw(t)
		t.end()
		return
	}
	if t.store.settle(t, t.began); len(t.asked) > 0 {
		t.ask(false) // this goroutine serves others
		return
	}
	t.end()
}

// settle answers the groups that were on a trip that began at asked, and puts those on the next that
// were denied for what they would have borrowed.
func (s *LeaseStore) settle(t *leaseTrip, asked time.Duration) {
	now := s.now()
	clear(t.asked)
	t.asked = t.asked[:0]
	for n := range t.groups {
		g := &t.groups[n]
		if g.done {
			continue
		}
		parts := t.parts[g.parts : g.parts+len(g.charges)]
		var failed error
		all, again := true, false
		for i := range parts {
			if p := &parts[i]; !p.spent {
				d := &t.answers[p.asked]
				failed, all = d.Err, all && d.Allowed
				again = again || d.Err == nil && !d.Allowed && p.borrow > 0
			}
		}
		if again {
			for i := range parts {
				if parts[i].borrow > 0 {
					s.lend(&g.charges[i], &parts[i], 0, nil, asked, now)
				}
			}
			s.askFor(t, g)
			continue
		}
		g.done = true
		for i := range parts {
			p, c, d := &parts[i], &g.charges[i], &g.decisions[i]
			switch {
			case p.spent && !all:
				s.putBack(c, p, d, now)
			case p.spent:
				s.served(c)
			default:
				s.tell(c, p, &t.answers[p.asked], d, all, asked, now)
			}
			if failed != nil {
				*d = Decision{Err: failed}
			}
		}
	}
}

// tell answers c in d by what next said, all of its group having been allowed or not.
func (s *LeaseStore) tell(c *Charge, p *leasePart, said, d *Decision, all bool, asked, now time.Duration) {
	*d = *said
	switch {
	case p.loan == nil:
	case said.Err != nil:
		s.lend(c, p, 0, nil, asked, now)
	case !all:
		s.lend(c, p, 0, said, asked, now)
	default:
		*d = c.with(*said, p.borrow, 0)
		s.lend(c, p, p.borrow, said, asked, now)
	}
}

// with is the answer d to c, were so many units more in the bucket, passed later, if nobody asked
// meanwhile.
func (c *Charge) with(d Decision, units int64, passed algorithms.Micros) Decision {
	if units == 0 && passed == 0 {
		return d
	}
	if len(c.Shards) > 0 { // d.Value is of what was last seen of them
		d.Remaining = min(c.Limit.Capacity, d.Remaining+units)
		d.ResetAfter = max(0, d.ResetAfter-passed)
		d.At += passed
		return d
	}
	was := d.At
	d.At += passed
	there := c.Limit.Seen(d.Value+units*c.Limit.Unit(), was, d.At, c.Ask.Hash)
	d.Value, d.Remaining, d.ResetAfter = there.Value, there.Remaining, there.ResetAfter
	return d
}

func hasReset(charges []Charge) bool {
	for i := range charges {
		if charges[i].Reset {
			return true
		}
	}
	return false
}

// reset submits b, some buckets of which are reset, to next. What is on loan of those is dropped; what other
// processes have on loan they may give out, or back, until its time is over.
func (s *LeaseStore) reset(b *Batch) {
	after := Batch{Charges: b.Charges, Decisions: b.Decisions, Deadline: b.Deadline, Detached: b.Detached, Source: b.Source}
	after.Done = func(*Batch) {
		s.dropReset(b.Charges) // what was being borrowed meanwhile
		b.Done(b)
	}
	ahead := s.dropReset(b.Charges)
	if len(ahead) == 0 {
		s.next.Submit(&after)
		return
	}
	go func() { // what is being borrowed would be borrowed after the reset, and lost
		for _, done := range ahead {
			<-done
		}
		s.next.Submit(&after)
	}()
}

// dropReset drops what is on loan of buckets that are reset. It returns what to wait for, where units are being
// borrowed.
func (s *LeaseStore) dropReset(charges []Charge) (ahead []<-chan struct{}) {
	for i := range charges {
		if !charges[i].Reset {
			continue
		}
		if done := s.drop(charges[i].Key); done != nil {
			ahead = append(ahead, done)
		}
	}
	return ahead
}

// Run gives back what is left of loans whose time is over, until ctx ends.
func (s *LeaseStore) Run(ctx context.Context) {
	const turn = 50 * time.Millisecond
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		for rest := 1; rest > 0; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(turn):
			}
			rest = s.GiveBack()
		}
	}
}

// GiveBack gives back what is left of loans whose time is over, and returns how many keys it still
// keeps an eye on. Run calls it.
func (s *LeaseStore) GiveBack() (keys int) {
	now := s.now()
	var backs []Charge
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		backs = sh.over(backs, now)
		sh.cool(now)
		keys += len(sh.loans)
		sh.mu.Unlock()
	}
	s.giveBack(backs)
	return keys
}

// Close borrows no more, and gives back everything that is on loan.
func (s *LeaseStore) Close() {
	s.aheads.Close()
	s.Forget()
}

// Forget gives back everything that is on loan, and forgets which keys are hot. What is being
// borrowed meanwhile is dropped.
func (s *LeaseStore) Forget() {
	now := s.now()
	var backs []Charge
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		backs = append(backs, sh.backs...)
		sh.backs = nil
		for key, l := range sh.loans {
			backs = sh.takeBack(backs, l, now)
			sh.drop([]byte(key))
		}
		sh.mu.Unlock()
	}
	s.giveBack(backs)
}

// ForgetBucket is Forget of one bucket.
func (s *LeaseStore) ForgetBucket(key []byte) {
	now := s.now()
	sh, _ := s.shard(key)
	var backs []Charge
	sh.mu.Lock()
	if l := sh.loans[string(key)]; l != nil {
		backs = sh.takeBack(nil, l, now)
		sh.drop(key)
	}
	sh.mu.Unlock()
	s.giveBack(backs)
}

// giveBack submits backs, and waits for the decisions. What does not arrive is lost: whether it did is not known.
func (s *LeaseStore) giveBack(backs []Charge) {
	until := time.Now().Add(s.config.Timeout)
	for part := range slices.Chunk(backs, maxBacks) {
		for i := range part {
			part[i].Group = i
		}
		submitAndWait(s.next, Batch{Charges: part, Decisions: make([]Decision, len(part)), Deadline: until, Detached: true})
	}
}
