package server

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/stores"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/metrics"
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
	st := stack{undos: stores.NewUndos(time.Second), redis: []*redis.Store{r}}
	st.undos.Close()
	for range 3 {
		st.undos.Submit(memory.New(memory.Config{}), make([]backend.Charge, 1))
	}
	m := metrics.New("v1", "rev")
	m.WatchUndos(st.undosDropped)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if want := "rlsidecar_backend_undos_dropped_total 3"; !strings.Contains(w.Body.String(), want) {
		t.Errorf("the metrics lack %s", want)
	}
}
