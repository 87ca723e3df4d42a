package redis

import "sync"

// starter starts the calls of several senders on one goroutine. Until that goroutine runs, requests of other
// connections can join the calls.
type starter struct {
	spawn func(f func())

	mu         sync.Mutex
	due, spare []*sender // guarded by mu
	run        func()
}

func newStarter(spawn func(f func())) *starter {
	s := &starter{spawn: spawn}
	s.run = s.start
	return s
}

func (s *starter) add(l *sender) {
	s.mu.Lock()
	s.due = append(s.due, l)
	first := len(s.due) == 1
	s.mu.Unlock()
	if first {
		s.spawn(s.run)
	}
}

func (s *starter) start() {
	s.mu.Lock()
	due := s.due
	s.due, s.spare = s.spare[:0], nil
	s.mu.Unlock()
	for i, l := range due {
		due[i] = nil
		l.work(nil, l.clock.Now())
	}
	s.mu.Lock()
	s.spare = due[:0]
	s.mu.Unlock()
}
