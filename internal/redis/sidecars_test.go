package redis

import (
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// A Store may be closed during calls. They fail in time, and no goroutine remains (TestMain checks that).
func TestCloseUnderLoad(t *testing.T) {
	faulty(t)
	for _, form := range []string{"server", "sentinel", "cluster"} {
		t.Run(form, func(t *testing.T) {
			c := on(t, form)
			again := c
			c.Timeout = deadline
			s := away(t, c)
			l := startLoad(t, 4, s)
			l.normal(l.began, generous)
			redistest.Eventually(t, "each request is admitted", l.admitted)
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			closed := time.Now()
			time.Sleep(500 * ms)
			if share := l.share(closed.Add(100*ms), time.Now(), nil); share > 0 {
				t.Errorf("%.1f %% of the charges were answered by a closed Store; want 0 %%", 100*share)
			}
			if err := s.Close(); err != nil && !strings.Contains(err.Error(), "closed") {
				t.Errorf("close again: %v; want an error that contains %q", err, "closed")
			}
			l.check(open(t, again), 0)
		})
	}
}
