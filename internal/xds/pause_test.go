package xds

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

// The test reads the pauses from the log. They must grow while the server is unreachable, and be short again
// after a configuration.
func TestPausesGrowUntilAStreamWorks(t *testing.T) {
	p := newPlane(t, "127.0.0.1:0")
	p.Stop()
	pauses := make(chan time.Duration, 1000)
	log := zap.New(zapcore.NewNopCore(), zap.WrapCore(func(zapcore.Core) zapcore.Core { return pauseCore{pauses: pauses} }))
	client, err := New(Config{Server: p.Address, NodeID: node, Log: log, MinBackoff: time.Nanosecond, MaxBackoff: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	used := make(chan use, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		client.Run(ctx, func(messages []config.Message, problems config.Problems) error {
			used <- use{messages, problems}
			return nil
		})
	}()
	defer func() { cancel(); <-done }()
	for n := 0; receive(t, "a pause", pauses) < 100*time.Microsecond; n++ {
		if n == 100 {
			t.Fatal("after 100 failures the pauses are below 100 µs; want them to grow")
		}
	}
	p = newPlane(t, p.Address)
	p.set(t, "1", domain("a", "x"))
	receive(t, "a configuration", used)
	for len(pauses) > 0 {
		<-pauses
	}
	p.Stop()
	if d := receive(t, "a pause", pauses); d > time.Nanosecond {
		t.Errorf("the first pause after a stream that worked is %s; want at most 1 ns", d)
	}
}

// pauseCore is a zapcore.Core that sends the field again_in of each entry to pauses.
type pauseCore struct {
	zapcore.Core
	pauses chan time.Duration
}

func (c pauseCore) Enabled(zapcore.Level) bool        { return true }
func (c pauseCore) With([]zapcore.Field) zapcore.Core { return c }
func (c pauseCore) Sync() error                       { return nil }
func (c pauseCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return to.AddCore(e, c)
}

func (c pauseCore) Write(_ zapcore.Entry, fields []zapcore.Field) error {
	for _, f := range fields {
		if f.Key == "again_in" {
			select {
			case c.pauses <- time.Duration(f.Integer):
			default:
			}
		}
	}
	return nil
}
