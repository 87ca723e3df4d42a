package simulate

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// trace reads lines of a trace. Each line is a JSON object in one of two forms:
//
//	{"time_us": 0, "domain": "edge", "descriptors": [{"entries": [["user_id","bob"]], "hits": 1}]}
//	{"time_us": 0, "limits": [{"name": "send_message", "key": "bob", "count": 1, "reserve": false}]}
//
// If the cost of a call is known only later, its line also has the outcome:
//
//	{…, "real": 812, "settle_after_us": 4200000}
//
// hits and count are 1 by default. A value of 0 is a dry run, a negative value is a refund. key is a string or a list
// of strings. A call with real and without settle_after_us is settled at once.
// Unknown members, repeated members and wrong types are mistakes.
type trace struct {
	domain string // the domain for lines without one
}

// Each member of a line has a bit. A set of bits detects repeated and missing members.
const (
	hasTime = 1 << iota
	hasDomain
	hasDescriptors
	hasLimits
	hasReal
	hasAfter
)

func (t *trace) read(line string, c *limiter.Call) (at algorithms.Micros, end outcome, err error) {
	s := scanner{text: line}
	seen := 0
	end.real = -1
	s.open('{')
	for n := 0; s.more(n, '}'); n++ {
		switch name := s.name(); name {
		case "real":
			s.once(&seen, hasReal, name)
			end.real = s.integer()
		case "settle_after_us":
			s.once(&seen, hasAfter, name)
			end.after = algorithms.Micros(s.integer())
		case "time_us":
			s.once(&seen, hasTime, name)
			at = algorithms.Micros(s.integer())
		case "domain":
			s.once(&seen, hasDomain, name)
			c.Request.Domain = s.str()
		case "descriptors":
			s.once(&seen, hasDescriptors, name)
			s.descriptors(c)
		case "limits":
			s.once(&seen, hasLimits, name)
			s.limits(c)
		default:
			s.unknown(name)
		}
	}
	if err := s.end(); err != nil {
		return 0, end, err
	}
	switch {
	case seen&hasTime == 0:
		return 0, end, errors.New("time_us is missing")
	case seen&(hasDescriptors|hasLimits) == hasDescriptors|hasLimits:
		return 0, end, errors.New("has descriptors and limits; a request has one or the other")
	case len(c.Descriptors) == 0 && len(c.Limits) == 0:
		return 0, end, errors.New("has neither descriptors nor limits")
	}
	if c.Request.Domain == "" && len(c.Descriptors) > 0 {
		if c.Request.Domain = t.domain; c.Request.Domain == "" {
			return 0, end, errors.New("domain is missing")
		}
	}
	if err := checkTime(at); err != nil || seen&(hasReal|hasAfter) == 0 {
		return at, end, err
	}
	end.later = true
	return at, end, end.check(at, c, seen)
}

// check returns a mistake in end. at is the time of the call, and seen is the set of its members.
func (end *outcome) check(at algorithms.Micros, c *limiter.Call, seen int) error {
	switch {
	case seen&hasReal != 0 && end.real < 0:
		return fmt.Errorf("real must not be negative, but is %d", end.real)
	case end.after < 0 || end.after > algorithms.MaxTime-at:
		return fmt.Errorf("settle_after_us must be between 0 and %d, but is %d", algorithms.MaxTime-at, end.after)
	case len(c.Limits) > 0 && seen&hasReal == 0:
		return errors.New("settle_after_us without real: limits that are reserved by name are settled with a real cost; add real, or remove settle_after_us")
	case len(c.Limits) > 0 && !slices.ContainsFunc(c.Limits, func(l limiter.NamedCharge) bool { return l.Reserve }):
		return errors.New("real settles a reservation, and no limit of this line has \"reserve\": true; add it, or remove real")
	}
	return nil
}

// checkTime returns an error for a time that is out of the range in which decisions are exact.
func checkTime(at algorithms.Micros) error {
	if at < 0 || at > algorithms.MaxTime {
		return fmt.Errorf("time_us must be between 0 and %d, but is %d", algorithms.MaxTime, at)
	}
	return nil
}

func (s *scanner) once(seen *int, bit int, name string) {
	if *seen&bit != 0 {
		s.pos = s.named
		s.fail("%s occurs twice; write it once", name)
	}
	*seen |= bit
}

func (s *scanner) unknown(name string) {
	s.pos = s.named
	s.fail("unknown field %q", descriptors.Printable(name))
}

func (s *scanner) descriptors(c *limiter.Call) {
	const hasEntries, hasHits = 1, 2
	s.open('[')
	for n := 0; s.more(n, ']'); n++ {
		d := c.AddDescriptor()
		d.Cost = 1
		seen := 0
		s.open('{')
		for m := 0; s.more(m, '}'); m++ {
			switch name := s.name(); name {
			case "entries":
				s.once(&seen, hasEntries, name)
				s.entries(d)
			case "hits":
				s.once(&seen, hasHits, name)
				d.Cost, d.Explicit, d.Declared = s.integer(), true, true
			default:
				s.unknown(name)
			}
		}
		if seen&hasEntries == 0 {
			s.fail("a descriptor without entries")
		}
	}
}

func (s *scanner) entries(d *limiter.Descriptor) {
	s.open('[')
	for n := 0; s.more(n, ']'); n++ {
		var pair [2]string
		words := 0
		s.open('[')
		for s.more(words, ']') {
			if words == len(pair) {
				s.fail("an entry is a pair [key, value], this one is longer")
				return
			}
			pair[words] = s.str()
			words++
		}
		if words < len(pair) {
			s.fail("an entry is a pair [key, value], this one is shorter")
			return
		}
		d.Entries = append(d.Entries, descriptors.Entry{Key: pair[0], Value: pair[1]})
	}
}

func (s *scanner) limits(c *limiter.Call) {
	const hasName, hasKey, hasCount, hasReserve = 1, 2, 4, 8
	s.open('[')
	for n := 0; s.more(n, ']'); n++ {
		charge := addLimit(c)
		seen := 0
		s.open('{')
		for m := 0; s.more(m, '}'); m++ {
			switch name := s.name(); name {
			case "name":
				s.once(&seen, hasName, name)
				charge.Name = s.str()
			case "key":
				s.once(&seen, hasKey, name)
				s.key(charge)
			case "count":
				s.once(&seen, hasCount, name)
				charge.Count = s.integer()
			case "reserve":
				s.once(&seen, hasReserve, name)
				charge.Reserve = s.boolean()
			default:
				s.unknown(name)
			}
		}
		if seen&hasName == 0 {
			s.fail("a limit without a name")
		}
	}
}

func (s *scanner) key(charge *limiter.NamedCharge) {
	if s.peek() != '[' {
		charge.Key = append(charge.Key, s.str())
		return
	}
	s.open('[')
	for n := 0; s.more(n, ']'); n++ {
		charge.Key = append(charge.Key, s.str())
	}
}

// addLimit adds a charge with a count of 1 to c.Limits and returns it. It reuses the memory of former keys.
func addLimit(c *limiter.Call) *limiter.NamedCharge {
	n := len(c.Limits)
	if n == cap(c.Limits) {
		c.Limits = append(c.Limits, limiter.NamedCharge{Count: 1})
		return &c.Limits[n]
	}
	c.Limits = c.Limits[:n+1]
	c.Limits[n] = limiter.NamedCharge{Count: 1, Key: c.Limits[n].Key[:0]}
	return &c.Limits[n]
}
