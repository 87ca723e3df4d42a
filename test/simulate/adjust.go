package simulate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Operators adjust some limits through any sidecar, sometimes two operators at the same time. All sidecars read the
// adjustments from a shared ledger in Redis.

// tunings has the changes that operators make. Credits pay for "plan", and flights leave something open in the last three.
var tunings = []struct {
	domain, limit string
	changes       []adjust.Change
}{
	{"sim", "tuned", []adjust.Change{rateOf(4), rateOf(70), {Block: true}}},
	{"sim", "quota", []adjust.Change{rateOf(4), rateOf(70), {Block: true}}},
	{"plans", "plan", []adjust.Change{rateOf(4), rateOf(70)}},
	{"sim", "tokens", []adjust.Change{rateOf(100), rateOf(500), {Block: true}}},
	{"sim", "meter", []adjust.Change{rateOf(100), rateOf(500), {Block: true}}},
	{"sim", "slots", []adjust.Change{{Capacity: new(int64(2))}, {Capacity: new(int64(mostSlots))}, {Block: true}}},
}

func rateOf(rate int64) (c adjust.Change) { return adjust.Change{Rate: &rate} }

func isTuned(limit string) bool { return len(changesOf(limit)) > 0 }

func changesOf(limit string) []adjust.Change {
	for i := range tunings {
		if tunings[i].limit == limit {
			return tunings[i].changes
		}
	}
	return nil
}

func tunedLimits(p *limiter.Policy) (all []*algorithms.Limit) {
	for _, change := range changesOf(p.Name) {
		if change.Block {
			continue
		}
		spec, err := change.Spec(p.Limit)
		if err != nil {
			panic(err)
		}
		limit, err := algorithms.Compile(spec)
		if err != nil {
			panic(err)
		}
		all = append(all, &limit)
	}
	return all
}

func (p *process) openLedger(url string) {
	ledger, err := redis.OpenLedger(redis.Config{URL: url, Machine: p.machine()}, "adjustments")
	if err != nil {
		panic(err)
	}
	p.ledger = ledger
	applied := adjust.NewSet(adjust.Head{}, nil)
	use := func(set *adjust.Set) { // package server does the same
		set = set.Live(p.keeper.Now())
		var keys [][]byte
		all := false
		for _, a := range adjust.Differences(applied, set) {
			of, every := p.limiter.Buckets(a)
			keys, all = append(keys, of...), all || every
		}
		applied = set
		forget := func() {
			if all {
				p.cache.Clear()
			}
			for _, key := range keys {
				p.cache.ClearBucket(key)
			}
		}
		forget()
		p.limiter.Adjust(set, p.keeper.Now)
		forget()
	}
	pause := func(longest time.Duration) { p.pause(time.Duration(p.rng.Int64N(int64(longest)))) }
	p.keeper = adjust.NewKeeper(adjust.Config{Ledger: ledger, Clock: p.machine().Clock.Now, Pause: pause, Changed: use})
	var poll func()
	poll = func() {
		if p.crashed || p.closing || p.w.lastPoll > 0 && p.w.now > p.w.lastPoll {
			return
		}
		p.useKeeper(func() {
			before := p.keeper.Status().Rewritten
			_ = p.keeper.Poll(context.Background())
			status := p.keeper.Status()
			if status.Rewritten > before {
				p.w.seen(sawRewritten)
			}
			for _, a := range status.Lost {
				p.w.seen(sawReportedLost)
				p.w.judge.reportedLost[a.ID] = true
			}
		})
		pause := 10_000 + p.rng.Int64N(30_000)
		if p.w.noMoreFaults {
			pause *= 4
		}
		p.w.after(time.Duration(pause)*time.Microsecond, p, poll)
	}
	p.w.after(0, p, poll)
}

// useKeeper calls f unless the keeper is in use. The keeper has a mutex, and a coroutine must not block on a
// mutex.
func (p *process) useKeeper(f func()) {
	if !p.keeperInUse {
		p.keeperInUse = true
		f()
		p.keeperInUse = false
	}
}

func (p *process) pause(d time.Duration) {
	p.w.wait(func(resume func()) { p.w.afterPlain(d, p, resume) })
}

func (w *world) operate(rng *rand.Rand) {
	w.judge.changes, w.judge.newest, w.judge.reportedLost = map[string]string{}, map[string]madeChange{}, map[string]bool{}
	for n := range 1 + rng.IntN(6) {
		at := time.Duration(rng.Int64N(int64(w.length)))
		if !w.faultless && rng.IntN(4) == 0 { // this failover may lose the change
			w.after(at, nil, func() { w.stall(w.ledgerServer(), 10*time.Millisecond) })
			w.after(at+6*time.Millisecond, nil, func() {
				switch {
				case w.noMoreFaults:
				case w.watched != nil:
					w.fail(rng, time.Millisecond)
				default:
					w.restart(w.ledgerServer(), 20*time.Millisecond)
				}
			})
		}
		for i := range 1 + rng.IntN(2) { // two operators at the same time
			o := adjust.Operation{Entry: adjust.Entry{Head: adjust.Head{ID: fmt.Sprintf("%d.%d", n, i)}, Author: "operator", Reason: "a test"}}
			of := &tunings[rng.IntN(len(tunings))]
			a := &adjust.Adjustment{Author: o.Author, Reason: o.Reason, Target: adjust.Target{Domain: of.domain, Limit: of.limit, Key: []string{strconv.Itoa(rng.IntN(2))}}}
			switch t := &a.Target; rng.IntN(6) {
			case 0, 1:
				t.Entry, t.Value, t.Key = t.Limit, t.Key[0], nil
			case 2:
				t.AllKeys, t.Key = true, nil
			}
			a.ID = a.Target.ID()
			o.Target = a.ID
			if rng.IntN(5) > 0 {
				a.Change, a.Algorithm = of.changes[rng.IntN(len(of.changes))], algorithms.FixedWindow
				if of.limit == "slots" {
					a.Algorithm = algorithms.Concurrency
				}
				o.After, o.For = a, adjust.Span(5000+1000*rng.Int64N(60))
				if rng.IntN(2) == 0 {
					o.For = adjust.Span(3600 * algorithms.Second)
				}
			}
			p := w.processes[rng.IntN(len(w.processes))]
			w.after(at+time.Duration(rng.Int64N(2_000_000)), p, func() { p.useKeeper(func() { w.change(p, o) }) })
		}
	}
}

// madeChange is a change whose answer confirms it, and during which no other one was made.
type madeChange struct {
	entry *adjust.Entry
	by    *process
}

func (w *world) change(p *process, o adjust.Operation) {
	if p.crashed {
		return
	}
	w.judge.begun++
	begun, alone := w.judge.begun, w.judge.begun == w.judge.ended+1
	delete(w.judge.newest, o.Target)
	e, err := p.keeper.Change(context.Background(), o)
	outcome := "made"
	switch {
	case err != nil && strings.Contains(err.Error(), "the outcome of the change is unknown"):
		w.seen(sawUnknownChange)
		outcome = "not known"
	case err != nil:
		outcome = "not made"
	case e.ID != o.ID:
		w.judge.fail("operation %s was answered with the entry of %s", o.ID, e.ID)
	}
	if p.crashed { // the process has died, so the operator gets no answer
		outcome = "not known"
	}
	w.judge.ended++
	if outcome == "made" && alone && w.judge.begun == begun {
		w.judge.newest[o.Target] = madeChange{e, p}
	}
	w.note("%s: operation %s of %s (to %v): %s, %v", p.name, o.ID, o.Target, o.After != nil, outcome, err)
	w.judge.changes[o.ID] = outcome
}

// late is the longest time that an adjustment may be in force after its expiry, because sidecars estimate the
// server's clock.
const late = algorithms.Micros(30_000)

// adjusted checks that a sidecar uses the adjustment that it knows for a cost, and none that has expired. One that expires
// within late may have expired when the adjustments came into use, because the estimate may step back. After a clock
// has stepped, it checks nothing: an adjustment that has expired is not used again if the server's clock steps back.
func (j *judge) adjusted(p *process, r *limiter.Result, k *cost) {
	if p == nil || p.keeper == nil || !isTuned(r.Policy.Name) || j.clockStepped {
		return
	}
	is := ""
	if a := r.Policy.Adjusted; a != nil {
		is = a.ID
		j.w.seen(sawAdjusted)
		if now := j.w.servers[0].now(); now > a.Expires+late && p.pausedUntil == 0 {
			j.fail("%s uses an adjustment %d us after it expired", p.name, now-a.Expires)
		}
	}
	now := p.keeper.Now()
	if want := p.adjustmentOf(k, now); is != want && is != p.adjustmentOf(k, now+late) && !p.keeperInUse {
		j.fail("%s uses the adjustment %q of %s %s, want %q", p.name, is, k.limit, k.value, want)
	}
}

// adjustmentOf returns the ID of the adjustment that p knows for a cost and that has not expired at the time now: that of
// its key, or of its value, or of all keys.
func (p *process) adjustmentOf(k *cost, now algorithms.Micros) string {
	byForm := [3]string{}
	for _, a := range p.keeper.Set().All() {
		switch t := &a.Target; {
		case t.Limit != k.limit || a.Expires <= now:
		case t.AllKeys:
			byForm[2] = a.ID
		case t.Entry != "" && t.Value == k.value:
			p.w.seen(sawByValue)
			byForm[1] = a.ID
		case len(t.Key) > 0 && t.Key[0] == k.value:
			byForm[0] = a.ID
		}
	}
	return cmp.Or(byForm[:]...)
}

const ledgerSetKey, ledgerChangesKey, ledgerHead = "rl:{adjustments}set", "rl:{adjustments}changes", "head"

func (w *world) ledgerServer() *server {
	return w.holder(w.servers[0], ledgerSetKey)
}

// converged checks that all sidecars know all changes, some time after the last fault.
func (j *judge) converged() {
	w := j.w
	if !w.hasOperators {
		return
	}
	j.inForceOrLost()
	head := w.ledgerServer().fields(ledgerSetKey)[ledgerHead]
	for _, p := range w.processes {
		if is := p.keeper.Set().Head.String(); is != head && p.pausedUntil < w.lastPoll-int64(200*time.Millisecond) {
			j.fail("%s knows change %q of the adjustments, the newest is %q: %v", p.name, is, head, p.keeper.Status().Err)
		}
		j.knowsAll(p)
		for _, a := range p.keeper.Set().All() {
			if a.Expires < p.keeper.Now() {
				w.seen(sawExpired)
			}
		}
	}
}

// inForceOrLost checks that the newest change of each target is in force or was reported as lost, if its sidecar still
// runs. Until all changes have ended, another one may be newer.
func (j *judge) inForceOrLost() {
	fields := j.w.ledgerServer().fields(ledgerSetKey)
	for _, id := range slices.Sorted(maps.Keys(j.newest)) {
		made := j.newest[id]
		after := made.entry.After
		if made.by.crashed || made.by.closing || made.by.pausedUntil >= j.w.lastPoll-int64(200*time.Millisecond) || made.by.keeper.Status().Err != nil || j.clockStepped ||
			after != nil && after.Expires < made.by.keeper.Now()+late {
			continue
		}
		if j.reportedLost[id] {
			continue
		}
		is, text := new(adjust.Adjustment), fields[id]
		if text != "" && json.Unmarshal([]byte(text), is) != nil {
			j.fail("an adjustment cannot be read: %q", text)
			return
		}
		if text != "" && is.Expires < made.by.keeper.Now()+late {
			text = "" // it has no effect any more
		}
		if (after == nil) != (text == "") || after != nil && is.Created != after.Created {
			j.fail("operation %s was confirmed and is neither in force nor reported as lost: the server has %q", made.entry.ID, text)
		}
	}
}

// knowsAll checks that p has the adjustments that the server has, and no others. Either may lack adjustments
// that have expired or soon will.
func (j *judge) knowsAll(p *process) {
	set, fields, soon := p.keeper.Set(), j.w.ledgerServer().fields(ledgerSetKey), p.keeper.Now()+late
	if p.keeper.Status().Err != nil || p.pausedUntil >= j.w.lastPoll-int64(200*time.Millisecond) {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(fields)) {
		if id == ledgerHead {
			continue
		}
		a := new(adjust.Adjustment)
		if err := json.Unmarshal([]byte(fields[id]), a); err != nil {
			j.fail("an adjustment cannot be read: %v", err)
			return
		}
		if is := set.Find(id); a.Expires > soon && (is == nil || !reflect.DeepEqual(is.Change, a.Change) || is.Expires != a.Expires) {
			j.fail("%s lacks the adjustment %s, which the server has", p.name, id)
		}
	}
	for _, a := range set.All() {
		if a.Expires > soon && fields[a.ID] == "" {
			j.fail("%s has the adjustment %s, which the server lacks", p.name, a.ID)
		}
	}
}

// audited checks the last changes at the end. Each change whose answer confirms it must be there once, unless a server
// lost it. A change whose answer refuses it must not be there.
func (j *judge) audited() {
	w := j.w
	if !w.hasOperators {
		return
	}
	count := map[string]int{}
	for _, change := range w.ledgerServer().list(ledgerChangesKey) {
		head, _, _ := strings.Cut(change, "\n")
		_, id, _ := strings.Cut(head, " ")
		count[id]++
	}
	for _, id := range slices.Sorted(maps.Keys(j.changes)) {
		switch outcome, n := j.changes[id], count[id]; {
		case n > 1, outcome == "not made" && n > 0, outcome == "made" && n == 0 && j.losses+j.failovers == 0:
			j.fail("operation %s was answered as %s, the ledger has it %d times", id, outcome, n)
		}
	}
}

func textsOf(args []any) (texts []string) {
	for _, a := range args {
		texts = append(texts, fmt.Sprint(a))
	}
	return texts
}

func (s *server) fields(key string) map[string]string {
	if v := s.get(key); v != nil {
		return v.fields
	}
	return nil
}

// hset sets fields of a hash, or deletes those whose value is "".
func (s *server) hset(key string, pairs ...string) {
	fields := maps.Clone(s.fields(key))
	if fields == nil {
		fields = map[string]string{}
	}
	for i := 0; i < len(pairs); i += 2 {
		if fields[pairs[i]] = pairs[i+1]; pairs[i+1] == "" {
			delete(fields, pairs[i])
		}
	}
	s.put(key, &value{fields: fields})
}

// ledgerRead does what ledger_read.lua does.
func (s *server) ledgerRead(keys []any, args []string) any {
	fields, now, known := s.fields(keys[0].(string)), s.now(), args[0]
	head := fields[ledgerHead]
	reply := []any{head, strconv.FormatInt(int64(now/algorithms.Second), 10), strconv.FormatInt(int64(now%algorithms.Second), 10)}
	if head == known {
		return reply
	}
	version := func(text string) int {
		number, _, _ := strings.Cut(text, " ")
		n, _ := strconv.Atoi(number)
		return n
	}
	changes := s.list(keys[1].(string))
	n := version(head) - version(known)
	if known != "" && 0 < n && n < 100 && n < len(changes) && strings.HasPrefix(changes[n], known+"\n") {
		return append(reply, anyOf(changes[:n+1]))
	}
	pairs := []any{}
	for _, id := range slices.Sorted(maps.Keys(fields)) {
		pairs = append(pairs, id, fields[id])
	}
	return append(reply, anyOf(changes), "0", int64(len(fields)), pairs) // all values are one part
}

func anyOf(texts []string) []any {
	all := make([]any, len(texts))
	for i, text := range texts {
		all[i] = text
	}
	return all
}

// ledgerWrite does what ledger_write.lua does. A run is too short for changes to be trimmed.
func (s *server) ledgerWrite(keys []any, args []string) any {
	set, changes := keys[0].(string), keys[1].(string)
	if s.fields(set)[ledgerHead] != args[0] {
		s.w.seen(sawRaced)
		return int64(0)
	}
	if args[0] == "" && !strings.HasPrefix(args[1], "1 ") {
		s.w.seen(sawRestored)
	}
	n, _ := strconv.Atoi(args[3])
	list := s.list(changes)
	if args[0] == "" {
		list = nil
	}
	for _, change := range args[4 : 4+n] {
		list = append([]string{change}, list...)
	}
	s.put(changes, &value{list: list})
	s.hset(set, append(args[4+n:], ledgerHead, args[1])...)
	return int64(1)
}

func (s *server) list(key string) []string {
	if v := s.get(key); v != nil {
		return v.list
	}
	return nil
}
