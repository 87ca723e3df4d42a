package topkeys

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// WholeLimit is the Position of a Part that consists of all keys of its limit.
const WholeLimit = -1

// Part is what denied keys of one limit have in common: the limit, or the value at one position of the key. It has the
// number of their denials.
type Part struct {
	Domain, Limit string
	// Position is the index of the value in the key, and Entry the key of its entry in the descriptor. Entry is "" for a
	// limit that requests name. Value has bytes that a client chose.
	Position     int
	Entry, Value string
	// Cut means that the value was too long and is incomplete.
	Cut bool
	// Times is the number of denials if Exact is true. Otherwise it is a lower bound.
	Times int64
	Exact bool
	// Keys is the number of keys with this value among the keys that are counted, so that it is a lower bound too.
	Keys int
	// Rate is the number of denials in a second, averaged over about the last ten seconds.
	Rate float64
}

// addParts counts a denial for the limit of result and, if the denial is about the key, for each value of a key that has
// several. A key with a single value is counted as a whole, which needs no second counter. The caller holds s.mu.
func (s *shard) addParts(now time.Time, c *limiter.Call, result *limiter.Result, aboutKey bool) {
	var room [256]byte
	var list [8]string
	owner := append(append(room[:0], result.Policy.Owner...), 0)
	if limit, added := s.parts.Add(now, owner, 1); added {
		limit.Value = Part{Position: WholeLimit}
		limit.Value.Domain, limit.Value.Limit = namesOf(c, result)
	}
	if !aboutKey || result.Key == nil {
		return
	}
	first, step := 0, 1
	if result.Policy.Whole { // the values are those of the entries, after their keys
		first, step = 1, 2
	}
	values := c.AppendValues(list[:0], result)
	if len(values) < 2*step {
		return
	}
	for i := first; i < len(values) && i < maxPositions; i += step {
		value, entry := cut(values[i]), cut(entryAt(i, values, result.Policy.Extra().OpenKeys, result.Policy.Whole))
		key := append(append(owner, byte(unnamed(i, entry)+1), byte(len(entry))), entry...)
		if part, added := s.parts.Add(now, append(key, value...), 1); added {
			p := Part{Position: i, Entry: strings.Clone(entry), Cut: len(value) < len(values[i])}
			p.Domain, p.Limit = namesOf(c, result)
			p.Value = part.Key()[len(part.Key())-len(value):] // a part of a string that is in memory anyway
			part.Value = p
		}
	}
}

// maxPositions bounds how many values of a key are counted.
const maxPositions = 16

// unnamed returns the position of a value without an entry, and -1 for others: several descriptors may use one limit, and
// have the value of an entry at different positions of their keys.
func unnamed(position int, entry string) int {
	if entry != "" {
		return -1
	}
	return position
}

// entryAt returns the key of the entry whose value is at a position of values, which are those of a key. It returns "" if
// the limit has no names for them. whole means that values has the key and the value of each entry.
func entryAt(position int, values, names []string, whole bool) string {
	switch {
	case whole && position > 0:
		return values[position-1]
	case position < len(names):
		return names[position]
	}
	return ""
}

// positions returns the positions of Key that have values. The others have the keys of their entries.
func (d *Item) positions() (list []int) {
	for i := range d.Key {
		if !d.whole || i%2 == 1 {
			list = append(list, i)
		}
	}
	return list
}

// Entry returns the key of the entry whose value is at a position of Key, or "".
func (d *Item) Entry(position int) string { return entryAt(position, d.Key, d.names, d.whole) }

// parts collects the counts of all shards, by Part.id.
type parts map[Part]*collected

type collected struct {
	Part
	missed int64 // how many more denials it may have in the shards that count it, less those of a Part that they do not count
}

// read adds the parts that the shard counts. total is the number of all denials that it counts, and missed the most
// denials of a Part that it does not count.
func (s *shard) read(now time.Time, all parts) (total, missed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	missed = s.parts.Most("")
	for _, c := range s.parts.Items(now) {
		part := all.of(c.Newest.Value)
		part.Times, part.Rate, part.missed = part.Times+c.Least, part.Rate+c.Rate, part.missed+c.Most-c.Least-missed
	}
	return s.keys.Total(now), missed
}

// of returns what all has about a Part. It adds one if necessary.
func (all parts) of(one Part) *collected {
	part := all[one.id()]
	if part == nil {
		part = &collected{Part: one}
		all[one.id()] = part
	}
	return part
}

// id returns what identifies p.
func (p *Part) id() Part {
	return Part{Domain: p.Domain, Limit: p.Limit, Position: unnamed(p.Position, p.Entry), Entry: p.Entry, Value: p.Value}
}

// complete adds the Parts that are the only value of a key. keys are all counted keys, and missed the sum of what read
// returned.
func (all parts) complete(keys []Item, missed int64) {
	for _, part := range all {
		part.Exact = part.missed+missed == 0
	}
	for i := range keys {
		d := &keys[i]
		if limit := all[Part{Domain: d.Domain, Limit: d.Limit, Position: WholeLimit}]; limit != nil && d.Key != nil {
			limit.Keys++
		}
		positions := d.positions()
		for _, at := range positions {
			one := Part{Domain: d.Domain, Limit: d.Limit, Position: at, Entry: d.Entry(at), Value: d.Key[at], Cut: d.Cut, Exact: true}
			if all[one.id()] == nil && len(positions) > 1 {
				continue
			}
			part := all.of(one)
			if len(positions) == 1 {
				part.Times, part.Exact, part.Rate = part.Times+d.Times, part.Exact && d.Exact, part.Rate+d.Rate
			}
			part.Keys++
		}
	}
}

// sorted returns the n limits and the n values with the most denials.
func (all parts) sorted(n int) (limits, values []Part) {
	for _, part := range all {
		if part.Position == WholeLimit {
			limits = append(limits, part.Part)
		} else {
			values = append(values, part.Part)
		}
	}
	for _, list := range [][]Part{limits, values} {
		slices.SortFunc(list, func(a, b Part) int {
			return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(b.Keys, a.Keys), cmp.Compare(a.Domain, b.Domain),
				cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Position, b.Position), cmp.Compare(a.Value, b.Value))
		})
	}
	return limits[:min(n, len(limits))], values[:min(n, len(values))]
}
