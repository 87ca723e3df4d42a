package redis

import (
	"crypto/sha1"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

//go:embed take.lua
var source string

// script is one form of take.lua and the name a server knows it by.
type script struct{ text, sha string }

// With its shebang, a server that knows it (7.0 and later) refuses the script whole before its
// first command when it is out of memory, read-only or short of replicas. Without it, the first
// write is refused; take.lua writes last, and starts with a write that can be refused.
var (
	plain   = newScript(source)
	shebang = newScript("#!lua\n" + source)
	// In a cluster a call may name buckets of several slots, all of one node: it declares the first,
	// and the others are checked as they are read. Older servers allow it without being told.
	acrossSlots = newScript("#!lua flags=allow-cross-slot-keys\n" + source)
)

func newScript(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{text, hex.EncodeToString(sum[:])}
}

// trip is one call of the script: the charges of it as the script takes them, and its answer. It is
// reused.
type trip struct {
	slot    int   // of its first key
	slots   bool  // it has keys of several, in a cluster
	of      []int // the numbers of its charges in the Take
	args    []any // evalsha, sha, number of keys, keys, time, limits, charges, keys of other slots
	keys    []string
	index   map[string]int // key -> its number, from 1
	limits  []*algorithms.Limit
	limitsB []byte
	charges []byte

	reply string
	err   error
}

// reset empties t.
func (t *trip) reset() {
	if t.index == nil {
		t.index = map[string]int{}
	}
	clear(t.index)
	clear(t.args)
	clear(t.limits)
	clear(t.keys)
	t.args, t.of, t.keys, t.slots = append(t.args[:0], "evalsha", nil, nil), t.of[:0], t.keys[:0], false
	t.limits, t.limitsB, t.charges = t.limits[:0], t.limitsB[:0], t.charges[:0]
}

// add appends c, the i-th charge of the Take.
func (t *trip) add(c *backend.Charge, key string, i int) {
	t.of = append(t.of, i)
	k, ok := t.index[key]
	if !ok {
		t.keys = append(t.keys, key)
		k = len(t.keys)
		t.index[key] = k
	}
	flags := 0.0
	if c.Ask.Reserve {
		flags++
	}
	if c.Ask.Look {
		flags += 2
	}
	if c.Ask.Raw {
		flags += 4
	}
	if c.Ask.Lent {
		flags += 8
	}
	t.charges = doubles(t.charges,
		float64(k), float64(t.limit(c.Limit)), float64(c.Group), exact(c.Ask.Cost),
		float64(c.Limit.PhaseOf(c.Ask.Hash)), float64(c.Ask.MaxWait), float64(c.Ask.Of), flags)
}

// limit is the number of l, from 1.
func (t *trip) limit(l *algorithms.Limit) int {
	for i, have := range t.limits {
		if have == l {
			return i + 1
		}
	}
	t.limits = append(t.limits, l)
	flags := 0.0
	for i, set := range [...]bool{l.Overdraw, l.TakesDenied, l.PerRequest} {
		if set {
			flags += float64(int(1) << i)
		}
	}
	t.limitsB = doubles(t.limitsB, float64(l.Kind), float64(l.Tick), float64(l.Rate), float64(l.Period),
		float64(l.Capacity), float64(l.Initial), float64(l.MaxReserved), float64(l.Reach),
		float64(l.P), float64(l.Q), float64(l.V), float64(l.P1), float64(l.V1), flags)
	return len(t.limits)
}

// finish completes the arguments; now is the time to decide by, 0: the server's own.
func (t *trip) finish(now algorithms.Micros) {
	declared := len(t.keys)
	if t.slots {
		declared = 1
	}
	t.args[2] = declared
	for _, key := range t.keys[:declared] {
		t.args = append(t.args, key)
	}
	t.args = append(t.args, doubles(nil, float64(now)), t.limitsB, t.charges)
	for _, key := range t.keys[declared:] {
		t.args = append(t.args, key)
	}
}

// form is the script for t.
func (t *trip) form(old bool) script {
	switch {
	case old:
		return plain
	case t.slots:
		return acrossSlots
	default:
		return shebang
	}
}

// by makes the trip one of s: by its name, or in full.
func (t *trip) by(s script, full bool) []any {
	if t.args[0], t.args[1] = "evalsha", s.sha; full {
		t.args[0], t.args[1] = "eval", s.text
	}
	return t.args
}

// headSize and answerSize are the length of the time the script decided by, and of its answer to
// one charge.
const (
	headSize   = 8
	answerSize = 1 + 5*8
)

// answer puts the script's answer into the decisions of the Take.
func (t *trip) answer(decisions []backend.Decision) {
	if t.err == nil && len(t.reply) != headSize+answerSize*len(t.of) {
		t.err = fmt.Errorf("the script answered %d bytes for %d charges", len(t.reply), len(t.of))
	}
	if t.err != nil {
		err := unavailable(t.err)
		for _, i := range t.of {
			decisions[i] = backend.Decision{Err: err}
		}
		return
	}
	number := func(at int) int64 {
		return int64(math.Float64frombits(binary.LittleEndian.Uint64([]byte(t.reply[at : at+8]))))
	}
	for n, i := range t.of {
		at := headSize + n*answerSize
		decisions[i] = backend.Decision{
			Decision: algorithms.Decision{
				Allowed: t.reply[at]&1 != 0, Never: t.reply[at]&2 != 0,
				Value: number(at + 1), Remaining: number(at + 9),
				RetryAfter: algorithms.Micros(number(at + 17)), ResetAfter: algorithms.Micros(number(at + 25)),
				Wait: algorithms.Micros(number(at + 33)),
			},
			At: algorithms.Micros(number(0)),
		}
	}
}

// exact cuts n to the range in which doubles are exact. No limit allows a cost beyond it.
func exact(n int64) float64 {
	const most = 1 << 53
	return float64(max(-most, min(most, n)))
}

func doubles(dst []byte, numbers ...float64) []byte {
	for _, n := range numbers {
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(n))
	}
	return dst
}
