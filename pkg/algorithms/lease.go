package algorithms

// Lease is for Stores. It bounds how many units of one bucket a process may borrow, and for how long. Leased units
// are charged when they are granted. Only token buckets and fixed windows can be leased.
type Lease struct {
	// Most is the largest number of units leased to a process at a time; 0 means no lease.
	Most int64
	// For is how long after the grant leased units may be used.
	For Micros
}

// Unit returns the amount of State.Value that is one unit (one token).
func (l *Limit) Unit() int64 { return max(1, l.q) }
