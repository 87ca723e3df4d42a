package adjust

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// pollEvery is the interval between two readings of the ledger, plus or minus a random fifth, so that not
	// all sidecars read at the same time.
	pollEvery = 500 * time.Millisecond
	// attempts bounds how often a change is tried again because another sidecar made a change first.
	attempts = 50
)

// Ledger keeps a Set that several processes share. Its head is the text of a Head, its values are the adjustments by
// ID, and its changes are entries, each after a line with the text of its Head.
type Ledger interface {
	// Read returns the head, and the time of the ledger's clock. If the head is not known, it returns the last
	// changes, the newest first. They end with that of known, if the ledger has it; values is then nil. Otherwise
	// values has all values.
	Read(ctx context.Context, known string) (head string, now algorithms.Micros, changes []string, values map[string]string, err error)
	// Write replaces the head from by the head to, appends changes, the oldest first, and sets values; the value ""
	// deletes an ID. It does all of it or, if from is not the head, nothing, and reports which. After an error the
	// outcome is unknown.
	Write(ctx context.Context, from, to string, changes []string, values map[string]string) (done bool, err error)
}

// Config configures a Keeper.
type Config struct {
	// Ledger has the adjustments. With nil they are in this process only, and end with it.
	Ledger Ledger
	// Clock returns the time of this machine. Pause waits for a random time up to longest. nil means those of the
	// system. A simulation supplies its own.
	Clock func() time.Time
	Pause func(longest time.Duration)
	// Changed is called with each new Set, one call at a time. It may call only Set and Now.
	Changed func(*Set)
}

// Keeper keeps the adjustments. With a Ledger, all sidecars share them, and Run must be running. While the Ledger is
// unreachable, the known adjustments stay in force until they expire.
//
// A failover can promote a Redis that lacks the newest changes, or Redis can lose everything. A Keeper that knows more
// then writes the rest again, but only if Redis is empty or its head is a change that the Keeper knows, so that nobody
// is overruled. Otherwise an operator has made another change since: the Keeper follows Redis, and Status lists the
// adjustments that are lost.
type Keeper struct {
	config Config

	set   atomic.Pointer[Set]
	clock atomic.Pointer[reading]

	mu sync.Mutex // held while the set is replaced, and during calls of the Ledger

	statusMu sync.Mutex // guards the fields after it
	status   Status     // without Lost
	lost     map[string]*Adjustment
}

// reading is the time of the ledger's clock at a moment of this machine's clock.
type reading struct {
	shown algorithms.Micros
	at    time.Time
}

// NewKeeper returns a Keeper without adjustments. Poll reads those of the Ledger.
func NewKeeper(c Config) *Keeper {
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Pause == nil {
		c.Pause = func(longest time.Duration) { time.Sleep(rand.N(longest)) } //nolint:gosec // spreads the attempts
	}
	k := &Keeper{config: c, status: Status{Place: "Redis", Persistent: true}, lost: map[string]*Adjustment{}}
	if c.Ledger == nil {
		k.status = Status{Place: "this process, until it ends"}
	}
	k.set.Store(NewSet(Head{}, nil))
	return k
}

// Set returns the newest Set that this process knows. It is never nil.
func (k *Keeper) Set() *Set { return k.set.Load() }

func (k *Keeper) use(set *Set) {
	k.set.Store(set)
	if k.config.Changed != nil {
		k.config.Changed(set)
	}
}

// Now returns the last time that was read from the ledger's clock, plus the time since. Before the first reading it
// returns the time of this machine.
func (k *Keeper) Now() algorithms.Micros {
	now := k.config.Clock()
	if r := k.clock.Load(); r != nil {
		return r.shown + algorithms.Micros(now.Sub(r.at)/time.Microsecond)
	}
	return algorithms.Micros(now.UnixMicro())
}

// Status describes whether a Keeper works.
type Status struct {
	// Place describes in words where adjustments are kept. Persistent means that they survive a restart.
	Place      string
	Persistent bool
	// Seen is the time of the last answer of the Ledger, or zero before the first answer.
	Seen time.Time
	// Err is the reason for which the Ledger cannot be reached, or for which adjustments are off, or nil.
	Err error
	// Errors is the number of failed attempts to read the Ledger.
	Errors uint64
	// Rewritten counts changes that the Ledger had lost, and that this process wrote again. Lost are unexpired
	// adjustments that the Ledger has lost, and deleted ones that are in force there again. An operator must set
	// or delete them again.
	Rewritten uint64
	Lost      []*Adjustment
}

// Status returns the Status of k.
func (k *Keeper) Status() Status {
	now := k.Now()
	k.statusMu.Lock()
	defer k.statusMu.Unlock()
	maps.DeleteFunc(k.lost, func(_ string, a *Adjustment) bool { return a.Expires <= now })
	s := k.status
	if s.Lost = sorted(k.lost); k.config.Ledger == nil {
		s.Seen = k.config.Clock()
	}
	return s
}

// report calls change with the status.
func (k *Keeper) report(change func(*Status)) {
	k.statusMu.Lock()
	defer k.statusMu.Unlock()
	change(&k.status)
}

func (k *Keeper) answered() { k.report(func(s *Status) { s.Seen, s.Err = k.config.Clock(), nil }) }

// Run polls for changes until ctx ends, and calls polled after each poll.
func (k *Keeper) Run(ctx context.Context, polled func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pollEvery*4/5 + rand.N(pollEvery*2/5)): //nolint:gosec // spreads the polls
		}
		_ = k.Poll(ctx) // the error is in Status
		polled()
	}
}

// Poll reads changes once.
func (k *Keeper) Poll(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.sync(ctx)
	switch {
	case err == nil:
		k.answered()
	case ctx.Err() == nil:
		k.report(func(s *Status) { s.Errors, s.Err = s.Errors+1, fmt.Errorf("adjustments cannot be read: %w", err) })
	}
	return err
}

// sync reads the changes in the Ledger into k's Set, or writes those that the Ledger has lost. The caller holds k.mu.
func (k *Keeper) sync(ctx context.Context) error {
	if k.config.Ledger == nil {
		return nil
	}
	set := k.Set()
	head, changes, values, err := k.read(ctx, set.Head.String())
	if err != nil || head == set.Head.String() {
		return err
	}
	missing, known := set.since(head)
	restored := map[string]*Adjustment{}
	switch {
	case head == "":
		missing, known, restored = set.changes, true, set.Live(k.Now()).byID
	case known:
		for _, e := range missing {
			restored[e.Target] = set.Find(e.Target)
		}
	}
	if known { // several Keepers may write at the same time, but only one succeeds
		done, err := k.write(ctx, head, set.Head, missing, restored)
		if done {
			k.report(func(s *Status) { s.Rewritten += uint64(len(missing)) })
		}
		return err
	}
	if values == nil {
		if entries, ok := parseChanges(changes[:len(changes)-1]); ok {
			k.settle(entries)
			k.use(set.With(entries...))
			return nil
		}
		if head, changes, values, err = k.read(ctx, ""); err != nil {
			return err
		}
	}
	return k.reload(head, changes, values)
}

// read reads the Ledger and its clock. The server read its clock at some time between the request and the answer; read
// assumes the middle.
func (k *Keeper) read(ctx context.Context, known string) (head string, changes []string, values map[string]string, err error) {
	sent := k.config.Clock()
	head, now, changes, values, err := k.config.Ledger.Read(ctx, known)
	if err == nil {
		k.clock.Store(&reading{now, sent.Add(k.config.Clock().Sub(sent) / 2)})
	}
	return head, changes, values, err
}

// write writes changes, and the adjustments that they concern; nil deletes one.
func (k *Keeper) write(ctx context.Context, from string, to Head, entries []*Entry, adjustments map[string]*Adjustment) (done bool, err error) {
	if k.config.Ledger == nil {
		return true, nil
	}
	encode := func(v any) string {
		text, failed := json.Marshal(v)
		err = errors.Join(err, failed)
		return string(text)
	}
	changes, values := make([]string, len(entries)), make(map[string]string, len(adjustments))
	for i, e := range entries {
		changes[i] = e.Head.String() + "\n" + encode(e)
	}
	for id, a := range adjustments {
		if values[id] = ""; a != nil {
			values[id] = encode(a)
		}
	}
	if err != nil {
		return false, err
	}
	return k.config.Ledger.Write(ctx, from, to.String(), changes, values)
}

// reload puts all values of the Ledger into use. It leaves out values and changes that it cannot read. The Ledger is
// ahead of k, or has another change in the place of the newest one that k knows, and then k lists what is lost.
func (k *Keeper) reload(head string, changes []string, values map[string]string) error {
	h, err := parseHead(head)
	if err != nil {
		return err
	}
	var all []*Adjustment
	for _, text := range values {
		a := new(Adjustment)
		if err := json.Unmarshal([]byte(text), a); err != nil {
			k.report(func(s *Status) { s.Errors++ })
			continue
		}
		all = append(all, a)
	}
	was, next := k.Set(), NewSet(h, all)
	next.changes, _ = parseChanges(changes)
	if known := was.Head.Version; known > 0 {
		inPlace := slices.ContainsFunc(next.changes, func(e *Entry) bool { return e.Version == known && e.Head != was.Head })
		if h.Version <= known || inPlace {
			k.recordLost(was, next)
		}
	}
	k.use(next)
	return nil
}

// recordLost lists the adjustments that are not as k knew them, unless an operator has changed them since.
func (k *Keeper) recordLost(was, next *Set) {
	var made []*Entry
	for _, e := range next.changes {
		if _, known := was.since(e.Head.String()); known {
			continue
		}
		if own := was.newest(e.Target); own == nil || !e.At.Before(own.At) {
			made = append(made, e)
		}
	}
	k.statusMu.Lock()
	for _, a := range Differences(was, next) {
		k.lost[a.ID] = a
	}
	k.statusMu.Unlock()
	k.settle(made)
}

// settle ends the loss of the adjustments that operators have changed.
func (k *Keeper) settle(made []*Entry) {
	k.statusMu.Lock()
	defer k.statusMu.Unlock()
	for _, e := range made {
		delete(k.lost, e.Target)
	}
}

// parseChanges returns the oldest of changes first. ok is false if it has left out some that it cannot read.
func parseChanges(changes []string) (entries []*Entry, ok bool) {
	for _, change := range slices.Backward(changes) {
		_, text, _ := strings.Cut(change, "\n")
		e := new(Entry)
		if json.Unmarshal([]byte(text), e) == nil {
			entries = append(entries, e)
		}
	}
	return entries, len(entries) == len(changes)
}

// Operation is a change for a Keeper to make.
type Operation struct {
	// Entry has the ID, Author, Reason and Target. After is the new adjustment; nil deletes the present one. The Keeper
	// sets the rest, and After.Created to the time of its clock. If For is more than 0, it sets After.Expires to that
	// time plus For.
	Entry
	For Span
	// Expect is the version that the operator knows. Change fails with ErrConflict if the present one differs. nil
	// accepts any version.
	Expect *uint64
}

// entry returns the Entry of o as a change of set at time now. The error is a *Mistake, ErrConflict or ErrNotFound.
func (o *Operation) entry(set *Set, now algorithms.Micros) (*Entry, error) {
	if err := checkOrigin(o.Author, o.Reason); err != nil {
		return nil, &Mistake{err.Error()}
	}
	e, live := o.Entry, set.Live(now)
	e.Version, e.At, e.Before = set.Head.Version+1, moment(now), live.Find(o.Target)
	switch {
	case o.Expect != nil && *o.Expect != set.Head.Version:
		return nil, ErrConflict
	case o.After == nil && e.Before == nil:
		return nil, ErrNotFound
	case o.After != nil:
		after := *o.After
		if after.Created = now; o.For > 0 {
			after.Expires = now + algorithms.Micros(o.For)
		}
		if err := after.Check(); err != nil {
			return nil, &Mistake{err.Error()}
		}
		if e.Before == nil && live.Len() >= MaxAdjustments {
			return nil, &Mistake{fmt.Sprintf("there are %d adjustments, which is the maximum; delete some, or change the configuration", MaxAdjustments)}
		}
		e.After = &after
	}
	return &e, nil
}

// Change makes the change o, and returns its Entry. The error is a *Mistake, ErrConflict, ErrNotFound, or an error of the
// Ledger.
func (k *Keeper) Change(ctx context.Context, o Operation) (*Entry, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for attempt := range attempts {
		if attempt > 0 { // sidecars that compete must not do so again at the same time
			k.config.Pause(time.Duration(attempt) * time.Millisecond)
		}
		if err := k.sync(ctx); err != nil {
			return nil, fmt.Errorf("nothing was changed: %w", err)
		}
		set := k.Set()
		e, err := o.entry(set, k.Now())
		if err != nil {
			return nil, err
		}
		next := set.With(e)
		changed := map[string]*Adjustment{}
		for _, a := range Differences(set, next) {
			changed[a.ID] = next.Find(a.ID)
		}
		switch done, err := k.write(ctx, set.Head.String(), e.Head, []*Entry{e}, changed); {
		case err != nil:
			return nil, fmt.Errorf("the outcome of the change is unknown; if it was made, the audit lists it as operation %s: %w", o.ID, err)
		case done:
			k.answered()
			k.settle([]*Entry{e})
			k.use(next)
			return e, nil
		}
	}
	return nil, errors.New("nothing was changed, because other sidecars changed adjustments at the same time; try again")
}
