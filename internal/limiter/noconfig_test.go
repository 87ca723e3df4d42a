package limiter_test

import (
	"errors"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// If configured, on_backend_failure decides requests with descriptors before the first configuration.
func TestBeforeTheFirstConfiguration(t *testing.T) {
	call := func() *limiter.Call {
		c := &limiter.Call{}
		c.Request.Domain = "d"
		c.AddDescriptor()
		c.AddDescriptor()
		return c
	}
	with := func(c limiter.Config) *limiter.Limiter { return limiter.New(memory.New(memory.Config{}), c) }
	l := with(limiter.Config{})
	if err := l.Check(t.Context(), call()); !errors.Is(err, limiter.ErrNoConfig) {
		t.Errorf("by default: %v; want the error limiter.ErrNoConfig", err)
	}
	for answer, denied := range map[limiter.OnFailure]bool{limiter.Deny: true, limiter.Local: true, limiter.Allow: false} {
		l = with(limiter.Config{NoConfig: &answer})
		c := call()
		if err := l.Check(t.Context(), c); err != nil || c.Denied != denied || !c.Failed || len(c.Statuses) != 2 {
			t.Errorf("%s: got %v, %+v; want no error, denied %v, failed and 2 elements", answer, err, c.Verdict, denied)
		}
		for _, s := range c.Statuses {
			if s.Denied != denied || s.Result != -1 {
				t.Errorf("%s: got %+v; want denied %v and result -1", answer, s, denied)
			}
		}
		shadow := with(limiter.Config{NoConfig: &answer, Modes: limiter.Modes{Shadow: true}})
		if c := call(); shadow.Check(t.Context(), c) != nil || c.Denied || c.WouldDeny != denied || c.Statuses[0].Denied != denied {
			t.Errorf("%s in shadow mode: got %+v; want allowed, and would deny %t", answer, c.Verdict, denied)
		}
		settle := limiter.Settle{Reserved: &limiter.Reserved{Domain: limiter.PrefixNumber("d")}}
		if err := l.Settle(t.Context(), &limiter.Call{}, settle); !errors.Is(err, limiter.ErrNoConfig) { // a settlement can be repeated
			t.Errorf("%s, a settlement: got %v; want the error limiter.ErrNoConfig", answer, err)
		}
		c = &limiter.Call{Request: limiter.Request{Limits: []limiter.NamedCharge{{Name: "x"}}}}
		if err := l.Check(t.Context(), c); !errors.Is(err, limiter.ErrNoConfig) {
			t.Errorf("%s, by name: %v; want the error limiter.ErrNoConfig", answer, err)
		}
	}
	l = with(limiter.Config{NoConfig: new(limiter.Error)})
	if err := l.Check(t.Context(), call()); !errors.Is(err, limiter.ErrNoConfig) {
		t.Errorf("error: %v; want the error limiter.ErrNoConfig", err)
	}
	l = with(limiter.Config{NoConfig: new(limiter.Deny)})
	l.Swap(&limiter.Snapshot{})
	if c := call(); l.Check(t.Context(), c) != nil || c.Denied {
		t.Error("an empty configuration denies; want allowed")
	}
}
