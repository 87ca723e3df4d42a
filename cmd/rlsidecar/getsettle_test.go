package main

import (
	"context"
	"io"
	"path/filepath"
	"testing"
	"time"
)

const tokenBudget = `
domain: ai
settle: {key: settle, end: settle_end}
limits:
  tokens: {algorithm: token_bucket, rate: 1000, period: 1m, settle: {estimate: 150}}
descriptors: [{key: user, limit: tokens}]
`

func TestGetDescribesReservations(t *testing.T) {
	dir := t.TempDir()
	adminAt := "unix://" + filepath.Join(dir, "admin")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan int)
	go func() {
		served <- run(ctx, []string{
			"serve", "--config", write(t, tokenBudget), "--drain-delay", "0s", "--grpc-listen", "unix://" + filepath.Join(dir, "grpc"),
			"--http-listen", "", "--admin-listen", adminAt,
		}, nil, io.Discard, io.Discard)
	}()
	defer func() {
		cancel()
		<-served
	}()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		var out output
		code := run(t.Context(), []string{"get", "tokens", "bob", "--admin-listen", adminAt}, nil, &out, &out)
		if code != exitDone && time.Now().Before(deadline) {
			continue
		}
		contains(t, "get", out.String(), "limit tokens: a request reserves 150 units until its real cost is known (the configured estimate)",
			"this sidecar since its start: 0 units reserved, reservations: 0; settled: 0 with the real cost, 0 without, 0 late")
		return
	}
}
