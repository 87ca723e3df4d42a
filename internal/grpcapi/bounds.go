package grpcapi

import "fmt"

// Bounds are the most descriptors of a request, and the most entries of each of them. A request with more is
// denied without being decoded further, so that the memory and the charges of a request have a bound whatever
// its bytes become. Zero fields are the defaults.
type Bounds struct {
	Descriptors, Entries int
}

// Proxies send a handful of descriptors with a handful of entries. The hard maxima bound what an operator may
// ask for: a request at both of them holds 4 MiB while it is answered.
const (
	DefaultDescriptors, MaxDescriptors = 100, 1000
	DefaultEntries, MaxEntries         = 16, 100
)

// withDefaults replaces zero fields.
func (b Bounds) withDefaults() Bounds {
	if b.Descriptors == 0 {
		b.Descriptors = DefaultDescriptors
	}
	if b.Entries == 0 {
		b.Entries = DefaultEntries
	}
	return b
}

// Check returns what is wrong with b.
func (b Bounds) Check() error {
	switch {
	case b.Descriptors < 1 || b.Descriptors > MaxDescriptors:
		return fmt.Errorf("a request may have 1 to %d descriptors, not %d", MaxDescriptors, b.Descriptors)
	case b.Entries < 1 || b.Entries > MaxEntries:
		return fmt.Errorf("a descriptor may have 1 to %d entries, not %d", MaxEntries, b.Entries)
	}
	return nil
}

// mostObjects is how many JSON objects a request within the bounds can have: one, and for each descriptor one, its
// entries and its limit.
func (b Bounds) mostObjects() int { return 1 + b.Descriptors*(2+b.Entries) }

// jsonObjects counts the JSON objects of a body. It reads the bytes only, because an object of two bytes becomes a
// hundred when it is decoded.
func jsonObjects(body []byte) (n int) {
	quoted := false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '{' && !quoted:
			n++
		}
	}
	return n
}

// The bounds that a request can exceed, as they are reported to an Observer.
const (
	BoundDescriptors = "descriptors"
	BoundEntries     = "entries"
	BoundBytes       = "bytes"
)
