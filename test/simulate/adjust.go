package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/adjust/shared"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/outside"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Operators adjust the limit "tuned" through any sidecar, sometimes two operators at the same time. All
// sidecars read the adjustments from a shared ledger in Redis.

// chain authenticates the entries of the ledger. All sidecars have its secret.
var chain = adjust.NewChain([]byte("a secret of all sidecars"))

var tunedRates = []int64{4, 70}

func tunedLimits(p *limiter.Policy) (all []*algorithms.Limit) {
	if p.Name != "tuned" {
		return nil
	}
	for _, rate := range tunedRates {
		spec, err := (&adjust.Change{Rate: &rate}).Spec(p.Limit)
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
	ledger, err := redis.OpenLedger(redis.Config{URL: url, Outside: p.outside()}, "adjustments")
	if err != nil {
		panic(err)
	}
	p.ledger = ledger
	p.keeper, err = shared.New(shared.Config{Ledger: ledger, Chain: chain, Outside: p.outside(), Pause: p.pause})
	if err != nil {
		panic(err)
	}
	applied := adjust.NewSet(adjust.Head{}, nil)
	p.keeper.Watch(func(set *adjust.Set) { // package server does the same
		set = set.Without(set.Expired(p.keeper.Now(), set.Len()))
		var keys [][]byte
		for _, a := range adjust.Differences(applied, set) {
			of, _ := p.limiter.Buckets(a)
			keys = append(keys, of...)
		}
		applied = set
		for _, key := range keys {
			p.lease.ClearBucket(key)
		}
		p.limiter.Adjust(set, p.keeper.Now)
		for _, key := range keys {
			p.denied.ClearBucket(key)
		}
	})
	var poll func()
	poll = func() {
		if p.crashed || p.closing || p.w.lastPoll > 0 && p.w.now > p.w.lastPoll {
			return
		}
		p.useKeeper(func() {
			before := p.keeper.Status().Rewritten
			_ = p.keeper.Poll(context.Background())
			if p.keeper.Status().Rewritten > before {
				p.w.seen(sawRewritten)
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
	w.judge.changes = map[string]string{}
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
			o := adjust.Operation{ID: fmt.Sprintf("%d.%d", n, i), Author: "operator", Reason: "a test"}
			a := &adjust.Adjustment{Author: o.Author, Reason: o.Reason, Target: adjust.Target{Domain: "sim", Limit: "tuned", Key: []string{strconv.Itoa(rng.IntN(2))}}}
			a.ID = a.Target.ID()
			o.Target = a.ID
			if rng.IntN(5) > 0 {
				rate := tunedRates[rng.IntN(len(tunedRates))]
				a.Change.Rate, a.Algorithm = &rate, algorithms.FixedWindow
				o.After, o.For = a, time.Duration(5+rng.Int64N(60))*time.Millisecond
				if rng.IntN(2) == 0 {
					o.For = time.Hour
				}
			}
			p := w.processes[rng.IntN(len(w.processes))]
			w.after(at+time.Duration(rng.Int64N(2_000_000)), p, func() { p.useKeeper(func() { w.change(p, o) }) })
		}
	}
}

func (w *world) change(p *process, o adjust.Operation) {
	if p.crashed {
		return
	}
	e, err := p.keeper.Change(context.Background(), o)
	outcome := "made"
	switch {
	case err != nil && strings.Contains(err.Error(), "the outcome of the change is unknown"):
		w.seen(sawUnknownChange)
		outcome = "not known"
	case err != nil:
		outcome = "not made"
	case e.Operation != o.ID:
		w.judge.fail("operation %s was answered with the entry of %s", o.ID, e.Operation)
	}
	if p.crashed { // the process has died, so the operator gets no answer
		outcome = "not known"
	}
	w.note("%s: operation %s: %s, %v", p.name, o.ID, outcome, err)
	w.judge.changes[o.ID] = outcome
}

// late is the longest time that an adjustment may be in force after its expiry, because sidecars estimate the
// server's clock.
const late = algorithms.Micros(30_000)

// adjusted checks that a sidecar uses the adjustments that it knows, and none that has expired.
func (j *judge) adjusted(p *process, r *limiter.Result) {
	a := r.Policy.Adjusted
	if p == nil {
		return
	}
	if a == nil {
		j.unadjusted(p, r)
		return
	}
	j.w.seen(sawAdjusted)
	if now := j.w.servers[0].now(); now > a.Expires+late && !j.clockStepped && p.pausedUntil == 0 {
		j.fail("%s uses an adjustment %d us after it expired", p.name, now-a.Expires)
	}
}

// unadjusted checks that p knows no adjustment of r, which has the configured numbers. It checks nothing after
// a clock has stepped: an adjustment that has expired is not used again if the server's clock steps back.
func (j *judge) unadjusted(p *process, r *limiter.Result) {
	if p.keeper == nil || r.Policy.Name != "tuned" || p.keeperInUse || j.clockStepped {
		return
	}
	for _, a := range p.keeper.Set().All() {
		if key, _ := p.limiter.Buckets(a); len(key) == 1 && bytes.Equal(key[0], r.Key) && a.Expires > p.keeper.Now() {
			j.fail("%s does not use the adjustment %s", p.name, a.ID)
		}
	}
}

const ledgerHeadKey, ledgerLogKey, ledgerValuesKey = "rl:{adjustments}head", "rl:{adjustments}log", "rl:{adjustments}values"

func (w *world) ledgerServer() *server {
	if w.watched != nil {
		return w.watched.master
	}
	if w.layout == nil {
		return w.servers[0]
	}
	return w.masterOf(ledgerHeadKey)
}

// converged checks that all sidecars know all changes, some time after the last fault.
func (j *judge) converged() {
	w := j.w
	if !w.hasOperators {
		return
	}
	var head adjust.Head
	if v := w.ledgerServer().get(ledgerHeadKey); v != nil {
		head.MAC = v.fields["mac"]
		head.Version, _ = strconv.ParseUint(v.fields["version"], 10, 64)
	}
	for _, p := range w.processes {
		if is := p.keeper.Set().Head; is != head && p.pausedUntil < w.lastPoll-int64(200*time.Millisecond) {
			j.fail("%s knows change %d of the adjustments, the newest is %d: %v", p.name, is.Version, head.Version, p.keeper.Status().Err)
		}
		j.knowsAll(p)
		for _, a := range p.keeper.Set().All() {
			if a.Expires < p.keeper.Now() {
				w.seen(sawExpired)
			}
		}
	}
}

// knowsAll checks that p has the adjustments that the server has, and no others. Either may lack adjustments
// that have expired or soon will.
func (j *judge) knowsAll(p *process) {
	set, fields, soon := p.keeper.Set(), j.w.ledgerServer().fields(ledgerValuesKey), p.keeper.Now()+late
	if p.keeper.Status().Err != nil || p.pausedUntil >= j.w.lastPoll-int64(200*time.Millisecond) {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(fields)) {
		a := new(adjust.Adjustment)
		if err := json.Unmarshal([]byte(fields[id]), a); err != nil {
			j.fail("an adjustment cannot be read: %v", err)
			return
		}
		if is := set.Find(id); a.Expires > soon && (is == nil || *is.Change.Rate != *a.Change.Rate || is.Expires != a.Expires) {
			j.fail("%s lacks the adjustment %s, which the server has", p.name, id)
		}
	}
	for _, a := range set.All() {
		if a.Expires > soon && fields[a.ID] == "" {
			j.fail("%s has the adjustment %s, which the server lacks", p.name, a.ID)
		}
	}
}

// audited checks the audit log at the end. Its chain must be complete. Each change whose answer confirms it
// must be in the log once, unless a server lost it. A change whose answer refuses it must not be in the log.
func (j *judge) audited() {
	w := j.w
	if !w.hasOperators {
		return
	}
	s := w.ledgerServer()
	count := map[string]int{}
	var entries []*adjust.Entry
	if v := s.get(ledgerLogKey); v != nil {
		for _, f := range v.log {
			e, err := adjust.ParseEntry([]byte(f.Body), f.MAC)
			if err != nil {
				j.fail("the audit log: %v", err)
				return
			}
			entries = append(entries, e)
			count[e.Operation]++
		}
	}
	if v := s.get(ledgerHeadKey); v != nil {
		number := func(name string) uint64 {
			n, _ := strconv.ParseUint(v.fields[name], 10, 64)
			return n
		}
		from := adjust.Checkpoint{Head: adjust.Head{Version: number("checkpoint"), MAC: v.fields["checkpoint_mac"]}, Signature: v.fields["signature"]}
		if err := chain.Broken(from, entries, adjust.Head{Version: number("version"), MAC: v.fields["mac"]}); err != nil {
			j.fail("the audit log: %v", err)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(j.changes)) {
		switch outcome, n := j.changes[id], count[id]; {
		case n > 1, outcome == "not made" && n > 0, outcome == "made" && n == 0 && j.losses+j.failovers == 0:
			j.fail("operation %s was answered as %s, the audit log has it %d times", id, outcome, n)
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

// ledgerHead does what ledger_head.lua does.
func (s *server) ledgerHead(key string) any {
	h, now := s.fields(key), s.now()
	or := func(text, other string) string {
		if text == "" {
			return other
		}
		return text
	}
	return []any{
		or(h["version"], "0"), h["mac"], or(h["checkpoint"], "0"), h["checkpoint_mac"], h["signature"],
		strconv.FormatInt(int64(now/algorithms.Second), 10), strconv.FormatInt(int64(now%algorithms.Second), 10),
	}
}

// ledgerAppend does what ledger_append.lua does.
func (s *server) ledgerAppend(keys []any, args []string) any {
	head, values, log := keys[0].(string), keys[1].(string), keys[2].(string)
	h := s.fields(head)
	if version := h["version"]; version != args[0] && (version != "" || args[0] != "0") || h["mac"] != args[1] {
		s.w.seen(sawRaced)
		return int64(0)
	}
	var entries []outside.Entry
	if v := s.get(log); v != nil {
		entries = v.log
	}
	s.put(log, &value{log: append(slices.Clone(entries), outside.Entry{ID: args[2] + "-0", Body: args[4], MAC: args[3]})})
	s.hset(head, "version", args[2], "mac", args[3])
	s.hset(values, args[5], args[6])
	for _, id := range args[10:] {
		s.hset(values, id, "")
	}
	return int64(1) // a run is too short for entries to be trimmed
}

// ledgerRestore does what ledger_restore.lua does.
func (s *server) ledgerRestore(keys []any, args []string) any {
	head, values := keys[0].(string), keys[1].(string)
	if s.get(head) != nil {
		return int64(0)
	}
	s.w.seen(sawRestored)
	s.hset(head, "version", args[0], "mac", args[1], "checkpoint", args[2], "checkpoint_mac", args[3], "signature", args[4])
	for i := 5; i < len(args); i += 2 {
		s.hset(values, args[i], args[i+1])
	}
	return int64(1)
}

func (s *server) hscan(key string) []any {
	pairs := []any{}
	fields := s.fields(key)
	for _, id := range slices.Sorted(maps.Keys(fields)) {
		pairs = append(pairs, id, fields[id])
	}
	return []any{"0", pairs}
}

func (s *server) xrange(key, from string, n int64) []outside.Entry {
	v := s.get(key)
	if v == nil {
		return nil
	}
	at := func(id string) uint64 {
		number, _ := strconv.ParseUint(strings.TrimSuffix(id, "-0"), 10, 64)
		return number
	}
	i := slices.IndexFunc(v.log, func(e outside.Entry) bool { return at(e.ID) >= at(from) })
	if i < 0 {
		return nil
	}
	return v.log[i:min(len(v.log), i+int(n))]
}
