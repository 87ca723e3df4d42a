package grpcapi

import "fmt"

// Bounds limits the number of descriptors of a request, and of entries in each descriptor. A larger request
// is denied without being decoded further. So the memory and the charges of a request are bounded. Zero
// fields mean the defaults.
type Bounds struct {
	Descriptors, Entries int
}

// Proxies send a few descriptors with a few entries each. The maxima are what an operator may configure: a
// request that reaches both needs 4 MiB of memory.
const (
	DefaultDescriptors, MaxDescriptors = 100, 1000
	DefaultEntries, MaxEntries         = 16, 100
)

func (b Bounds) withDefaults() Bounds {
	if b.Descriptors == 0 {
		b.Descriptors = DefaultDescriptors
	}
	if b.Entries == 0 {
		b.Entries = DefaultEntries
	}
	return b
}

// Check returns an error if a field is out of range. 0 is out of range, because Check does not apply the defaults.
func (b Bounds) Check() error {
	switch {
	case b.Descriptors < 1 || b.Descriptors > MaxDescriptors:
		return fmt.Errorf("a request may have 1 to %d descriptors, not %d", MaxDescriptors, b.Descriptors)
	case b.Entries < 1 || b.Entries > MaxEntries:
		return fmt.Errorf("a descriptor may have 1 to %d entries, not %d", MaxEntries, b.Entries)
	}
	return nil
}

// mostObjects returns the largest number of JSON objects in a request within the bounds. The request is one
// object. Each descriptor has one for itself, one for each entry, and one for its limit.
func (b Bounds) mostObjects() int { return 1 + b.Descriptors*(2+b.Entries) }

// jsonObjects counts the JSON objects of a body without decoding it, because decoding an object of two bytes needs a
// hundred bytes of memory.
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

// These are the bounds that a request can exceed, for Observer.TooLarge.
const (
	BoundDescriptors = "descriptors"
	BoundEntries     = "entries"
	BoundBytes       = "bytes"
)
