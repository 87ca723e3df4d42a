package redis

import (
	"crypto/sha1"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

//go:embed take.lua
var source string

// script is one form of take.lua. sha is the hash that identifies it to a server.
type script struct{ text, sha string }

// With a shebang, servers of version 7.0 and later refuse the whole script before its first command when they
// are out of memory, read-only or short of replicas. Without a shebang, a server without memory can refuse only
// the first write of a script. So take.lua makes all its writes at the end.
var (
	plain   = newScript(source)
	shebang = newScript("#!lua\n" + source)
	// acrossSlots is used in a cluster when a call uses buckets of several slots of one node. The call
	// declares only a key of the first slot, and the node checks the other keys as they are read. Older
	// servers allow this without a flag.
	acrossSlots = newScript("#!lua flags=allow-cross-slot-keys\n" + source)
)

func newScript(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{text, hex.EncodeToString(sum[:])}
}

// scriptRun is one run of the script: its charges as the script reads them, and its answer. scriptRuns are
// reused.
type scriptRun struct {
	slot       int    // the slot of the keys, if each slot has its own run (payload.find)
	slots      bool   // in a cluster: the keys may be in several slots
	tag        uint64 // Charge.Slot of the first charge; see mayDiffer
	runs       []run  // the charges
	targets    []target
	args       []any    // evalsha, hash, number of keys, keys, time, limits, charges, keys of other slots
	names      []byte   // the names of the keys, one after the other
	keys       []string // the name of each key; it shares the memory of the bytes in the field "names"
	index      []uint32 // a hash table: a key's number, from 1, is at the position of its hash or after it; 0 means none; the length is a power of two
	limits     []*algorithms.Limit
	limitBytes []byte
	limitsArg  int // the position of the limits in args
	time       []byte
	texts      [3]string // the time, the limits and the charges, as arguments
	charges    []byte
	last       int // the position of the last charge in charges; negative if the next charge cannot join its group
	group      int // the group of the last charge
	records    []record

	reply string
	err   error
}

// record is where the answer to a group with an idempotency key is stored.
type record struct {
	key  int   // the number of its key, from 1
	life int64 // in ms
}

// target identifies where a part of an answer belongs. Usually it is the decision on a charge. For the head of
// a group with an idempotency key, heads is the number of charges in the group.
type target struct {
	charge   *backend.Charge
	decision *backend.Decision
	heads    int
}

// reset empties t for another run. most is the largest number of charges that it may get.
func (t *scriptRun) reset(most int) {
	const perKey = 2 // entries of index for each charge: its own key, and possibly the key of a record
	places := 1 << bits.Len(uint(2*perKey*most))
	t.index = slices.Grow(t.index[:0], places)[:places]
	clear(t.index)
	clear(t.args)
	clear(t.limits)
	clear(t.keys)
	clear(t.targets)
	clear(t.runs)
	t.args, t.targets, t.slots = append(t.args[:0], "evalsha", nil, nil), t.targets[:0], false
	t.runs = t.runs[:0]
	t.names, t.keys = t.names[:0], t.keys[:0]
	t.limits, t.limitBytes, t.charges, t.records, t.last = t.limits[:0], t.limitBytes[:0], t.charges[:0], t.records[:0], -1
}

// The flags of a charge. They are stored in one double, together with the number of the limit, which is below
// oneFlag.
const (
	oneFlag  = 1 << 20
	more     = 1 * oneFlag // the next charge belongs to the same group
	long     = 2 * oneFlag // MaxWait and ChargedAt follow
	reserved = 4 * oneFlag
	dry      = 8 * oneFlag
	rawCost  = 16 * oneFlag
	settles  = 32 * oneFlag
	then     = 64 * oneFlag  // the charge has an alternative: the next charge without this flag
	own      = 128 * oneFlag // the cost of Own follows
	ownAhead = 256 * oneFlag // Own is reserved
	free     = 512 * oneFlag
	slotted  = 1024 * oneFlag // the slot follows
	opened   = 2048 * oneFlag
)

// add appends the charge c to t. The decision will be stored in d. name is the name of c's key, and group is
// the number of c's group.
func (t *scriptRun) add(c *backend.Charge, d *backend.Decision, name []byte, group int) {
	t.targets = append(t.targets, target{charge: c, decision: d})
	if t.last >= 0 && t.group == group {
		what := t.charges[t.last+8:][:8]
		doubles(what[:0], math.Float64frombits(binary.LittleEndian.Uint64(what))+more)
	}
	t.last, t.group = len(t.charges), group
	what := int64(t.limit(c.Limit)) // the flags need more than 32 bits
	if c.Terms.Reserve {
		what += reserved
	}
	if c.Terms.DryRun {
		what += dry
	}
	if c.Terms.Scaled {
		what += rawCost
	}
	if c.Terms.Settle {
		what += settles
	}
	if c.Then {
		what += then
	}
	if c.Terms.Free {
		what += free
	}
	if c.Own != nil {
		what += own
		if c.Own.Reserve {
			what += ownAhead
		}
	}
	if c.Terms.Slot != nil {
		what += slotted
	}
	if c.Terms.Open {
		what += opened
	}
	extended := c.Terms.MaxWait != 0 || c.Terms.ChargedAt != 0
	if extended {
		what += long
	}
	t.charges = doubles(t.charges, float64(t.key(name)), float64(what), exact(c.Terms.Cost), phaseOf(c))
	if extended {
		t.charges = doubles(t.charges, float64(c.Terms.MaxWait), float64(c.Terms.ChargedAt))
	}
	if c.Own != nil {
		t.charges = doubles(t.charges, exact(c.Own.Cost))
	}
	if s := c.Terms.Slot; s != nil {
		t.charges = append(append(t.charges, s.ID[:]...), s.Part, byte(s.Op))
		t.charges = doubles(t.charges, float64(s.TTL))
	}
}

// phaseOf returns the phase of c's windows in ticks, or 0 if c's limit has no fixed windows.
func phaseOf(c *backend.Charge) float64 {
	if c.Limit.Kind != algorithms.FixedWindow {
		return 0
	}
	n := c.Limit.Numbers()
	return float64(n.PhaseOf(c.Terms.Hash))
}

// mayDiffer reports whether c may be in another slot than the charges before it. name is the name of c's key.
// This is faster than computing the slot.
func (t *scriptRun) mayDiffer(c *backend.Charge, name []byte) bool {
	if len(t.targets) == 0 {
		t.tag = c.Slot
		return false
	}
	return c.Slot != t.tag || c.Slot == 0 && t.keys[len(t.keys)-1] != string(name)
}

// head appends the head of a group of n charges with an idempotency key. name is the name of the record's
// key.
func (t *scriptRun) head(once *backend.IdempotencyKey, n int, name []byte) {
	t.targets, t.last = append(t.targets, target{heads: n}), -1
	r := record{t.key(name), lifetime(once)}
	t.records = append(t.records, r)
	t.charges = doubles(t.charges, float64(r.key), 0, float64(r.life), 0)
	t.charges = append(t.charges, once.Digest[:]...)
}

// lifetime returns how long a record is kept, in ms.
func lifetime(once *backend.IdempotencyKey) int64 { return int64(max(once.Lifetime, 1)+999) / 1000 }

// key returns the number of the key with this name, from 1. It adds the key if t does not have it yet.
func (t *scriptRun) key(name []byte) int {
	last := uint64(len(t.index) - 1)
	at := xxhash.Sum64(name) & last
	for ; t.index[at] != 0; at = (at + 1) & last {
		if k := t.index[at]; t.keys[k-1] == string(name) {
			return int(k)
		}
	}
	from := len(t.names)
	t.names = append(t.names, name...)
	own := t.names[from:]
	t.keys = append(t.keys, unsafe.String(unsafe.SliceData(own), len(own))) // the string is valid until reset, because its bytes are not changed before
	t.index[at] = uint32(len(t.keys))
	return len(t.keys)
}

// limit returns the number of l, from 1. It adds l if t does not have it yet.
func (t *scriptRun) limit(l *algorithms.Limit) int {
	i := slices.Index(t.limits, l) // faster than a map: calls have few limits
	if i < 0 {
		i = len(t.limits)
		t.limits = append(t.limits, l)
	}
	return i + 1
}

// finish completes the arguments. now is the time of the decision; 0 means the server's own clock. wall
// returns this machine's time, which is near the server's.
func (t *scriptRun) finish(now algorithms.Micros, wall func() algorithms.Micros) {
	declared := len(t.keys)
	if t.slots {
		declared = 1
	}
	t.args[2] = declared
	for i := range t.keys[:declared] {
		t.args = append(t.args, &t.keys[i]) // a pointer needs no allocation
	}
	t.limitsArg = len(t.args) + 1
	t.charges = doubles(t.charges, 0, 0)
	t.time = doubles(t.time[:0], float64(now))
	t.args = append(t.args, t.text(0, t.time), nil, t.text(2, t.charges))
	for i := range t.keys[declared:] {
		t.args = append(t.args, &t.keys[declared+i])
	}
	near := now
	if near == 0 && slices.ContainsFunc(t.limits, func(l *algorithms.Limit) bool { return l.Calendar != nil }) {
		near = wall()
	}
	t.writeLimits(near)
}

// writeLimits writes the limits. For each calendar it writes the windows around now.
func (t *scriptRun) writeLimits(now algorithms.Micros) {
	t.limitBytes = t.limitBytes[:0]
	for _, l := range t.limits {
		t.limitBytes = appendLimit(t.limitBytes, l, now)
	}
	t.args[t.limitsArg] = t.text(1, t.limitBytes)
}

// text stores b as text number i of t.texts, and returns a pointer to it. A pointer as an argument needs no
// allocation. The bytes must not change until the call is answered.
func (t *scriptRun) text(i int, b []byte) *string {
	t.texts[i] = unsafe.String(unsafe.SliceData(b), len(b))
	return &t.texts[i]
}

// usual reports whether l is a usual limit (see take.lua). The script decides plain charges of such limits in a fast
// loop.
func usual(l *algorithms.Limit, tick int64) bool {
	return (l.Kind == algorithms.TokenBucket || l.Kind == algorithms.FixedWindow) && tick == 1 && l.Rate > 0 &&
		!l.Overdraw && l.Calendar == nil && l.Penalty.After == 0 && l.OpenFor == 0
}

func appendLimit(dst []byte, l *algorithms.Limit, now algorithms.Micros) []byte {
	n, flags := l.Numbers(), 0.0
	for i, set := range [...]bool{l.Overdraw, l.TakesDenied, l.PerRequest, l.Calendar != nil, l.Penalty.After > 0, usual(l, n.Tick), l.Settles, l.Initial < l.Capacity} {
		if set {
			flags += float64(int(1) << i)
		}
	}
	dst = doubles(dst, float64(l.Kind), flags, float64(l.Capacity), float64(l.MaxReserved),
		float64(l.Rate), float64(n.Period), float64(n.P), float64(n.Q), float64(n.V),
		float64(n.Tick), float64(l.Initial), float64(n.P1), float64(n.V1))
	if l.Settles {
		dst = doubles(dst, float64(l.MaxDebt), float64(l.OpenFor))
	}
	if p := l.Penalty; p.After > 0 {
		dst = doubles(dst, float64(p.After), float64(p.For), float64(p.Max))
	}
	if c := l.Calendar; c != nil {
		first := c.Window(now) - 2
		// the calendar is identified by the 53 bits of a hash that a double can hold
		dst = doubles(dst, float64(xxhash.Sum64String(c.Unit+" "+c.Zone)>>11), float64(first), float64(c.Longest))
		for n := range int64(5) {
			dst = doubles(dst, float64(c.Start(first+n)))
		}
	}
	return dst
}

// outsideCalendar reports whether the server's time was outside of the calendar windows that it received, and
// returns that time. Nothing was decided then.
func (t *scriptRun) outsideCalendar() (now algorithms.Micros, yes bool) {
	if t.err != nil || len(t.reply) != headSize || len(t.targets) == 0 {
		return 0, false
	}
	return moment(t.reply), true
}

func (t *scriptRun) form(old bool) script {
	switch {
	case old:
		return plain
	case t.slots:
		return acrossSlots
	default:
		return shebang
	}
}

// arguments returns the arguments of t for the form s. full means the whole text of the script in place of its hash.
func (t *scriptRun) arguments(s script, full bool) []any {
	if t.args[0], t.args[1] = "evalsha", s.sha; full {
		t.args[0], t.args[1] = "eval", s.text
	}
	return t.args
}

// headSize is the length of the first part of an answer, which is the time of the decision. answerSize is the
// largest length of the answer to one charge.
const (
	headSize   = 8
	answerSize = 1 + 5*8

	noLast  = 64  // the answer does not contain its last value, which is 0
	noRetry = 128 // the answer does not contain the retry time, which is 0
)

// sizeOf returns the length of the first answer in text, or 0 if that answer is incomplete.
func sizeOf(text string) int {
	if text == "" {
		return 0
	}
	size := answerSize
	if text[0]&noLast != 0 {
		size -= 8
	}
	if text[0]&noRetry != 0 {
		size -= 8
	}
	if len(text) < size {
		return 0
	}
	return size
}

// complete reports whether text consists of n answers.
func complete(text string, n int) bool {
	for ; n > 0; n-- {
		size := sizeOf(text)
		if size == 0 {
			return false
		}
		text = text[size:]
	}
	return text == ""
}

// answer stores the script's answer in the decisions of its charges. If there is none, or it is incomplete, answer
// stores the error there, and returns it.
func (t *scriptRun) answer() error {
	if t.err == nil && (len(t.reply) < headSize || !complete(t.reply[headSize:], len(t.targets))) {
		t.err = fmt.Errorf("the script answered %d bytes for %d charges", len(t.reply), len(t.targets))
	}
	if t.err != nil {
		err := unavailable(t.err)
		for _, to := range t.targets {
			if to.decision != nil {
				*to.decision = backend.Decision{Err: err}
			}
		}
		return err
	}
	now, rest := moment(t.reply), t.reply[headSize:]
	at, replayed, reused, heads := now, false, false, 0 // these describe the current group with an idempotency key; heads is the number of its remaining charges
	for i := range t.targets {
		to := &t.targets[i]
		text := rest[:sizeOf(rest)]
		rest = rest[len(text):]
		if to.heads > 0 {
			heads, at, replayed, reused = to.heads, now, text[0]&4 != 0, text[0]&8 != 0
			if replayed {
				at = moment(text[1:])
			}
			continue
		}
		if heads == 0 {
			at, replayed, reused = now, false, false
		}
		heads = max(0, heads-1)
		if reused {
			*to.decision = backend.Decision{Err: backend.ErrReused}
			continue
		}
		decode(text, to.decision)
		if text[0]&16 != 0 {
			fromWindows(to.charge.Limit.Calendar, at, &to.decision.Decision)
		}
		to.decision.At, to.decision.Replayed = at, replayed
		if to.charge.Own != nil && !to.decision.Allowed {
			t.tellBoth(i)
		}
	}
	return nil
}

// tellBoth sets the retry time of the charge t.targets[i], which was denied and has an Own, to that of the charge and of
// the row before it. The script cannot compare times that are numbers of windows, so it returns the retry time of Own in
// place of the wait, or 1 in place of the lost units if Own can never be allowed; a denial has neither. A retry time of 0
// means that only Own can be allowed.
func (t *scriptRun) tellBoth(i int) {
	d := t.targets[i].decision
	with, is := algorithms.Retry{After: d.Wait, Never: d.Lost > 0}, algorithms.Retry{After: d.RetryAfter, Never: d.RetryAfter == 0}
	d.Wait, d.Lost = 0, 0
	if d.Never { // Own can never be allowed either
		return
	}
	for k := i - 1; k >= 0 && t.targets[k].charge != nil && t.targets[k].charge.Then; k-- {
		with = with.Both(t.targets[k].decision.Retry())
	}
	is = is.Either(with)
	d.RetryAfter, d.Never = is.After, is.Never
}

// fromWindows converts the times in d, which are numbers of windows, to durations. Those below 0 are durations already,
// with a minus sign. d was decided at time at.
// c is the calendar of the limit. It is nil if d was made, and stored as a record, when the limit still had a
// calendar. The times are unknown then, and become 0.
func fromWindows(c *algorithms.Calendar, at algorithms.Micros, d *algorithms.Decision) {
	for _, span := range [...]*algorithms.Micros{&d.RetryAfter, &d.ResetAfter, &d.Wait} {
		switch n := int64(*span); {
		case n < 0:
			*span = -*span
		case c != nil:
			*span = c.After(at, n)
		default:
			*span = 0
		}
	}
	d.RetryAfter = max(d.RetryAfter, d.Blocked)
}

// decode reads the answer to one charge to d, in place because a copy of this large struct is slow. take.lua describes
// the form of the answer.
func decode(text string, d *backend.Decision) {
	flags := text[0]
	*d = backend.Decision{}
	d.Allowed, d.Never = flags&1 != 0, flags&2 != 0
	d.Value, d.Remaining = number(text[1:]), number(text[9:])
	text = text[17:]
	if flags&noRetry == 0 {
		d.RetryAfter, text = moment(text), text[8:]
	}
	d.ResetAfter, text = moment(text), text[8:]
	switch {
	case flags&noLast != 0:
	case flags&32 != 0:
		d.Blocked = moment(text)
	case flags&4 != 0:
		d.Lost = number(text)
	default:
		d.Wait = moment(text)
	}
}

// encode appends d in the form that decode reads, with all five doubles.
func encode(dst []byte, d *backend.Decision) []byte {
	flags, last := byte(0), d.Wait
	if d.Allowed {
		flags++
	}
	if d.Never {
		flags += 2
	}
	if d.Blocked > 0 {
		flags, last = flags+32, d.Blocked
	} else if d.Lost > 0 {
		flags, last = flags+4, algorithms.Micros(d.Lost)
	}
	return doubles(append(dst, flags), float64(d.Value), float64(d.Remaining),
		float64(d.RetryAfter), float64(d.ResetAfter), float64(last))
}

// number returns the integer that is stored as a double at the start of text.
func number(text string) int64 {
	return int64(math.Float64frombits(binary.LittleEndian.Uint64([]byte(text[:8]))))
}

func moment(text string) algorithms.Micros { return algorithms.Micros(number(text)) }

// exact reduces n to the range in which doubles are exact. No limit allows a higher cost.
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
