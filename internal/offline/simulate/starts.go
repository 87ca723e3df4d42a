package simulate

import "github.com/rlsidecar/rlsidecar/pkg/algorithms"

const (
	// maxHeld bounds the bytes of the lines that are kept to sort them.
	maxHeld = 64 << 20
	// perLine is the memory for a line besides its text.
	perLine = 64
)

// byStart sorts the lines of an access log, which are in the order in which requests end, by the start of the requests.
// If more than maxHeld bytes are kept, the line with the earliest start is visited, although an earlier one may follow.
type byStart struct {
	startOf func(line string) (algorithms.Micros, error)
	visit   func(line string, number int64) error
	held    queue[heldLine]
	bytes   int
	visited int64
	last    algorithms.Micros // the start of the last line that could be read; one that cannot be read follows it
}

type heldLine struct {
	text   string
	number int64
}

func (s *byStart) add(line string, number int64) error {
	if at, err := s.startOf(line); err == nil {
		s.last = at
	}
	s.held.add(s.last, heldLine{line, number})
	s.bytes += len(line) + perLine
	return s.release(maxHeld)
}

// release visits the earliest lines until at most most bytes are kept.
func (s *byStart) release(most int) error {
	for s.bytes > most {
		_, line := s.held.take()
		s.bytes -= len(line.text) + perLine
		if err := s.visit(line.text, line.number); err != nil {
			return err
		}
	}
	return nil
}
