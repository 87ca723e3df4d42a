package storetest

import "github.com/rlsidecar/rlsidecar/pkg/backend"

// Apart returns s as callers use it that continue after Submit: their batches do not have Waits set.
func Apart(s backend.Store) backend.Store { return apart{s} }

type apart struct{ next backend.Store }

// Submit implements backend.Store.
func (s apart) Submit(b *backend.Batch) {
	b.Waits = false
	s.next.Submit(b)
}
