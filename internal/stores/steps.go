package stores

import (
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// Steps runs an operation that consists of several batches for one Store. Each batch depends on the decisions
// on the previous one. Call Bind once, and then Run any number of times, but for one run at a time.
type Steps struct {
	store   backend.Store
	step    func(decisions []backend.Decision) (charges []backend.Charge, room []backend.Decision)
	onKnown func(from, to int) // nil if the caller does not need early decisions
	known   []atomic.Bool
	batch   backend.Batch
	like    backend.Batch
	done    func(*backend.Batch)
	state   atomic.Int32
}

// The states of Steps, from the Submit of a batch until its Done.
const (
	submitting = iota
	submitted  // Submit has returned, Done has not been called
	decided    // Done was called before Submit returned
)

// Bind sets the Store, and the function that makes a step. At the start of a run, step gets nil; later it
// gets the decisions on the charges that it returned last. It returns the charges to submit next, with room
// for their decisions. To end the run it returns no charges.
func (s *Steps) Bind(store backend.Store, step func(decisions []backend.Decision) (charges []backend.Charge, room []backend.Decision)) {
	s.store, s.step = store, step
	s.done = func(*backend.Batch) {
		if !s.state.CompareAndSwap(submitting, decided) {
			s.run()
		}
	}
}

// OnKnown sets a function that is called like backend.Batch.OnKnown. It is called only in runs for a batch
// with Known.
func (s *Steps) OnKnown(onKnown func(from, to int)) { s.onKnown = onKnown }

// Run starts a run. Its batches get the Deadline, the Source and Detached of b. When Run returns, s may
// already be in use for another run.
func (s *Steps) Run(b *backend.Batch) {
	s.like = backend.Batch{Deadline: b.Deadline, Detached: b.Detached, Source: b.Source, Done: s.done}
	if b.Known != nil {
		s.like.OnKnown = s.onKnown
	}
	s.batch = backend.Batch{}
	s.run()
}

// run makes steps until Submit returns before the decisions are known. A loop is used, because with recursion
// the stack could grow without bound.
func (s *Steps) run() {
	for {
		charges, room := s.step(s.batch.Decisions)
		if len(charges) == 0 {
			return // s may be in use for another run
		}
		s.batch = s.like
		s.batch.Charges, s.batch.Decisions = charges, room
		if s.like.OnKnown != nil {
			s.known = zeroed(s.known, len(charges))
			s.batch.Known = s.known
		}
		s.state.Store(submitting)
		s.store.Submit(&s.batch)
		if s.state.CompareAndSwap(submitting, submitted) {
			return
		}
	}
}
