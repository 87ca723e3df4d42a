package adjust

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// ledger is a Ledger in memory. internal/redis tests that the Ledger in Redis does the same.
type ledger struct {
	now func() time.Time

	mu      sync.Mutex
	content ledgerContent
	failure error
	before  func() // called before a Write, or nil
}

type ledgerContent struct {
	head    string
	changes []string
	values  map[string]string
}

func (l *ledger) Read(_ context.Context, known string) (head string, now algorithms.Micros, changes []string, values map[string]string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.content
	now = algorithms.Micros(l.now().UnixMicro())
	if l.failure != nil || c.head == known {
		return c.head, now, nil, nil, l.failure
	}
	for i, change := range c.changes {
		if known != "" && i > 0 && strings.HasPrefix(change, known+"\n") {
			return c.head, now, slices.Clone(c.changes[:i+1]), nil, nil
		}
	}
	return c.head, now, slices.Clone(c.changes), maps.Clone(c.values), nil
}

func (l *ledger) Write(_ context.Context, from, to string, changes []string, values map[string]string) (done bool, err error) {
	if before := l.before; before != nil {
		l.before = nil
		before()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil || l.content.head != from {
		return false, l.failure
	}
	next := l.content.clone()
	next.head = to
	for _, change := range changes {
		next.changes = append([]string{change}, next.changes...)
	}
	maps.Copy(next.values, values)
	maps.DeleteFunc(next.values, func(_, value string) bool { return value == "" })
	l.content = next
	return true, nil
}

func (c ledgerContent) clone() ledgerContent {
	values := map[string]string{}
	maps.Copy(values, c.values)
	return ledgerContent{c.head, slices.Clone(c.changes), values}
}

// operators has a ledger, and a clock of all machines.
type operators struct {
	*testing.T
	clock  *clock
	ledger *ledger
	made   int
}

func newOperators(t *testing.T) *operators {
	t.Helper()
	c := newClock()
	return &operators{t, c, &ledger{now: c.Now}, 0}
}

func (o *operators) keeper() *Keeper {
	return NewKeeper(Config{Ledger: o.ledger, Clock: o.clock.Now, Pause: func(time.Duration) {}})
}

func (o *operators) operation(key string) Operation {
	o.made++
	a := &Adjustment{Target: Target{Domain: "d", Limit: "calls", Key: []string{key}}, Change: Change{Block: true}, Author: "op", Reason: "test"}
	a.ID = a.Target.ID()
	return Operation{Entry: Entry{Head: Head{ID: fmt.Sprint("op", o.made)}, Author: "op", Reason: "test", Target: a.ID, After: a}, For: Span(60 * minute)}
}

// block blocks key for an hour, and end ends this.
func (o *operators) block(k *Keeper, key string) *Entry { return o.change(k, o.operation(key)) }

func (o *operators) end(k *Keeper, key string) *Entry {
	op := o.operation(key)
	op.After = nil
	return o.change(k, op)
}

func (o *operators) change(k *Keeper, op Operation) *Entry {
	o.Helper()
	o.clock.now = o.clock.now.Add(time.Second)
	e, err := k.Change(o.Context(), op)
	if err != nil {
		o.Fatal(err)
	}
	return e
}

func (o *operators) poll(all ...*Keeper) {
	o.Helper()
	for _, k := range all {
		if err := k.Poll(o.Context()); err != nil {
			o.Error(err)
		}
	}
}

// want checks which keys are blocked, and which adjustments are reported as lost.
func (o *operators) want(name string, k *Keeper, blocked, lost string) {
	o.Helper()
	keys := func(all []*Adjustment) string {
		var list []string
		for _, a := range all {
			list = append(list, a.Target.Key[0])
		}
		return strings.Join(list, " ")
	}
	if is, missing := keys(k.Set().Live(k.Now()).All()), keys(k.Status().Lost); is != blocked || missing != lost {
		o.Errorf("%s: %q are blocked, %q are lost; want %q and %q", name, is, missing, blocked, lost)
	}
}

// A change through a sidecar that does not know the newest one is made after it. If the operator expects a version, it is
// refused.
func TestSimultaneousChangesAreAllMade(t *testing.T) {
	o := newOperators(t)
	a, b := o.keeper(), o.keeper()
	o.ledger.before = func() { o.block(b, "eve") }
	if e := o.block(a, "bob"); e.Version != 2 {
		t.Errorf("version %d; want 2", e.Version)
	}
	o.poll(b)
	o.want("a", a, "bob eve", "")
	o.want("b", b, "bob eve", "")
	op, expect := o.operation("zoe"), uint64(2)
	op.Expect = &expect
	o.ledger.before = func() { o.block(b, "ann") }
	if _, err := a.Change(t.Context(), op); !errors.Is(err, ErrConflict) {
		t.Errorf("a change that expects an old version: %v; want ErrConflict", err)
	}
	var compete func()
	compete = func() { o.block(b, "eve"); o.ledger.before = compete }
	o.ledger.before = compete
	if _, err := a.Change(t.Context(), o.operation("zoe")); err == nil || !strings.Contains(err.Error(), "other sidecars changed adjustments at the same time") {
		t.Errorf("if another sidecar is always faster: %v; want an error", err)
	}
}

// A failover loses the newest changes, of which two sidecars know different numbers. All must be written again, once, and
// whichever sidecar polls first.
func TestChangesThatRedisLostAreWrittenAgain(t *testing.T) {
	for _, first := range []string{"the one that knows more", "the one that knows less"} {
		o := newOperators(t)
		a, b := o.keeper(), o.keeper()
		o.block(a, "ann")
		o.block(a, "tim")
		o.poll(b)
		old := o.ledger.content.clone()
		o.block(a, "bob")
		o.end(a, "tim")
		o.poll(b)
		o.block(a, "eve")
		o.ledger.content = old
		if first == "the one that knows more" {
			o.poll(a, b)
		} else {
			o.poll(b, a, b)
		}
		fresh := o.keeper()
		o.poll(fresh)
		for name, k := range map[string]*Keeper{"a": a, "b": b, "a fresh one": fresh} {
			o.want(first+" first: "+name, k, "ann bob eve", "")
		}
		if n := a.Status().Rewritten + b.Status().Rewritten; n != 3 || len(fresh.Set().Changes(9)) != 5 {
			t.Errorf("%s first: %d changes were written again, there are %d; want 3 of 5", first, n, len(fresh.Set().Changes(9)))
		}
	}
}

// Redis loses everything. The unexpired adjustments and the changes are written again, with their version.
func TestAnEmptyRedisGetsTheAdjustments(t *testing.T) {
	o := newOperators(t)
	a := o.keeper()
	o.block(a, "ann")
	o.clock.now = o.clock.now.Add(30 * time.Minute)
	o.block(a, "bob")
	o.clock.now = o.clock.now.Add(31 * time.Minute) // ann's block has expired
	o.ledger.content = ledgerContent{}
	o.poll(a)
	fresh := o.keeper()
	o.poll(fresh)
	o.want("a fresh one", fresh, "bob", "")
	if fresh.Set().Head != a.Set().Head || len(o.ledger.content.values) != 1 || len(fresh.Set().Changes(9)) != 2 {
		t.Errorf("head %v, values %v; want %v, and bob", fresh.Set().Head, o.ledger.content.values, a.Set().Head)
	}
}

// After a loss, an operator has made a change through a sidecar that does not know the lost ones. It stays, and the lost
// adjustments are listed until an operator has set or deleted each of them again.
func TestLostChangesThatWouldOverruleAnOperatorAreListed(t *testing.T) {
	for name, all := range map[string]bool{"the newest changes": false, "all": true} {
		o := newOperators(t)
		a := o.keeper()
		o.block(a, "ann")
		old := o.ledger.content.clone()
		o.block(a, "bob")
		o.block(a, "eve")
		o.block(a, "tim")
		o.end(a, "ann")
		brief := o.operation("brief")
		brief.For = Span(minute)
		o.change(a, brief)
		if o.ledger.content = old; all {
			o.ledger.content = ledgerContent{}
		}
		b := o.keeper() // starts after the loss
		for _, key := range []string{"zoe", "tim", "yan", "xen", "wim", "tim", "yan"} {
			o.block(b, key) // more changes than a knows
		}
		o.poll(a)
		if all {
			o.want(name+": a", a, "tim wim xen yan zoe", "bob brief eve")
		} else {
			o.want(name+": a", a, "ann tim wim xen yan zoe", "ann bob brief eve")
		}
		if n := len(b.Status().Lost); n > 0 || a.Set().Head != b.Set().Head || a.Status().Rewritten > 0 {
			t.Errorf("%s: b lists %d, and a is at %v; want none, and the head of b, %v", name, n, a.Set().Head, b.Set().Head)
		}
		a.Status().Lost[0] = nil // Lost is a copy, so this must not change the list
		o.clock.now = o.clock.now.Add(2 * time.Minute)
		o.block(a, "bob")
		o.block(b, "ann")
		o.poll(a)
		o.want(name+": after bob and ann were blocked again, and brief has expired", a, "ann bob tim wim xen yan zoe", "eve")
	}
}

// A sidecar still reaches the old master and changes a target, after another sidecar has changed the same target at the
// new master. The later change is lost, and so it is listed.
func TestALaterChangeAtAnOldMasterIsListed(t *testing.T) {
	o := newOperators(t)
	a := o.keeper()
	o.block(a, "ann")
	old := o.ledger.content.clone()
	b := o.keeper()
	for _, key := range []string{"bob", "eve", "tim"} {
		o.block(b, key)
	}
	promoted := o.ledger.content
	o.ledger.content, o.clock.now = old, o.clock.now.Add(time.Second)
	o.block(a, "bob")
	o.ledger.content = promoted
	o.poll(a)
	o.want("a", a, "ann bob eve tim", "bob")
	o.poll(b)
	o.want("b", b, "ann bob eve tim", "")
}

// The list of changes in Redis may be lost alone, or end after the newest change that a sidecar knows. It then reads the
// values, and reports no loss.
func TestASidecarFarBehindReportsNoLoss(t *testing.T) {
	for _, kept := range []int{0, 2} {
		o := newOperators(t)
		a, b := o.keeper(), o.keeper()
		o.block(a, "ann")
		o.poll(b)
		o.block(a, "bob")
		o.end(a, "ann")
		o.block(a, "eve")
		o.ledger.content.changes = o.ledger.content.changes[:kept]
		o.poll(b)
		o.want(fmt.Sprintf("with %d changes", kept), b, "bob eve", "")
	}
}

// Values and changes that cannot be read, for example those of a newer program, are left out, and counted.
func TestWhatCannotBeReadIsLeftOut(t *testing.T) {
	o := newOperators(t)
	a := o.keeper()
	o.block(a, "ann")
	o.ledger.content.values["x"] = `{"domain":"d"}`
	o.ledger.content.values["y"] = "{"
	fresh := o.keeper()
	o.poll(fresh)
	o.want("fresh", fresh, "ann", "")
	if n := fresh.Status().Errors; n != 2 {
		t.Errorf("%d errors; want 2", n)
	}
	eve := o.operation("eve").After
	eve.Created, eve.Expires = a.Now(), a.Now()+minute
	text, err := eve.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	c := &o.ledger.content
	c.head, c.changes, c.values = "2 new", append([]string{"2 new\n{"}, c.changes...), map[string]string{eve.ID: string(text)}
	o.poll(a)
	o.want("after a change that cannot be read", a, "eve", "")
	c.head = "broken"
	if err := a.Poll(t.Context()); err == nil || a.Set().Len() != 1 {
		t.Errorf("a head that cannot be read: %v; want an error, and the adjustments as before", err)
	}
}

// While the ledger is unreachable, known adjustments stay in force, changes fail, and the status has the error. A poll
// that its caller cancels is no error.
func TestAnUnreachableLedger(t *testing.T) {
	o := newOperators(t)
	a := o.keeper()
	check := func(errors uint64, seen time.Time, want string) {
		t.Helper()
		if s := a.Status(); s.Errors != errors || !s.Seen.Equal(seen) || fmt.Sprint(s.Err) != want || s.Place != "Redis" || !s.Persistent {
			t.Errorf("%+v; want %d errors, the last answer at %v, and the error %s", s, errors, seen, want)
		}
	}
	check(0, time.Time{}, "<nil>")
	o.block(a, "ann")
	answered := o.clock.now
	check(0, answered, "<nil>")
	o.clock.now = o.clock.now.Add(time.Minute)
	o.ledger.failure = errors.New("broken")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if a.Poll(canceled) == nil {
		t.Error("a canceled poll succeeded; want an error")
	}
	check(0, answered, "<nil>")
	if a.Poll(t.Context()) == nil {
		t.Error("a poll succeeded; want an error")
	}
	check(1, answered, "adjustments cannot be read: broken")
	o.want("a", a, "ann", "")
	if _, err := a.Change(t.Context(), o.operation("eve")); err == nil || err.Error() != "nothing was changed: broken" {
		t.Errorf("a change: %v; want that nothing was changed", err)
	}
	o.ledger.failure = nil
	o.ledger.before = func() { o.ledger.failure = errors.New("broken") }
	if _, err := a.Change(t.Context(), o.operation("eve")); err == nil || !strings.Contains(err.Error(), "the outcome of the change is unknown; if it was made, the audit lists it as operation op3: broken") {
		t.Errorf("a change without an answer: %v; want that the outcome is unknown", err)
	}
	o.ledger.failure = nil
	o.poll(a)
	check(1, o.clock.now, "<nil>")
}

// slow is a ledger whose calls take 20 ms. Its clock is wrong by an hour.
type slow struct{ *ledger }

func (s slow) Read(ctx context.Context, known string) (string, algorithms.Micros, []string, map[string]string, error) {
	time.Sleep(20 * time.Millisecond)
	return s.ledger.Read(ctx, known)
}

// The server has read its clock at some time during the call. The error is smallest if that is taken to be the middle.
func TestTheServersClockIsReadInTheMiddleOfTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(Config{Ledger: slow{&ledger{now: func() time.Time { return time.Now().Add(time.Hour) }}}})
		if err := k.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got, want := k.Now(), algorithms.Micros(time.Now().Add(time.Hour+10*time.Millisecond).UnixMicro()); got != want {
			t.Errorf("a second after the call, the server's time is %d us, want %d us", got, want)
		}
	})
}

func TestRunPollsTwiceASecondUntilItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeeper(Config{Ledger: &ledger{now: time.Now}})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		polls := 0
		k.Run(ctx, func() { polls++ })
		if polls < 16 || polls > 25 {
			t.Errorf("%d polls in 10 s; want about 20", polls)
		}
	})
}

func TestAdjustmentsInThisProcess(t *testing.T) {
	s, k := service(newClock())
	var versions []uint64
	k.config.Changed = func(set *Set) { versions = append(versions, set.Head.Version) }
	for range 2 {
		if _, _, err := s.Set(t.Context(), bob(Change{Factor: 2000})); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(versions, []uint64{1, 2}) {
		t.Errorf("the versions are %v, want 1 and 2", versions)
	}
	if is := s.Status(); is.Persistent || is.Err != nil || is.Place != "this process, until it ends" || is.Seen.IsZero() || k.Poll(t.Context()) != nil {
		t.Errorf("got %+v; want adjustments in this process, which do not last", is)
	}
}
