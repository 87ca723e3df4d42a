package storetest

import "github.com/rlsidecar/rlsidecar/pkg/backend"

// Apart returns a wrapper of s that clears Waits of every batch, as for callers that continue after Submit.
func Apart(s backend.Store) backend.Store { return apart{s} }

type apart struct{ next backend.Store }

func (s apart) Submit(b *backend.Batch) {
	b.Waits = false
	s.next.Submit(b)
}
