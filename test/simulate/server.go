package simulate

import (
	"cmp"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// server is a simulated Redis server. It decides with package algorithms. Other tests show that take.lua
// gives the same decisions.
type server struct {
	w          *world
	name       string
	up         bool
	clock      algorithms.Micros // the server's time at the start of the run
	ppm        int64             // how much faster than real time its clock runs
	stuckUntil int64
	refuses    string // the error with which it refuses every command; "" means none
	keys       map[string]*value
	scripts    map[string]script

	lag       time.Duration // the least delay until a replica has a write
	replicas  []replica
	executing bool    // a command is running
	writes    *writes // the writes of the running command so far; nil before the first one
	wrote     bool    // a command of the present call has written
	epoch     int     // how often a failover has closed its connections
	isReplica bool
	alone     bool // it has no replica, because a failover has made it and its replica masters
}

// replica is a copy of a master's values that is currentAt a time. Only the copy that takes over gets an address.
type replica struct {
	keys      map[string]*value // nil means deleted
	currentAt int64
}

// value is the content of a key: a bucket, a string, a hash or a list.
type value struct {
	state  algorithms.State
	text   string
	bucket bool
	fields map[string]string // the fields of a hash; a change replaces the map
	list   []string          // the elements of a list
	until  algorithms.Micros // when the key expires; 0 means never
}

type script int

const (
	takeScript script = iota + 1
	replaceScript
	ledgerReadScript
	ledgerWriteScript
)

func newServer(w *world, name string) *server {
	clock := edge.Add(-time.Duration(w.rng.Int64N(int64(w.untilEdge))))
	return &server{w: w, name: name, up: true, clock: algorithms.Micros(clock.UnixMicro()),
		ppm: w.rng.Int64N(400) - 200, keys: map[string]*value{}, scripts: map[string]script{}}
}

func (s *server) now() algorithms.Micros {
	us := s.w.now / 1000
	return s.clock + algorithms.Micros(us+us*s.ppm/1_000_000)
}

// writes are the writes of one command, in order.
type writes struct {
	keys   []string
	values []*value
}

// put writes v to a key, or deletes the key if v is nil. Each replica gets the writes of a command after a
// delay, all at the same moment, because Redis replicates the writes of a script as one transaction.
func (s *server) put(key string, v *value) {
	if s.keys[key] = v; v == nil {
		delete(s.keys, key)
	}
	s.wrote = true
	if len(s.replicas) == 0 || s.alone {
		return
	}
	if s.writes != nil {
		s.writes.keys, s.writes.values = append(s.writes.keys, key), append(s.writes.values, v)
		return
	}
	epoch, all := s.epoch, &writes{[]string{key}, []*value{v}}
	if s.executing {
		s.writes = all
	}
	for i := range s.replicas {
		r := &s.replicas[i]
		r.currentAt = max(r.currentAt+1, s.w.now+int64(s.lag)+s.w.rng.Int64N(int64(s.lag))) // keeps the order of writes
		s.w.afterPlain(time.Duration(r.currentAt-s.w.now), nil, func() {
			if s.epoch == epoch && !s.alone {
				for i, key := range all.keys {
					r.keys[key] = all.values[i]
				}
			}
		})
	}
}

// replicate gives s n replicas that have its values.
func (s *server) replicate(n int) {
	s.replicas = nil
	for range n {
		s.replicas = append(s.replicas, replica{keys: maps.Clone(s.keys)})
	}
}

// takeOver makes the replica of old that is most behind the master, so that its values become those of next.
func (w *world) takeOver(old, next *server) {
	keys := slices.MaxFunc(old.replicas, func(x, y replica) int { return cmp.Compare(x.currentAt, y.currentAt) }).keys
	maps.DeleteFunc(keys, func(_ string, v *value) bool { return v == nil })
	next.keys = keys
	next.replicate(len(old.replicas))
	clear(next.scripts)
	if w.judge.failovers++; w.waitReplicas < len(old.replicas) {
		w.judge.losses++
	}
}

// waits returns how long the last command's answer waits for replicas, and sets its reply if it is WAIT. WAIT
// counts the replicas that have the last write of its own connection. After commands that wrote nothing, it
// does not wait for writes of other connections (since Redis 7.2).
func (s *server) waits(commands []command) time.Duration {
	last := &commands[len(commands)-1]
	if last.Args[0] != "wait" || last.Err != nil {
		return 0
	}
	most := time.Duration(last.Args[2].(int64)) * time.Millisecond
	var left []time.Duration
	for i := 0; i < len(s.replicas) && !s.alone; i++ {
		if d := time.Duration(s.replicas[i].currentAt - s.w.now); !s.wrote {
			left = append(left, 0)
		} else if d <= most {
			left = append(left, max(0, d))
		}
	}
	slices.Sort(left)
	last.Reply = int64(len(left))
	if want := int(last.Args[1].(int64)); len(left) >= want {
		return left[want-1]
	}
	s.w.seen(sawUnconfirmed)
	return most
}

func (s *server) get(key string) *value {
	v := s.keys[key]
	if v != nil && v.until != 0 && s.now() >= v.until {
		delete(s.keys, key)
		return nil
	}
	return v
}

func (s *server) execute(commands []command) {
	asking := false
	s.wrote = false
	for i := range commands {
		c := &commands[i]
		keys := keysOf(c.Args)
		if s.refuses != "" {
			c.Err = errorReply(s.refuses)
		} else if s.isReplica && c.Args[0] != "info" {
			s.w.seen(sawReadOnly)
			c.Err = errorReply("READONLY You can't write against a read only replica.")
		} else if len(keys) > 0 {
			c.Err = s.elsewhere(keys, asking)
		}
		if c.Err == nil {
			s.executing = true
			c.Reply, c.Err = s.command(c.Args)
			s.executing, s.writes = false, nil
		}
		asking = c.Args[0] == "asking"
	}
}

func (s *server) command(args []any) (any, error) {
	switch name := args[0].(string); strings.ToLower(name) {
	case "evalsha":
		which, ok := s.scripts[args[1].(string)]
		if !ok {
			return nil, errorReply("NOSCRIPT No matching script. Please use EVAL.")
		}
		return s.script(which, args)
	case "eval":
		sha, which := nameOf(args[1].(string))
		s.scripts[sha] = which
		return s.script(which, args)
	case "set": // key value px ms nx
		key := args[1].(string)
		if s.get(key) != nil {
			return nil, nil
		}
		s.set(key, args[2].(string), args[4].(int64))
		return "OK", nil
	case "pexpire": // key ms
		v := s.get(args[1].(string))
		if v == nil {
			return int64(0), nil
		}
		own := *v
		own.until = s.now() + algorithms.Micros(args[2].(int64))*1000
		s.put(args[1].(string), &own)
		return int64(1), nil
	case "asking":
		return "OK", nil
	case "cluster":
		return s.w.layout.slots(), nil
	case "wait":
		return int64(0), nil // waits returns the delay of the answer
	case "info":
		if s.isReplica {
			return "role:slave", nil
		}
		return "role:master", nil
	case "get":
		if v := s.get(args[1].(string)); v != nil {
			return v.text, nil
		}
		return nil, nil
	case "hmget": // key field
		if v := s.get(args[1].(string)); v != nil {
			return []any{v.fields[args[2].(string)]}, nil
		}
		return []any{nil}, nil
	case "del":
		if s.get(args[1].(string)) == nil {
			return int64(0), nil
		}
		s.put(args[1].(string), nil)
		return int64(1), nil
	default:
		panic(fmt.Sprintf("simulate: no such command: %v", args))
	}
}

func (s *server) set(key, text string, ms int64) {
	s.put(key, &value{text: text, until: s.now() + algorithms.Micros(ms)*1000})
}

var known sync.Map // from a *byte, the address of a script's text, to its knownScript

type knownScript struct {
	sha   string
	which script
}

func nameOf(text string) (sha string, which script) {
	at := unsafe.StringData(text)
	if k, ok := known.Load(at); ok {
		return k.(knownScript).sha, k.(knownScript).which
	}
	sum := sha1.Sum([]byte(text))
	for _, other := range []struct {
		part  string // code that only this script has
		which script
	}{
		{"call('PSETEX', names[i]", takeScript},
		{"GET', KEYS[1]) ~= ARGV[1]", replaceScript},
		{"'HSCAN', KEYS[1]", ledgerReadScript},
		{"'LPUSH', KEYS[2]", ledgerWriteScript},
	} {
		if strings.Contains(text, other.part) {
			which = other.which
		}
	}
	if which == 0 {
		panic("the simulated server does not know this script: " + text)
	}
	sha = hex.EncodeToString(sum[:])
	known.Store(at, knownScript{sha, which})
	return sha, which
}

func (s *server) script(which script, args []any) (any, error) {
	n := args[2].(int64)
	keys, rest := args[3:3+n], args[3+n:]
	switch which {
	case ledgerReadScript:
		return s.ledgerRead(keys, textsOf(rest)), nil
	case ledgerWriteScript:
		return s.ledgerWrite(keys, textsOf(rest)), nil
	}
	if which == replaceScript {
		key := keys[0].(string)
		if v := s.get(key); v == nil || v.text != rest[0].(string) {
			return int64(0), nil
		}
		if rest[1].(string) == "" {
			s.put(key, nil)
			return int64(1), nil
		}
		s.set(key, rest[1].(string), rest[2].(int64))
		return int64(1), nil
	}
	return s.take(keys, rest)
}

// take does what the script take.lua does.
func (s *server) take(keys, args []any) (any, error) {
	r := reader{text: args[2].(string)}
	t := &s.w.taking
	t.server, t.now, t.keys = s, s.now(), t.keys[:0]
	for _, k := range keys {
		t.keys = append(t.keys, k.(string))
	}
	for _, k := range args[3:] {
		t.keys = append(t.keys, k.(string))
	}
	for _, key := range t.keys[len(keys):] { // keys in other slots, which the call cannot declare
		if s.elsewhere([]string{key}, false) != nil {
			s.w.seen(sawForeign)
			return nil, errorReply(foreignKey)
		}
	}
	t.out = doubles(t.out[:0], int64(t.now))
	known := false
	if t.limits, known = s.w.limitsOf(t.limits[:0], args[1].(string), t.now); !known {
		return string(t.out), nil
	}
	for {
		c, ok := t.read(&r)
		if !ok {
			return string(t.out), nil
		}
		t.decide(&r, c)
	}
}

// batchCharging is one run of take.lua. It is reused.
type batchCharging struct {
	server *server
	now    algorithms.Micros
	keys   []string
	limits []*algorithms.Limit
	out    []byte

	group   []charge // the group being decided, with its buckets and their former states
	buckets []algorithms.Bucket
	before  []algorithms.State
}

// charge is one charge in the arguments of the script. The head of a group is a charge without a limit.
type charge struct {
	key   string
	limit *algorithms.Limit
	terms algorithms.Charge
	more  bool // the group continues with the next charge
	then  bool
	own   *algorithms.Own
	life  int64  // how long the record of the request stays, in ms; only in a head
	hash  string // the hash of the request; only in a head
}

func (t *batchCharging) read(r *reader) (c charge, ok bool) {
	key, what := r.number(), r.number()
	if key == 0 {
		return c, false
	}
	cost, phase := r.number(), r.number()
	c.key = t.keys[key-1]
	number, flags := what%(1<<20), what>>20
	if number == 0 {
		c.life, c.hash = cost, r.bytes(32)
		return c, true
	}
	c.limit, c.more, c.then = t.limits[number-1], flags&1 != 0, flags&64 != 0
	c.terms = algorithms.Charge{
		Cost: cost, Hash: uint64(phase), Reserve: flags&4 != 0, DryRun: flags&8 != 0, Scaled: flags&16 != 0, Settle: flags&32 != 0,
		Free: flags&512 != 0, Open: flags&2048 != 0,
	}
	if n := c.limit.Numbers(); c.limit.Kind == algorithms.FixedWindow && n.PhaseOf(uint64(phase)) != phase {
		panic(fmt.Sprintf("simulate: windows of %s start at %d, want %d", c.key, phase, n.PhaseOf(uint64(phase))))
	}
	if flags&2 != 0 {
		c.terms.MaxWait, c.terms.ChargedAt = algorithms.Micros(r.number()), algorithms.Micros(r.number())
	}
	if flags&128 != 0 {
		c.own = &algorithms.Own{Cost: r.number(), Reserve: flags&256 != 0}
	}
	if flags&1024 != 0 {
		c.terms.Slot = r.slot()
	}
	return c, true
}

func (t *batchCharging) decide(r *reader, c charge) {
	var head *charge
	if c.limit == nil {
		own := c
		head = &own
		c, _ = t.read(r)
	}
	group := append(t.group[:0], c)
	for group[len(group)-1].more {
		next, _ := t.read(r)
		group = append(group, next)
	}
	t.group = group
	const size = 41 // the length of an answer: a byte of flags and five doubles
	if head != nil {
		// An earlier attempt has charged the request. The record has the hash of the request (32 bytes), the time of
		// the decision (8 bytes) and the answers.
		if v := t.server.get(head.key); v != nil {
			same := v.text[:32] == head.hash && len(v.text) == 40+size*len(group)
			if same {
				t.out = append(append(append(t.out, 4), v.text[32:40]...), make([]byte, 32)...)
				t.out = append(t.out, v.text[40:]...)
			} else {
				t.out = append(append(t.out, 8), make([]byte, size-1+size*len(group))...)
			}
			return
		}
		t.out = append(t.out, make([]byte, size)...)
	}
	at := len(t.out)
	if took := t.charge(group); head != nil && took {
		t.server.set(head.key, head.hash+string(doubles(nil, int64(t.now)))+string(t.out[at:]), head.life)
	}
}

// charge decides a group, and reports whether it consumed anything.
func (t *batchCharging) charge(group []charge) (took bool) {
	s := t.server
	buckets, before := t.buckets[:0], t.before[:0]
	for i := range group {
		b := algorithms.Bucket{Limit: group[i].limit, Charge: group[i].terms, Then: group[i].then, Own: group[i].own}
		if v := s.get(group[i].key); v != nil {
			b.State = v.state
		}
		if group[i].limit.Kind == algorithms.Concurrency {
			b.State.Slots = b.State.Slots.Clone() // a replica may still have the former state
		}
		buckets, before = append(buckets, b), append(before, b.State)
	}
	t.buckets, t.before = buckets, before
	took = algorithms.TakeAll(t.now, buckets)
	for i := range buckets {
		b := &buckets[i]
		took = took && !b.Charge.DryRun
		switch {
		case b.Limit.Kind == algorithms.Concurrency:
			s.putSlots(&group[i], b, t.now)
		case b.State.By != nil:
			s.put(group[i].key, &value{state: b.State, bucket: true, until: expiry(b.State, t.now)})
		}
		t.out = answer(t.out, t.now, b, group[i].own != nil)
	}
	if plansGroup(group) {
		s.w.judge.pays(s, group, before, buckets, took)
		return took
	}
	for i := range buckets {
		s.w.judge.charged(s, &group[i], &before[i], &buckets[i], took)
	}
	return took
}

func expiry(s algorithms.State, now algorithms.Micros) algorithms.Micros {
	ms := max(0, (s.FreshAt()-now)/1000) + 2
	if s.By.Initial < s.By.Capacity {
		ms += algorithms.Day / 1000
	}
	return now + ms*1000
}

// answer appends the answer to a charge at time now. own means that the charge has an Own: a denial then has the retry
// time of Own in place of the wait. The sidecar combines it with the others, which TakeAll has done already.
func answer(out []byte, now algorithms.Micros, b *algorithms.Bucket, own bool) []byte {
	d, flags := b.Decision, byte(0)
	if c := b.Limit.Calendar; c != nil { // such times are sent as numbers of windows, others below 0
		flags |= 16
		for _, span := range []*algorithms.Micros{&d.RetryAfter, &d.ResetAfter, &d.Wait} {
			if n := c.Window(now+*span) - c.Window(now); c.After(now, n) == *span {
				*span = algorithms.Micros(n)
			} else {
				*span = -*span
			}
		}
	}
	last := d.Wait
	if own && !d.Allowed {
		last = d.RetryAfter
	}
	if d.Allowed {
		flags |= 1
	}
	if d.Never {
		flags |= 2
	}
	if d.Blocked > 0 {
		flags, last = flags|32, d.Blocked
	} else if d.Lost > 0 {
		flags, last = flags|4, algorithms.Micros(d.Lost)
	}
	return doubles(append(out, flags), d.Value, d.Remaining, int64(d.RetryAfter), int64(d.ResetAfter), int64(last))
}

func doubles(out []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		out = binary.LittleEndian.AppendUint64(out, math.Float64bits(float64(n)))
	}
	return out
}

// reader reads doubles and byte strings.
type reader struct {
	text string
	at   int
}

func (r *reader) number() int64 {
	n := math.Float64frombits(binary.LittleEndian.Uint64([]byte(r.text[r.at : r.at+8])))
	r.at += 8
	return int64(n)
}

func (r *reader) slot() *algorithms.Slot {
	text := r.bytes(18)
	slot := &algorithms.Slot{Part: text[16], Op: algorithms.SlotOp(text[17]), TTL: algorithms.Micros(r.number())}
	copy(slot.ID[:], text)
	return slot
}

func (r *reader) bytes(n int) string {
	r.at += n
	return r.text[r.at-n : r.at]
}
