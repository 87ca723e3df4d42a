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
	in     scanner
}

// These are the members of a line.
const (
	lineTime members = 1 << iota
	lineDomain
	lineDescriptors
	lineLimits
	lineReal
	lineAfter
)

var lineMembers = []string{"time_us", "domain", "descriptors", "limits", "real", "settle_after_us"}

func (t *trace) read(line string, c *limiter.Call) (at algorithms.Micros, end outcome, err error) {
	s := &t.in
	s.reset(line)
	end.real = -1
	seen := s.object(lineMembers, func(member members) {
		switch member {
		case lineTime:
			at = algorithms.Micros(s.integer())
		case lineDomain:
			c.Request.Domain = s.str()
		case lineDescriptors:
			s.descriptors(c)
		case lineLimits:
			s.limits(c)
		case lineReal:
			end.real = s.integer()
		case lineAfter:
			end.after = algorithms.Micros(s.integer())
		}
	})
	if err := s.end(); err != nil {
		return 0, end, err
	}
	switch {
	case seen&lineTime == 0:
		return 0, end, errors.New("time_us is missing")
	case seen&lineDescriptors != 0 && seen&lineLimits != 0:
		return 0, end, errors.New("has descriptors and limits; a request has one or the other")
	case len(c.Descriptors) == 0 && len(c.Limits) == 0:
		return 0, end, errors.New("has neither descriptors nor limits")
	}
	if c.Request.Domain == "" && len(c.Descriptors) > 0 {
		if c.Request.Domain = t.domain; c.Request.Domain == "" {
			return 0, end, errors.New("domain is missing")
		}
	}
	if err := checkTime(at); err != nil || seen&(lineReal|lineAfter) == 0 {
		return at, end, err
	}
	end.later = true
	return at, end, end.check(at, c, seen)
}

// check returns a mistake in end. at is the time of the call, and seen is the set of its members.
func (end *outcome) check(at algorithms.Micros, c *limiter.Call, seen members) error {
	switch {
	case seen&lineReal != 0 && end.real < 0:
		return fmt.Errorf("real must not be negative, but is %d", end.real)
	case end.after < 0 || end.after > algorithms.MaxTime-at:
		return fmt.Errorf("settle_after_us must be between 0 and %d, but is %d", algorithms.MaxTime-at, end.after)
	case len(c.Limits) > 0 && seen&lineReal == 0:
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

// members is a set of the members of an object.
type members uint8

// object reads an object. It calls read before the value of each member, with the bit of its name in names. It returns
// the members that the object has. A member that is not known, or that occurs twice, is a mistake.
func (s *scanner) object(names []string, read func(member members)) (seen members) {
	s.openObject()
	for s.more() {
		name := s.str()
		i := slices.Index(names, name)
		switch {
		case i < 0:
			s.fail("unknown field %q", descriptors.Printable(name))
		case seen&(1<<i) != 0:
			s.fail("%s occurs twice; write it once", name)
		default:
			seen |= 1 << i
			read(1 << i)
		}
	}
	return seen
}

var descriptorMembers, limitMembers = []string{"entries", "hits"}, []string{"name", "key", "count", "reserve"}

func (s *scanner) descriptors(c *limiter.Call) {
	const entries, hits = 1, 2
	s.openList()
	for s.more() {
		d := c.AddDescriptor()
		d.Cost = 1
		seen := s.object(descriptorMembers, func(member members) {
			switch member {
			case entries:
				s.entries(d)
			case hits:
				d.State(s.integer())
			}
		})
		if seen&entries == 0 {
			s.fail("a descriptor without entries")
		}
	}
}

func (s *scanner) entries(d *limiter.Descriptor) {
	s.openList()
	for s.more() {
		var pair [2]string
		words := 0
		s.openList()
		for s.more() {
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
	const name, key, count, reserve = 1, 2, 4, 8
	s.openList()
	for s.more() {
		charge := addLimit(c)
		seen := s.object(limitMembers, func(member members) {
			switch member {
			case name:
				charge.Name = s.str()
			case key:
				s.key(charge)
			case count:
				charge.Count = s.integer()
			case reserve:
				charge.Reserve = s.boolean()
			}
		})
		if seen&name == 0 {
			s.fail("a limit without a name")
		}
	}
}

func (s *scanner) key(charge *limiter.NamedCharge) {
	if s.in.PeekKind() != '[' {
		charge.Key = append(charge.Key, s.str())
		return
	}
	s.openList()
	for s.more() {
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
