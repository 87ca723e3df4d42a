package xds

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
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

// The files with the certificates are gone. Each failure is logged with its cause and the pause, and the next
// attempt comes when the pause has ended.
func TestFailuresAreLoggedWithTheirPause(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.pem")
	write(t, ca, certtest.New(t).PEM)
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zapcore.WarnLevel)
		client, err := New(Config{Server: "localhost:1", TLS: &TLS{CA: ca}, Log: zap.New(core), MinBackoff: time.Second, MaxBackoff: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(ca); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		client.Run(ctx, nil)
		var next time.Time
		for _, e := range logged.All() {
			fields := e.ContextMap()
			if text, _ := fields["error"].(string); !strings.Contains(text, "ca.pem") {
				t.Fatalf("got the error %v; want the name of the file", fields["error"])
			}
			if !next.IsZero() && !e.Time.Equal(next) {
				t.Fatalf("attempt at %s, want %s", e.Time, next)
			}
			next = e.Time.Add(fields["again_in"].(time.Duration))
		}
		if logged.Len() < 60 {
			t.Errorf("%d attempts in an hour; want one a minute at least", logged.Len())
		}
	})
}

func TestAStreamToAStoppedServerFails(t *testing.T) {
	p := newPlane(t, "127.0.0.1:0")
	p.Stop()
	client, err := New(Config{Server: p.Address, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if answered, err := client.stream(t.Context(), nil); answered || err == nil {
		t.Errorf("got %t, %v; want an error, and no answer", answered, err)
	}
}
