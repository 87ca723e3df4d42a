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

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
)

// The test reads the pauses from the log. They must grow while the server is unreachable, and be short again
// after a configuration.
func TestPausesGrowUntilAStreamWorks(t *testing.T) {
	p := newPlane(t, "")
	p.Stop()
	core, logged := observer.New(zapcore.WarnLevel)
	uses := follow(t, Config{Server: p.Address, Log: zap.New(core), MinBackoff: time.Nanosecond, MaxBackoff: 5 * time.Millisecond})
	pause := func() time.Duration {
		for logged.Len() == 0 {
			time.Sleep(time.Millisecond)
		}
		return logged.TakeAll()[0].ContextMap()["again_in"].(time.Duration)
	}
	for n := 0; pause() < 100*time.Microsecond; n++ {
		if n == 100 {
			t.Fatal("after 100 failures the pauses are below 100 µs; want them to grow")
		}
	}
	p = newPlane(t, p.Address)
	p.set(t, "1", domain("a", "x"))
	receive(t, "a configuration", uses)
	logged.TakeAll()
	p.Stop()
	if d := pause(); d > time.Nanosecond {
		t.Errorf("the first pause after a stream that worked is %s; want at most 1 ns", d)
	}
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
