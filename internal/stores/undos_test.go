package stores_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

var (
	unsent   = backend.Decision{Err: backend.ErrNotTaken}
	noAnswer = backend.Decision{Err: backend.ErrUnavailable}
	allowed  = backend.Decision{Decision: algorithms.Decision{Allowed: true}}
)

// scripted is a Store that gives these answers, and then the last one again. calls counts them.
func scripted(answers ...backend.Decision) (s backend.Store, calls *int) {
	calls = new(int)
	return submitFunc(func(b *backend.Batch) {
		b.Decisions[0] = answers[min(*calls, len(answers)-1)]
		*calls++
		b.Done(b)
	}), calls
}

// The pauses double up to two seconds. Another charge, which is allowed after 50 ms, is repeated at the same time.
func TestAChargeIsRepeatedUntilItIsDecided(t *testing.T) {
	for name, test := range map[string]struct {
		answers      []backend.Decision
		open         time.Duration // until Close
		calls        int
		ends, closes time.Duration
	}{
		"at once":        {[]backend.Decision{allowed}, 0, 1, 0, 50 * ms},
		"after failures": {[]backend.Decision{unsent, noAnswer, allowed}, 60 * ms, 3, 150 * ms, 150 * ms},
		"after a denial": {[]backend.Decision{{}, allowed}, 0, 2, 50 * ms, 50 * ms},
		"not in ten s":   {[]backend.Decision{noAnswer}, time.Minute, 10, 9150 * ms, time.Minute},
		"not in time":    {[]backend.Decision{noAnswer}, 400 * ms, 5, 750 * ms, 750 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, start, ends := stores.NewUndos(nil, time.Second), time.Now(), []time.Duration(nil)
				other, _ := scripted(noAnswer, allowed)
				store, calls := scripted(test.answers...)
				c := of(nil, "a", 1)
				done := func(*backend.Decision) { ends = append(ends, time.Since(start)) }
				r.Repeat(store, &c, func(d *backend.Decision) bool { return d.Err == nil && !d.Allowed }, done)
				r.Repeat(other, &c, nil, func(*backend.Decision) {})
				time.Sleep(test.open)
				r.Close()
				closes := time.Since(start)
				time.Sleep(time.Minute)
				if r.Repeat(store, &c, nil, done); len(ends) != 2 || ends[0] != test.ends || closes != test.closes || *calls != test.calls {
					t.Errorf("%d calls until %v, closed after %v; want %d until %v, closed after %v, and none after Close", *calls, ends, closes, test.calls, test.ends, test.closes)
				}
			})
		})
	}
}

func TestTheEndOfTheReturnsOfSlots(t *testing.T) {
	for name, test := range map[string]struct {
		answers []backend.Decision
		ends    bool
	}{
		"none": {nil, true}, "decided": {[]backend.Decision{allowed}, true}, "sent late": {[]backend.Decision{unsent, allowed}, true},
		"perhaps still sent": {[]backend.Decision{noAnswer, allowed}, false}, "never decided": {[]backend.Decision{unsent}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			undos, ends := stores.NewUndos(nil, time.Second), 0
			slot := of(nil, "a", 1)
			slot.Terms.Slot = &algorithms.Slot{ID: [16]byte{1}}
			earlier := undos.AfterReturns(slot.Terms.Slot.ID) // of another caller with this ID
			then := undos.AfterReturns(slot.Terms.Slot.ID)
			earlier(func() {})
			if store, _ := scripted(test.answers...); len(test.answers) > 0 {
				undos.Submit(store, []backend.Charge{slot})
			}
			then(func() { ends++ })
			time.Sleep(time.Second)
			closes := time.Now()
			if undos.Close(); ends > 1 || ends == 1 != test.ends || time.Since(closes) > time.Second {
				t.Errorf("%s: ended %d times, want once: %t; closed in %v, want at most a second", name, ends, test.ends, time.Since(closes))
			}
		})
	}
}
