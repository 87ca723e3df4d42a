package histories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
)

func newGRPC(t *testing.T, address string) rls.RateLimitServiceClient {
	t.Helper()
	soon := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(soon))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return rls.NewRateLimitServiceClient(conn)
}

// If an answer lacks the numbers of a limit, the store could not decide. The status of a limit that denies has 0 units
// left. That is exact, because the costs divide the capacities.
func (w *world) sendGRPC(random *rand.Rand, b *buckets, k kind) (r record) {
	var list []string
	for _, l := range b.limits {
		text := fmt.Sprintf("%s=%s;hits=%d", nameOf[l], b.name, b.cost)
		if k == refund {
			text += ";refund"
		}
		list = append(list, text)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	r = record{from: w.now(), to: never}
	r.of, r.kind = b, k
	s := w.sidecars[random.IntN(len(w.sidecars))]
	response, err := s.rls.ShouldRateLimit(ctx, rlstest.Request("histories", list...))
	if err != nil {
		time.Sleep(time.Millisecond) // the sidecar may have been killed
		return r
	}
	if len(response.GetStatuses()) != len(b.limits) {
		w.t.Errorf("got %d statuses, want %d: %v", len(response.GetStatuses()), len(b.limits), response)
		return r
	}
	for i, status := range response.GetStatuses() {
		if status.GetCurrentLimit() == nil {
			return r
		}
		r.answer.left[i] = int64(status.GetLimitRemaining())
	}
	r.answer.ok = response.GetOverallCode() == rls.RateLimitResponse_OK
	r.answered, r.to = true, w.now()
	return r
}

// settle sends a settlement to sidecars until one of them answers. The settlement must take effect once.
func (w *world) settle(random *rand.Rand, b *buckets) {
	first := w.send(random, b, charge, "")
	w.log(first)
	if !first.answered || !first.answer.ok {
		return
	}
	if first.reservation == "" {
		w.t.Errorf("%s: the answer to an allowed reservation has no id", b.name)
		return
	}
	r := record{to: never}
	r.of, r.kind = b, []kind{refund, exact, beyond}[random.IntN(3)]
	request := struct {
		ID    string `json:"reservation"`
		Count int64  `json:"count"`
	}{first.reservation, [...]int64{refund: 0, exact: b.cost, beyond: 2 * b.cost}[r.kind]}
	for r.from = w.now(); !r.answered; {
		r = w.post(random, request, r)
	}
	w.log(r)
	if again := w.post(random, request, r); again.answered && again.answer != r.answer {
		w.t.Errorf("%s: a settlement was answered %+v, and when it was repeated %+v", b.name, r.answer, again.answer)
	}
}

func (w *world) servedFromLeases() (n float64) {
	for _, s := range w.sidecars {
		s.Await("/readyz") // it may have been killed
		n += sidecartest.Metrics(s.Admin, "")["rlsidecar_lease_served_total"]
	}
	return n
}
