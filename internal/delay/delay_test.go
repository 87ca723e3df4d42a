package delay

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestLongest(t *testing.T) {
	for _, c := range []struct {
		left time.Duration // until the caller's deadline; 0 means no deadline
		want algorithms.Micros
	}{
		{0, 60_000_000},
		{time.Hour, 60_000_000},
		{61 * time.Second, 60_000_000},
		{time.Second, 998_000}, // 2 ms are reserved for sending the answer
		{3 * time.Millisecond, 1_000},
		{2 * time.Millisecond, 1},
		{time.Nanosecond, 1},
		{-time.Second, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if c.left != 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.left)
				defer cancel()
			}
			if got := new(Room).Longest(ctx); got != c.want {
				t.Errorf("%v left: %d, want %d", c.left, got, c.want)
			}
		})
	}
}

func TestTheNumberOfHeldAnswersIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Room{Most: 3}
		for range 2 {
			go func() { _ = r.Wait(t.Context(), 5_000_000) }()
		}
		stop := r.Later(7_000_000, func() { t.Error("it was stopped") })
		synctest.Wait()
		if r.Waiting() != 3 || r.LongestFor(0) != 1 {
			t.Errorf("%d answers are delayed, the next by at most %d us; want 3 and 1 us", r.Waiting(), r.LongestFor(0))
		}
		stop()
		stop() // a second call has no effect
		if r.Waiting() != 2 || r.LongestFor(0) != 60_000_000 {
			t.Errorf("%d answers are delayed, the next by at most %d us; want 2 and 60 s", r.Waiting(), r.LongestFor(0))
		}
		time.Sleep(6 * time.Second)
		if r.Waiting() != 0 {
			t.Errorf("%d answers are delayed; want 0", r.Waiting())
		}
		for most, held := range map[int64]algorithms.Micros{0: 60_000_000, -1: 1} {
			if got := (&Room{Most: most}).LongestFor(0); got != held {
				t.Errorf("room for %d: the next answer is delayed by at most %d us; want %d", most, got, held)
			}
		}
	})
}

func TestWaitingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, from := &Room{}, time.Now()
		if err := r.Wait(t.Context(), 1_500_000); err != nil || time.Since(from) != 1500*time.Millisecond {
			t.Errorf("got %v after %v; want no error after 1.5 s", err, time.Since(from))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Wait(ctx, 2_000_000); !errors.Is(err, context.DeadlineExceeded) || r.Waiting() != 0 {
			t.Errorf("got %v, and %d answers are delayed; want DeadlineExceeded and 0", err, r.Waiting())
		}
		answered := time.Time{}
		stop := r.Later(1_000_000, func() { answered = time.Now() })
		from = time.Now()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if stop(); answered.Sub(from) != time.Second || r.Waiting() != 0 {
			t.Errorf("answered after %v, and %d answers are delayed; want 1 s and 0", answered.Sub(from), r.Waiting())
		}
	})
}
