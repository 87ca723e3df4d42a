package adjust

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const minute = 60 * algorithms.Second

func policy(t testing.TB, s algorithms.Spec) *descriptors.Policy {
	t.Helper()
	l, err := algorithms.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	return &descriptors.Policy{
		Domain: "edge", Name: "send_message", Limit: &l, Open: []int{0}, Extras: &descriptors.Extras{OpenKeys: []string{"user_id"}},
	}
}

func number(n int64) *int64 { return &n }

// limits has one limit, "send_message" of the domain "edge": 10 a minute, and at most 20 at once.
type limits struct{ p *descriptors.Policy }

func (l limits) Adjustable(domain, limit string) (string, []*descriptors.Policy, error) {
	if limit != l.p.Name || domain != "" && domain != l.p.Domain {
		return "", nil, fmt.Errorf("no limit is named %q", limit)
	}
	return l.p.Domain, []*descriptors.Policy{l.p}, nil
}

type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func service(t *testing.T, dir string, c *clock) (*Service, *Local) {
	t.Helper()
	k, err := NewLocal(dir, NewChain(nil), c.Now)
	if err != nil {
		t.Fatal(err)
	}
	p := policy(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute, Capacity: number(20)})
	return NewService(k, limits{p}, nil), k
}

func bob(c Change) Proposal {
	return Proposal{Target: Target{Limit: "send_message", Key: []string{"bob"}}, Change: c, For: 2 * time.Hour, Author: "ann", Reason: "launch"}
}

func newClock() *clock { return &clock{time.Date(2026, 3, 1, 16, 0, 0, 0, time.UTC)} }

// TestMain keeps rapid from writing files beside the tests; a failure names its seed.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	m.Run()
}
