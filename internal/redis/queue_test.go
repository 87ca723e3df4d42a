package redis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

var epoch = time.Unix(1_000_000_000, 0)

func at(d time.Duration) time.Time { return epoch.Add(d) }

// batchOf returns a batch of groups of these sizes. The costs are 1, 2, 3 and so on.
func batchOf(sizes ...int) *backend.Batch {
	b := &backend.Batch{}
	for group, size := range sizes {
		for range size {
			n := len(b.Charges) + 1
			b.Charges = append(b.Charges, backend.Charge{Key: fmt.Appendf(nil, "k%d", n), Group: group, Terms: algorithms.Charge{Cost: int64(n)}})
		}
	}
	b.Decisions = make([]backend.Decision, len(b.Charges))
	return b
}

func ones(n int) []int { return slices.Repeat([]int{1}, n) }

func in(s *backend.Source, b *backend.Batch) *backend.Batch {
	b.Source = s
	return b
}

// text lists the runs of c: the letter of the batch, and the positions of the first and the last charge, from 1.
func (c *call) text(batches ...*backend.Batch) (s string) {
	for _, r := range c.runs {
		s += fmt.Sprintf("%c%d-%d ", 'a'+slices.Index(batches, r.batch), r.from+1, r.to)
	}
	return s
}

func submit(t *testing.T, q *queue, b *backend.Batch, now time.Time) effects {
	t.Helper()
	do, err := q.submit(b, now)
	if err != nil {
		t.Fatal(err)
	}
	return do
}

func sent(t *testing.T, q *queue, now time.Time) *call {
	t.Helper()
	c := &call{}
	if !q.fill(c, now) {
		t.Fatal("nothing is sent, want a call")
	}
	return c
}

// A call has room for 256 charges. While several sources have waiting charges, each gets an equal share of that
// room, in turn. So a source with thousands of charges does not delay the others.
func TestQueueServesSourcesInTurn(t *testing.T) {
	q := newQueue(10 * ms)
	flood, few, some := &backend.Source{}, &backend.Source{}, &backend.Source{}
	a := in(flood, batchOf(ones(2000)...))
	b, c, d := in(few, batchOf(2)), in(some, batchOf(ones(100)...)), in(flood, batchOf(3))
	submit(t, &q, a, at(0))
	submit(t, &q, d, at(0))
	submit(t, &q, b, at(0))
	submit(t, &q, c, at(0))
	first := sent(t, &q, at(0))
	if got, want := first.text(a, b, c, d), "a1-85 b1-2 c1-56 a86-122 c57-94 a123-141 c95-100 a142-154 "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// The rest of a's charges waits for the call to end; other batches of its source do not wait.
	q.inFlight++
	second := sent(t, &q, at(0))
	if got, want := second.text(a, b, c, d), "d1-3 "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	q.complete(first)
	if len(first.ended) != 2 || first.ended[0] != b || first.ended[1] != c {
		t.Errorf("%d have ended; want the 2 batches %v and %v", len(first.ended), b, c)
	}
	third := sent(t, &q, at(0))
	if got, want := third.text(a, b, c, d), "a155-410 "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// No charge of another source comes between a dry run and its refund, even if their source has used up its
// share.
func TestQueueKeepsADryRunWithItsRefund(t *testing.T) {
	q := newQueue(10 * ms)
	pairs := func(s *backend.Source) *backend.Batch {
		b := batchOf(ones(400)...)
		for i := range b.Charges {
			c := &b.Charges[i]
			if c.Key = fmt.Appendf(nil, "k%d", i/2); i%2 == 0 {
				c.Terms = algorithms.Charge{DryRun: true}
			} else {
				c.Terms.Cost = -1
			}
		}
		return in(s, b)
	}
	a, b, c := pairs(&backend.Source{}), pairs(&backend.Source{}), pairs(&backend.Source{})
	for _, batch := range []*backend.Batch{a, b, c} {
		submit(t, &q, batch, at(0))
	}
	for range 5 {
		call := sent(t, &q, at(0))
		for _, r := range call.runs {
			if r.from%2 != 0 || r.to%2 != 0 {
				t.Fatalf("got %s; want even starts and ends of runs", call.text(a, b, c))
			}
		}
		q.complete(call)
		q.callEnded(at(0))
	}
}

// The calls of an outage take long, which must not count against a burst that arrives an hour later.
func TestAnOutageThatIsOverRefusesNoBurst(t *testing.T) {
	q := newQueue(10 * ms)
	var last time.Duration
	for range 40 {
		last += 10 * ms
		submit(t, &q, batchOf(1), at(last))
		c := sent(t, &q, at(last))
		q.took(c, at(last+10*ms), true)
		q.complete(c)
		q.callEnded(at(last + 10*ms))
	}
	burst := last + time.Hour
	for i := range 30 {
		b := in(&backend.Source{}, batchOf(ones(100)...))
		b.Deadline = at(burst + 10*ms)
		if _, err := q.submit(b, at(burst)); err != nil {
			t.Fatalf("batch %d of a burst to an idle server: %v; want no error", i+1, err)
		}
	}
}

// The time for a charge is learned from large calls that the server has decided, or did not decide within the timeout.
func TestQueueLearnsThePaceOfTheServer(t *testing.T) {
	for _, test := range []struct {
		is      string
		was     time.Duration
		charges int
		took    time.Duration
		failed  bool
		want    time.Duration
	}{
		{"a large call", 0, 100, ms, false, 10 * time.Microsecond},
		{"a faster call", 20 * time.Microsecond, 100, ms, false, 10 * time.Microsecond},
		{"a slower call counts an eighth", 8 * time.Microsecond, 100, ms, false, 9*time.Microsecond + 1},
		{"a small call", 0, 31, ms, false, 0},
		{"a call without a connection", 0, 100, 0, true, 0},
		{"a call that the server did not decide within the timeout", 0, 100, 10 * ms, true, 100 * time.Microsecond},
	} {
		q := newQueue(10 * ms)
		q.pace = test.was
		q.took(&call{charges: test.charges, started: at(0)}, at(test.took), test.failed)
		if q.pace != test.want || q.usual != test.took/8 { // usual is a moving average
			t.Errorf("%s: got %v for a charge, want %v; usually %v, want %v", test.is, q.pace, test.want, q.usual, test.took/8)
		}
	}
	q := newQueue(10 * ms)
	for _, start := range []time.Duration{0, ms} { // the second one does not fail 1 ms after the first because it took 1 ms
		q.took(&call{charges: 100, started: at(start)}, at(start+10*ms), true)
	}
	q.took(&call{charges: 100, started: at(2 * ms)}, at(11*ms+1), false) // nor was it decided since then
	if want := 90 * time.Microsecond; q.pace != want {
		t.Errorf("calls in flight together that fail: got %v for a charge, want %v", q.pace, want)
	}
}

func TestQueueRefusesHopelessBatches(t *testing.T) {
	q := newQueue(10 * ms)
	q.started, q.pace = at(0), 8*time.Microsecond
	fresh, loud := &backend.Source{}, &backend.Source{}
	by := func(s *backend.Source, deadline time.Duration, n int) *backend.Batch {
		b := in(s, batchOf(ones(n)...))
		b.Deadline = at(deadline)
		return b
	}
	for range 16 { // 512 charges; two calls, of 156 charges each, are in flight
		submit(t, &q, by(&backend.Source{}, 10*ms, 32), at(0))
	}
	q.sent = 312
	for _, test := range []struct {
		is       string
		batch    *backend.Batch
		now      time.Duration
		accepted int
	}{
		{"in 7 ms the server decides 875 charges of 8 us, 312 of them in flight; a 17th of the others", by(fresh, 10*ms, 40), 3 * ms, 33},
		{"10 ms are enough for all", by(fresh, 10*ms, 24), 0, 24},
		{"a source with few charges gets its turn after one charge of each other", by(&backend.Source{}, 10*ms, 1), 9 * ms, 1},
		{"a batch without a deadline waits as long as it takes", in(&backend.Source{}, batchOf(ones(256)...)), 9 * ms, 256},
		{"a Detached batch waits", detached(by(&backend.Source{}, 10*ms, 32)), 9 * ms, 32},
		{"a source waits for its own batches, too", by(fresh, 10*ms, 32), 9 * ms, 0},
		{"in 10 ms, a 21st of 1,250 - 312", by(loud, 10*ms, 100), 0, 44},
	} {
		_, err := q.submit(test.batch, at(test.now))
		accepted := 0
		for i := range test.batch.Decisions {
			if err == nil && test.batch.Decisions[i].Err == nil {
				accepted++
			}
		}
		if accepted != test.accepted || err != nil && !errors.Is(err, errBusy) {
			t.Errorf("%s: %d charges are accepted, with the error %v; want %d", test.is, accepted, err, test.accepted)
		}
	}
}

// While a call to a far server is in flight, the next one starts after a sixteenth of a round trip, or a millisecond.
func TestQueueHasMoreCallsInFlightToAFarServer(t *testing.T) {
	for _, test := range []struct {
		trip, pause time.Duration
		most        int
	}{{ms / 2, 100 * ms, 2}, {ms, 100 * ms, 2}, {2 * ms, ms, 16}, {80 * ms, 5 * ms, 16}, {4 * time.Second, 100 * ms, 16}} {
		q := newQueue(200 * ms)
		q.took(&call{charges: minBatch, started: at(0), alone: true}, at(9*time.Second), false) // a large call, whose duration is also that of its work
		q.took(&call{charges: 1, started: at(0)}, at(ms/4), false)                              // waits for other calls
		q.took(&call{charges: 1, started: at(0), alone: true}, at(ms/8), true)                  // has failed
		if q.trip != 0 {
			t.Errorf("the round trip is %v before a call tells it, want unknown", q.trip)
		}
		q.took(&call{charges: 1, started: at(0), alone: true}, at(test.trip), false)
		q.took(&call{charges: 1, started: at(0), alone: true}, at(2*test.trip), false) // the server was busy
		now := time.Hour
		for n := 1; ; n++ {
			switch do := submit(t, &q, batchOf(1), at(now)); {
			case n == 1 && !do.start, n == 2 && do != (effects{tickAfter: test.pause}):
				t.Fatalf("%v away, batch %d: %+v; want the first to start a call, and the second after %v", test.trip, n, do, test.pause)
			case n > 1:
				now += test.pause
				do = q.tick(at(now))
				if do.start != (n <= test.most) {
					t.Errorf("%v away, call %d: starts %v; want at most %d in flight", test.trip, n, do.start, test.most)
				}
			}
			if n > test.most {
				break
			}
			sent(t, &q, at(now))
		}
	}
}

// A batch is skipped if its call would end after its deadline, unless it has waited for at most half of its time.
func TestQueueSkipsBatchesThatAreTooLate(t *testing.T) {
	for _, test := range []struct {
		is       string
		usual    time.Duration
		waited   time.Duration // since Submit; the deadline is 10 ms after Submit
		detached bool
		skipped  bool
	}{
		{"the rest of the time is enough for a call", 4 * ms, 6 * ms, false, false},
		{"the rest of the time is too short for a call", 4 * ms, 7 * ms, false, true},
		{"half of the time has not passed", 20 * ms, 5 * ms, false, false},
		{"half of the time has passed", 20 * ms, 5*ms + time.Microsecond, false, true},
		{"the deadline has passed", 0, 11 * ms, false, true},
		{"a Detached batch", 4 * ms, 7 * ms, true, false},
		{"a Detached batch whose deadline has passed", 0, 11 * ms, true, true},
	} {
		q := newQueue(10 * ms)
		q.started, q.usual = at(0), test.usual
		b := batchOf(1)
		b.Deadline, b.Detached = at(10*ms), test.detached
		submit(t, &q, b, at(0))
		if sends := q.fill(&call{}, at(test.waited)); sends == test.skipped {
			t.Errorf("%s: got the batch sent %v, want skipped %v", test.is, sends, test.skipped)
		}
		if test.skipped && !errors.Is(b.Decisions[0].Err, backend.ErrNotTaken) {
			t.Errorf("%s: got the error %v, want backend.ErrNotTaken", test.is, b.Decisions[0].Err)
		}
	}
}

func detached(b *backend.Batch) *backend.Batch {
	b.Detached = true
	return b
}

func TestQueueRandomly(t *testing.T) {
	for seed := range uint64(300) {
		s := &schedule{t: t, rng: rand.New(rand.NewPCG(seed, 1)), q: newQueue(10 * ms), groups: map[*backend.Charge]*outcome{}}
		s.q.maxBatch, s.q.maxWait = 1+s.rng.IntN(20), 20+s.rng.IntN(180) // a batch may be larger
		for range 1 + s.rng.IntN(6) {
			s.sources = append(s.sources, &backend.Source{})
		}
		s.sources[0] = nil
		for range 400 {
			s.step()
		}
		s.finish()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

type schedule struct {
	t         *testing.T
	rng       *rand.Rand
	q         queue
	now       time.Duration
	sources   []*backend.Source
	batches   []*backend.Batch
	groups    map[*backend.Charge]*outcome // the outcomes of groups, by the first charge of each
	calls     []*call                      // in flight
	due       int                          // the number of calls that were started and not filled
	tickAt    time.Duration                // the time of the next tick; 0 means none
	lastStart time.Duration
}

type outcome struct {
	size           int
	sent, complete int
	known          bool
	canceled       atomic.Bool
}

func (s *schedule) step() {
	switch s.rng.IntN(6) {
	case 0, 1:
		s.submit()
	case 2:
		if s.now += time.Duration(s.rng.IntN(3000)) * time.Microsecond; s.tickAt > 0 && s.now >= s.tickAt {
			s.tickAt = 0
			s.after(s.q.tick(at(s.now)))
		}
	case 3:
		if len(s.batches) > 0 { // a client closes its connection
			b := s.batches[s.rng.IntN(len(s.batches))]
			if f := s.groups[&b.Charges[0]]; f != nil {
				f.canceled.Store(true)
			}
		}
	case 4:
		if s.due > 0 {
			s.due--
			s.fill()
		}
	case 5:
		if len(s.calls) > 0 {
			s.end(s.rng.IntN(len(s.calls)))
		}
	}
}

func (s *schedule) submit() {
	var sizes []int
	for range 1 + s.rng.IntN(1+s.rng.IntN(12)) {
		sizes = append(sizes, 1+s.rng.IntN(1+s.rng.IntN(5)))
	}
	b := in(s.sources[s.rng.IntN(len(s.sources))], batchOf(sizes...))
	if s.rng.IntN(4) == 0 {
		b.Deadline = at(s.now + time.Duration(s.rng.IntN(20_000))*time.Microsecond)
	}
	if s.rng.IntN(4) == 0 {
		b.Known = make([]atomic.Bool, len(b.Charges))
	}
	queued := s.q.waiting + s.q.suspended
	for i := 0; i < len(b.Charges); {
		n := backend.GroupLen(b.Charges[i:])
		f := &outcome{size: n, known: b.Known != nil && s.rng.IntN(2) == 0}
		for j := i; j < i+n; j++ {
			b.Charges[j].Canceled = &f.canceled
			if b.Known != nil {
				b.Known[j].Store(f.known)
			}
		}
		b.Charges[i].Reset = n == 1 && s.rng.IntN(6) == 0
		s.groups[&b.Charges[i]] = f
		i += n
	}
	do, err := s.q.submit(b, at(s.now))
	if refused := queued > 0 && queued+len(b.Charges) > s.q.maxWait; (err != nil) != refused {
		s.t.Errorf("%d charges wait, %d more are submitted: %v; want an error only if they exceed %d", queued, len(b.Charges), err, s.q.maxWait)
	}
	if err != nil {
		for i := range b.Charges {
			delete(s.groups, &b.Charges[i])
		}
		return
	}
	s.batches = append(s.batches, b)
	s.after(do)
}

func (s *schedule) after(do effects) {
	inFlight := len(s.calls) + s.due
	late := s.now-s.lastStart >= 5*ms
	want := s.q.waiting > 0 && inFlight < 2 && (inFlight == 0 || late || s.q.waiting >= s.q.maxBatch)
	if do.start != want {
		s.t.Errorf("start %v, want %v, with %d calls in flight, the last since %v, and %d charges waiting", do.start, want, inFlight, s.now-s.lastStart, s.q.waiting)
	}
	if do.start {
		s.due++
		s.lastStart = s.now
	}
	if do.tickAfter > 0 {
		if s.tickAt > 0 {
			s.t.Error("a second tick is requested before the first; want one at a time")
		}
		s.tickAt = s.now + do.tickAfter
	}
	if !do.start && s.q.waiting > 0 && inFlight < 2 && (s.tickAt == 0 || s.tickAt > s.lastStart+5*ms && s.tickAt > s.now+5*ms) {
		s.t.Errorf("no event will start a call for %d waiting charges", s.q.waiting)
	}
}

func (s *schedule) fill() {
	c := &call{}
	waiting := map[*backend.Source]bool{}
	for source, p := range s.q.places {
		waiting[source] = p.first != nil
	}
	ok := s.q.fill(c, at(s.now))
	s.answered(c)
	if !ok {
		if len(c.runs) > 0 || s.q.waiting > 0 {
			s.t.Error("a call with charges was not sent")
		}
		return
	}
	total, groups, charged := 0, 0, map[*backend.Batch]bool{}
	for _, r := range c.runs {
		for i := r.from; i < r.to; {
			first := &r.batch.Charges[i]
			f := s.groups[first]
			if f == nil || i+f.size > r.to {
				s.t.Fatal("a call contains only a part of a group; want whole groups")
			}
			if f.sent++; f.sent > 1 {
				s.t.Error("a group is sent twice; want once")
			}
			if f.known || f.canceled.Load() || !r.batch.Deadline.IsZero() && at(s.now).After(r.batch.Deadline) {
				s.t.Error("a group without a waiting caller is sent")
			}
			if first.Reset && charged[r.batch] {
				s.t.Error("a reset is sent in one call with charges that precede it")
			}
			charged[r.batch] = charged[r.batch] || !first.Reset
			groups, total, i = groups+1, total+f.size, i+f.size
		}
		for _, other := range s.calls {
			for _, o := range other.runs {
				if o.batch == r.batch {
					s.t.Error("a batch is part of two calls at once")
				}
			}
		}
	}
	if total > s.q.maxBatch && groups > 1 || total != c.charges {
		s.t.Errorf("a call has %d charges of %d groups, and counts %d; want at most %d, unless it is a single group", total, groups, c.charges, s.q.maxBatch)
	}
	s.fair(c, waiting)
	s.calls = append(s.calls, c)
}

// fair checks that no source gets a second turn in a call before every waiting source has had one.
func (s *schedule) fair(c *call, waiting map[*backend.Source]bool) {
	turns := map[*backend.Source]int{}
	for i, r := range c.runs {
		if i == 0 || c.runs[i-1].batch.Source != r.batch.Source {
			turns[r.batch.Source]++
		}
	}
	for source := range waiting {
		if p := s.q.places[source]; turns[source] > 0 || p == nil || p.first == nil {
			continue // this source had its turn, or had nothing to send
		}
		for other, n := range turns {
			if n > 1 {
				s.t.Errorf("source %p had %d turns, and source %p none; want one turn for each first", other, n, source)
			}
		}
	}
}

func (s *schedule) end(i int) {
	c := s.calls[i]
	s.calls = slices.Delete(s.calls, i, i+1)
	for _, r := range c.runs {
		for i := r.from; i < r.to; i += backend.GroupLen(r.batch.Charges[i:]) {
			s.groups[&r.batch.Charges[i]].complete++
		}
		for i := r.from; i < r.to; i++ {
			r.batch.Decisions[i].Remaining = r.batch.Charges[i].Terms.Cost
		}
	}
	c.ended = c.ended[:0]
	s.q.complete(c)
	inFlight := 0
	for _, other := range s.calls {
		inFlight += other.charges
	}
	if s.q.sent != inFlight {
		s.t.Errorf("%d charges count as in flight, want %d", s.q.sent, inFlight)
	}
	s.answered(c)
	s.after(s.q.callEnded(at(s.now)))
}

func (s *schedule) answered(c *call) {
	for _, b := range c.ended {
		i := slices.Index(s.batches, b)
		if i < 0 {
			s.t.Error("a batch ends twice")
			continue
		}
		s.batches = slices.Delete(s.batches, i, i+1)
		for i := range b.Charges {
			d, f := &b.Decisions[i], s.groups[&b.Charges[i]]
			if f != nil && f.sent != f.complete {
				s.t.Error("a batch ends before its answer")
			}
			for first := i; f == nil; first-- {
				f = s.groups[&b.Charges[first]]
			}
			switch {
			case f.known && (d.Err != nil || d.Remaining != 0 || f.sent != 0):
				s.t.Errorf("known: %+v, sent %d times; want no error, 0 remaining and not sent", d, f.sent)
			case f.known:
			case f.sent == 1 && (d.Err != nil || d.Remaining != b.Charges[i].Terms.Cost):
				s.t.Errorf("sent: %+v; want no error and %d remaining", d, b.Charges[i].Terms.Cost)
			case f.sent == 0 && !errors.Is(d.Err, backend.ErrNotTaken):
				s.t.Errorf("not sent: %+v; want an error that is backend.ErrNotTaken", d)
			}
		}
	}
}

func (s *schedule) finish() {
	for range 100_000 {
		switch {
		case s.due > 0:
			s.due--
			s.fill()
		case len(s.calls) > 0:
			s.end(0)
		case len(s.batches) > 0:
			s.t.Fatalf("%d batches do not end", len(s.batches))
		default:
			if !s.q.idle() || s.q.waiting+s.q.suspended != 0 {
				s.t.Errorf("at the end: %+v; want an idle queue without charges", s.q)
			}
			return
		}
	}
	s.t.Error("the queue does not become idle")
}
