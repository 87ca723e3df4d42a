// Package shared keeps adjustments in Redis, where all sidecars read them. Each sidecar reads the version twice a
// second, and fetches the changes. While Redis is unreachable, the known adjustments stay in force until they expire.
package shared

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/outside"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// pollEvery is the interval between two readings of the version, plus or minus a random fifth, so that not
	// all sidecars read at the same time.
	pollEvery = 500 * time.Millisecond
	// attempts bounds how often a change is tried again because another sidecar made a change first.
	attempts = 50
	// page is the number of entries of the audit that are fetched at once.
	page = 250
)

// Config configures a Keeper.
type Config struct {
	Ledger *redis.Ledger
	Chain  *adjust.Chain
	// Dir is the folder for the last known adjustments, which are used at a start without Redis. "" means none.
	Dir string
	// Place describes this Redis in words.
	Place string
	// Outside supplies the clock of this machine, and random numbers for pauses; nil means those of the system. Pause
	// waits; it is required if Outside is set, and has no effect otherwise. A simulation supplies both.
	Outside *outside.World
	Pause   func(d time.Duration)
}

// Keeper is an adjust.Keeper in Redis. Its Run must be running.
type Keeper struct {
	config Config
	// machine is the clock of this machine, below returns a random number from 0 to n-1, and pause waits.
	machine outside.Clock
	below   func(n int) int
	pause   func(d time.Duration)

	set       atomic.Pointer[adjust.Set]
	clock     atomic.Pointer[reading]
	errors    atomic.Uint64
	rewritten atomic.Uint64 // number of entries that failovers had lost and that this Keeper appended again

	mu         sync.Mutex        // guards the fields after it up to statusMu; held during calls of Redis
	checkpoint adjust.Checkpoint // the checkpoint in the ledger
	watch      func(*adjust.Set)
	recent     recent

	statusMu sync.Mutex // guards the fields after it
	seen     time.Time
	err      error                // the error of the last poll or of the folder, or nil
	lost     []*adjust.Adjustment // adjustments that a failover has lost
}

// reading is the time of the server's clock at a moment of this process's monotonic clock.
type reading struct {
	shown algorithms.Micros
	at    time.Time
}

// New returns a Keeper with the adjustments in its folder. The error concerns the folder.
func New(c Config) (*Keeper, error) {
	k := &Keeper{config: c, machine: outside.System, below: rand.IntN, pause: time.Sleep}
	if c.Outside != nil {
		k.machine, k.below, k.pause = c.Outside.Clock, c.Outside.Below, c.Pause
	}
	set := adjust.NewSet(adjust.Head{}, nil)
	if c.Dir != "" {
		var err error
		if set, err = adjust.ReadSet(c.Dir); err != nil {
			return nil, err
		}
	}
	k.set.Store(set)
	k.recent.base = set.Head
	return k, nil
}

// Watch calls observe with the present Set, and then with each new one. It replaces the function of an earlier
// call. k.mu is held during the call, so observe must not call methods of k that change or poll adjustments.
func (k *Keeper) Watch(observe func(*adjust.Set)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watch = observe
	observe(k.Set())
}

func (k *Keeper) Set() *adjust.Set { return k.set.Load() }

// Now returns the last time that was read from the server's clock, plus the time since. Before the first reading
// it returns the time of this machine.
func (k *Keeper) Now() algorithms.Micros {
	if r := k.clock.Load(); r != nil {
		return r.shown + algorithms.Micros(k.since(r.at)/time.Microsecond)
	}
	return algorithms.Micros(k.machine.Now().UnixMicro())
}

func (k *Keeper) since(t time.Time) time.Duration { return k.machine.Now().Sub(t) }

func (k *Keeper) Status() adjust.Status {
	k.statusMu.Lock()
	defer k.statusMu.Unlock()
	return adjust.Status{
		Place: k.config.Place, Seen: k.seen, Persistent: true, Err: k.err, Errors: k.errors.Load(),
		Rewritten: k.rewritten.Load(), Lost: k.stillLost(),
	}
}

// Run polls for changes until ctx ends, and calls polled after each poll.
func (k *Keeper) Run(ctx context.Context, polled func()) {
	for {
		pause := pollEvery*4/5 + rand.N(pollEvery*2/5) //nolint:gosec // spreads the polls
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		_ = k.Poll(ctx) // the error is in Status
		polled()
	}
}

// Poll reads changes once.
func (k *Keeper) Poll(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.sync(ctx)
	if err != nil && ctx.Err() == nil {
		k.errors.Add(1)
		k.report(false, fmt.Errorf("adjustments cannot be read: %w", err))
	}
	return err
}

func (k *Keeper) report(answered bool, err error) {
	k.statusMu.Lock()
	defer k.statusMu.Unlock()
	if k.err = err; answered {
		k.seen = k.machine.Now()
	}
}

// sync reads the changes in the ledger into k's Set, and returns the ledger's head. The caller holds k.mu.
func (k *Keeper) sync(ctx context.Context) (redis.LedgerHead, error) {
	head, err := k.readHead(ctx)
	if err != nil {
		return head, err
	}
	k.checkpoint = adjust.Checkpoint{Head: adjust.Head{Version: head.Checkpoint, MAC: head.CheckpointMAC}, Signature: head.Signature}
	set := k.Set()
	at := adjust.Head{Version: head.Version, MAC: head.MAC}
	switch {
	case at == set.Head:
		k.report(true, nil)
		return head, nil
	case at.Version == 0:
		return head, k.restore(ctx, set)
	}
	if older, err := k.rewrite(ctx, head); older || err != nil {
		return head, err
	}
	next, err := k.follow(ctx, set, at)
	if err == nil && next == nil {
		next, err = k.reload(ctx, at)
	}
	if err != nil {
		return head, err
	}
	k.report(true, k.use(next))
	return head, nil
}

// reload returns the Set of the ledger's values. If the ledger has forked, reload records the lost adjustments. The
// caller holds k.mu.
func (k *Keeper) reload(ctx context.Context, at adjust.Head) (*adjust.Set, error) {
	forked, err := k.hasForked(ctx, at)
	if err != nil {
		return nil, err
	}
	next, err := k.load(ctx, at)
	if err != nil {
		return nil, err
	}
	if forked {
		k.recordLost(next)
	}
	k.recent = recent{base: next.Head}
	return next, nil
}

// readHead reads the head of the ledger and the time of its server. The server read its clock at some time between the
// request and the answer; readHead assumes the middle.
func (k *Keeper) readHead(ctx context.Context) (redis.LedgerHead, error) {
	sent := k.machine.Now()
	head, err := k.config.Ledger.Head(ctx)
	if err == nil {
		k.clock.Store(&reading{head.Now, sent.Add(k.since(sent) / 2)})
	}
	return head, err
}

// use puts set into use, and writes it to the folder. An error concerns the folder; set is in use nevertheless.
func (k *Keeper) use(set *adjust.Set) error {
	k.set.Store(set)
	if k.watch != nil {
		k.watch(set)
	}
	if k.config.Dir == "" {
		return nil
	}
	if err := adjust.WriteSet(k.config.Dir, set.Without(set.Expired(k.Now(), set.Len()))); err != nil {
		return fmt.Errorf("the last known adjustments cannot be kept: %w", err)
	}
	return nil
}

// follow returns set with the entries up to head. It returns nil if the entries do not follow set, are too many, or one
// of them has no valid adjustment.
func (k *Keeper) follow(ctx context.Context, set *adjust.Set, head adjust.Head) (*adjust.Set, error) {
	if set.Head.Version == 0 || head.Version <= set.Head.Version || head.Version-set.Head.Version >= page {
		return nil, nil
	}
	found, err := k.config.Ledger.From(ctx, set.Head.Version, page)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 || (adjust.Head{Version: found[0].Version, MAC: found[0].MAC}) != set.Head {
		return nil, nil
	}
	entries, err := parse(found[1:])
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	for i, e := range entries {
		sound := e.After == nil || e.After.ID == e.Target && e.After.Check() == nil
		if e.Version != set.Head.Version+uint64(i)+1 || !sound {
			return nil, nil
		}
	}
	next := set.With(entries...)
	if next.Head.Version < head.Version {
		return nil, nil
	}
	k.recordEntries(entries...)
	return next.Without(next.Expired(k.Now(), next.Len())), nil
}

// load reads all values. If changes are made meanwhile, some of the values may already include them; the entries of
// these changes then give each changed adjustment its newest value.
func (k *Keeper) load(ctx context.Context, head adjust.Head) (*adjust.Set, error) {
	for range attempts {
		set, err := k.values(ctx, head)
		if err != nil {
			return nil, err
		}
		after, err := k.readHead(ctx)
		if err != nil {
			return nil, err
		}
		if now := (adjust.Head{Version: after.Version, MAC: after.MAC}); now != head {
			head = now
			if set, err = k.follow(ctx, set, now); err != nil {
				return nil, err
			}
		}
		if set != nil {
			return set.Without(set.Expired(k.Now(), set.Len())), nil
		}
	}
	return nil, errors.New("the adjustments change faster than they can be read")
}

// values reads all values. If some are not valid adjustments, or there are more than MaxAdjustments, it counts an error
// and leaves them out. The values are those of head, unless the ledger changes meanwhile.
func (k *Keeper) values(ctx context.Context, head adjust.Head) (*adjust.Set, error) {
	var all []*adjust.Adjustment
	bad := false
	oldest, err := k.config.Ledger.Values(ctx, func(id, value string) {
		a := new(adjust.Adjustment)
		if err := json.Unmarshal([]byte(value), a); err != nil || a.ID != id || a.Check() != nil || len(all) >= adjust.MaxAdjustments {
			bad = true
			return
		}
		all = append(all, a)
	})
	if bad {
		k.errors.Add(1)
	}
	// Redis has lost data meanwhile. load, which compares the head afterwards, does not notice this if another Keeper has
	// restored the head by then.
	if err == nil && oldest < head.Version {
		err = errors.New("redis has lost adjustments while they were read")
	}
	return adjust.NewSet(head, all), err
}

// restore writes the known adjustments to a server that has lost its data, so that blocked keys stay blocked. The caller
// holds k.mu. The entries of the audit are lost, except in logs; the chain continues from a checkpoint.
func (k *Keeper) restore(ctx context.Context, set *adjust.Set) error {
	set = set.Without(set.Expired(k.Now(), set.Len()))
	if set.Len() == 0 {
		k.recent = recent{}
		k.report(true, k.use(adjust.NewSet(adjust.Head{}, nil)))
		return nil
	}
	values := make(map[string]string, set.Len())
	for _, a := range set.All() {
		text, err := json.Marshal(a)
		if err != nil {
			return err
		}
		values[a.ID] = string(text)
	}
	checkpoint := k.config.Chain.Checkpoint(set.Head)
	_, err := k.config.Ledger.Restore(ctx, redis.LedgerHead{
		Version: set.Head.Version, MAC: set.Head.MAC,
		Checkpoint: checkpoint.Version, CheckpointMAC: checkpoint.MAC, Signature: checkpoint.Signature,
	}, values)
	if err == nil {
		k.report(true, nil)
	}
	return err
}

func (k *Keeper) Change(ctx context.Context, o adjust.Operation) (*adjust.Entry, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for attempt := range attempts {
		if attempt > 0 { // a random pause, so that sidecars that compete do not do so again at the same time
			k.pause(time.Duration(k.below(attempt*1000)) * time.Microsecond)
		}
		head, err := k.sync(ctx)
		if err != nil {
			return nil, fmt.Errorf("nothing was changed: %w", err)
		}
		set := k.Set()
		if (adjust.Head{Version: head.Version, MAC: head.MAC}) != set.Head { // the ledger was restored, or another sidecar made a change
			continue
		}
		e, err := o.Entry(k.config.Chain, set, k.Now())
		if err != nil {
			return nil, err
		}
		change, err := k.ledgerChange(ctx, head, set, e)
		if err != nil {
			return nil, fmt.Errorf("nothing was changed: %w", err)
		}
		switch done, err := k.config.Ledger.Append(ctx, change); {
		case err != nil:
			return nil, fmt.Errorf("the outcome of the change is unknown; if it was made, the audit lists it as operation %s: %w", o.ID, err)
		case done:
			k.recordEntries(e)
			k.report(true, k.use(set.Without(change.Expired).With(e)))
			return e, nil
		}
	}
	return nil, errors.New("nothing was changed, because other sidecars changed adjustments at the same time; try again")
}

// ledgerChange converts e to the form of the ledger. It adds what the ledger removes with this change: some expired
// adjustments, and old entries of the audit when it is time to trim them.
func (k *Keeper) ledgerChange(ctx context.Context, head redis.LedgerHead, set *adjust.Set, e *adjust.Entry) (*redis.LedgerChange, error) {
	const expiredAtOnce = 500
	c := &redis.LedgerChange{
		Head: head, Entry: redis.LedgerEntry{Version: e.Version, Body: string(e.Body), MAC: e.MAC}, ID: e.Target,
	}
	for _, id := range set.Expired(e.At, expiredAtOnce) {
		if id != e.Target {
			c.Expired = append(c.Expired, id)
		}
	}
	if e.After != nil {
		text, err := json.Marshal(e.After)
		if err != nil {
			return nil, err
		}
		c.Value = string(text)
	}
	if trim := adjust.TrimTo(head.Checkpoint, e.Version); trim > 0 {
		found, err := k.config.Ledger.From(ctx, trim, 1)
		if err != nil {
			return nil, err
		}
		if len(found) == 1 && found[0].Version == trim {
			checkpoint := k.config.Chain.Checkpoint(adjust.Head{Version: trim, MAC: found[0].MAC})
			c.Trim, c.Checkpoint, c.CheckpointMAC, c.Signature = true, trim, checkpoint.MAC, checkpoint.Signature
		}
	}
	return c, nil
}

func parse(found []redis.LedgerEntry) ([]*adjust.Entry, error) {
	entries := make([]*adjust.Entry, len(found))
	for i, f := range found {
		e, err := adjust.ParseEntry([]byte(f.Body), f.MAC)
		if err != nil {
			return nil, err
		}
		if e.Version != f.Version {
			return nil, fmt.Errorf("entry %d of the audit has the number %d", f.Version, e.Version)
		}
		entries[i] = e
	}
	return entries, nil
}

func (k *Keeper) Audit(ctx context.Context, before uint64, n int) ([]*adjust.Entry, error) {
	found, err := k.config.Ledger.Before(ctx, before, n)
	if err != nil {
		return nil, err
	}
	return parse(found)
}

func (k *Keeper) Verify(ctx context.Context) (int, error) {
	head, err := k.config.Ledger.Head(ctx)
	if err != nil {
		return 0, err
	}
	from := adjust.Checkpoint{Head: adjust.Head{Version: head.Checkpoint, MAC: head.CheckpointMAC}, Signature: head.Signature}
	var entries []*adjust.Entry
	for at := from.Version + 1; at <= head.Version; {
		found, err := k.config.Ledger.From(ctx, at, page)
		if err != nil {
			return 0, err
		}
		whole := len(found) == page
		for len(found) > 0 && found[len(found)-1].Version > head.Version { // an entry after head, which was made meanwhile
			found, whole = found[:len(found)-1], false
		}
		part, err := parse(found)
		if err != nil {
			return 0, &adjust.BrokenChain{Problem: err.Error()}
		}
		if entries = append(entries, part...); !whole {
			break
		}
		at = part[len(part)-1].Version + 1
	}
	return len(entries), k.config.Chain.Broken(from, entries, adjust.Head{Version: head.Version, MAC: head.MAC})
}
