package backend_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func TestDeadlineIsTheEarlierOne(t *testing.T) {
	for name, test := range map[string]struct{ caller, want time.Duration }{
		"no caller's deadline":         {0, 5 * ms},
		"the caller has more time":     {time.Second, 5 * ms},
		"the caller has a little more": {6 * ms, 5 * ms},
		"the caller less the margin":   {4 * ms, 3 * ms},
		"just the margin":              {ms, 0},
		"less than the margin":         {ms / 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				next := &recorder{next: after(time.Hour, echo)}
				s := backend.Deadline(next, 5*ms, ms)
				ctx := t.Context()
				if test.caller > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.caller)
					defer cancel()
				}
				start := time.Now()
				d := take(ctx, s, costs(true, 1, 2)...)
				if got := time.Since(start); got != test.want {
					t.Errorf("answered after %v, want %v", got, test.want)
				}
				for i := range d {
					if !errors.Is(d[i].Err, backend.ErrUnavailable) {
						t.Errorf("got %+v", d[i])
					}
				}
				if asked := next.count() == 1; asked != (test.want > 0) {
					t.Errorf("asked: %v with %v left", asked, test.want)
				}
			})
		})
	}
}

func TestDeadlinePassesAnswersOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := backend.Deadline(after(4*ms, echo), 5*ms, ms)
		if d := take(t.Context(), s, costs(true, 3)...); d[0].Err != nil || d[0].Remaining != 3 {
			t.Errorf("got %+v", d)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if d := take(ctx, s, costs(true, 3)...); !errors.Is(d[0].Err, context.Canceled) || !errors.Is(d[0].Err, backend.ErrUnavailable) {
			t.Errorf("got %+v", d)
		}
	})
}
