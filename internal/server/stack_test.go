package server

import (
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

// A closed Undos drops the refunds that it gets.
func TestDroppedUndosAreCounted(t *testing.T) {
	r, err := redis.Open(redis.Config{URL: "redis://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	st := stack{undos: stores.NewUndos(nil, time.Second), redis: []*redis.Store{r}}
	st.undos.Close()
	if st.undos.Submit(memory.New(memory.Config{}), make([]backend.Charge, 1)); st.undosDropped() != 1 {
		t.Errorf("%d dropped refunds are counted; want 1", st.undosDropped())
	}
}
