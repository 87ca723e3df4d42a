package backend

import "sync/atomic"

// Steps submits batches of one Store, each made of the decisions of the one before, for something that takes
// several steps. Its zero value is ready for Bind; after Bind it may be used again and again, for one run at a time.
type Steps struct {
	store Store
	step  func(decisions []Decision) (charges []Charge, room []Decision)
	batch Batch
	like  Batch
	done  func(*Batch)
	state atomic.Int32
}

// The states of Steps, from the Submit of a batch until its Done.
const (
	submitting = iota
	submitted  // Submit has returned
	decided    // Done came before
)

// Bind sets the Store and the machine. step gets the decisions of the last charges, nil at first, and returns what
// to submit next, with as many zero Decisions to be written; no charges: it has ended, and so has the run.
func (s *Steps) Bind(store Store, step func(decisions []Decision) (charges []Charge, room []Decision)) {
	s.store, s.step = store, step
	s.done = func(*Batch) {
		if !s.state.CompareAndSwap(submitting, decided) {
			s.run()
		}
	}
}

// Run makes the first step. The batches have the Deadline, the Source and Detached of b. s may be in use again
// when Run returns.
func (s *Steps) Run(b *Batch) {
	s.like = Batch{Deadline: b.Deadline, Detached: b.Detached, Source: b.Source, Done: s.done}
	s.batch = Batch{}
	s.run()
}

// run makes steps as long as they are decided before Submit returns, so that the stack does not grow.
func (s *Steps) run() {
	for {
		charges, room := s.step(s.batch.Decisions)
		if len(charges) == 0 {
			return // s may be in use again
		}
		s.batch = s.like
		s.batch.Charges, s.batch.Decisions = charges, room
		s.state.Store(submitting)
		s.store.Submit(&s.batch)
		if s.state.CompareAndSwap(submitting, submitted) {
			return
		}
	}
}
