package stores

import (
	"fmt"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// A change of one bucket removes a cached denial, whose hash stays listed under its other buckets. These lists must not
// grow without bound.
func TestDeniedMemoryIsBounded(t *testing.T) {
	const most = 100
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1, Period: algorithms.Second})
	if err != nil {
		t.Fatal(err)
	}
	s := Denied(denies{}, DeniedConfig{MaxGroups: most})
	size := func() (n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, groups := range s.denials.buckets {
			n += len(groups)
		}
		return n + len(s.denials.groups)
	}
	var decisions [3]backend.Decision
	for i := range 20_000 {
		charges := []backend.Charge{{Key: []byte("all")}, {Key: fmt.Appendf(nil, "%d", i%10)}, {Key: fmt.Appendf(nil, "%d", i)}}
		for j := range charges {
			charges[j].Limit, charges[j].Terms.Cost = &limit, 1
		}
		charges = charges[:2+i/10_000] // first the same few groups repeatedly, then always new ones
		backend.Take(t.Context(), s, charges, decisions[:len(charges)])
		s.ClearBucket(charges[len(charges)-1].Key)
		if n := size(); n > 10*most {
			t.Fatalf("%d entries after %d denials; want at most %v", n, i+1, 10*most)
		}
	}
}

type denies struct{}

func (denies) Submit(b *backend.Batch) {
	for i := range b.Decisions {
		b.Decisions[i] = backend.Decision{Decision: algorithms.Decision{RetryAfter: algorithms.Second}}
	}
	b.Done(b)
}
