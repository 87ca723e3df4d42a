package adjust

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const minute = 60 * algorithms.Second

func number(n int64) *int64 { return &n }

// limits has one limit of the domain "edge".
type limits struct {
	name string
	spec algorithms.Spec
}

func (l limits) Adjustable(t *Target) (string, algorithms.Kind, error) {
	if t.Limit != l.name || t.Domain != "" && t.Domain != "edge" {
		return "", 0, fmt.Errorf("no limit is named %q", t.Limit)
	}
	if !t.AllKeys && len(t.Key) != 1 {
		return "", 0, fmt.Errorf("the key has %d values; a bucket of limit %s is identified by 1 (user_id)", len(t.Key), t.Limit)
	}
	return "edge", l.spec.Kind, nil
}

func (l limits) Words(a *Adjustment) (string, error) {
	if _, _, err := l.Adjustable(&a.Target); err != nil {
		return "", err
	}
	if a.Change.Block || a.Change.Unlimited {
		return a.Change.String(), nil
	}
	limit, err := algorithms.Compile(l.spec)
	if err != nil {
		return "", err
	}
	spec, err := a.Change.Spec(&limit)
	if err == nil {
		_, err = algorithms.Compile(spec)
	}
	return a.Target.String() + ": " + a.Change.String(), err
}

// tenPerMinute has the limit send_message: 10 a minute, and at most 20 at once.
func tenPerMinute() limits {
	return limits{"send_message", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Capacity: number(20)}}
}

type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func service(c *clock) (*Service, *Keeper) {
	k := NewKeeper(Config{Clock: c.Now})
	return NewService(k, tenPerMinute(), nil), k
}

func bob(c Change) Proposal {
	return Proposal{Target: Target{Limit: "send_message", Key: []string{"bob"}}, Change: c, For: Span(120 * minute), Author: "ann", Reason: "launch"}
}

// contains reports whether err is an error with the given text, or nil if the text is "".
func contains(err error, text string) bool {
	if text == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), text)
}

func newClock() *clock { return &clock{time.Date(2026, 3, 1, 16, 0, 0, 0, time.UTC)} }

// TestMain keeps rapid from writing files beside the tests; a failure names its seed.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	m.Run()
}
