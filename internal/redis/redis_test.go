package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

func conforms(t *testing.T, c func() Config) {
	t.Helper()
	for name, how := range map[string]func(backend.Store) backend.Store{
		"waiting": func(s backend.Store) backend.Store { return s },
		"apart":   storetest.Apart,
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Exact(t, func(t *testing.T, now func() algorithms.Micros) backend.Store {
				t.Helper()
				c := c()
				c.Clock = now
				return how(open(t, c))
			})
		})
	}
}

// away opens a Store whose servers need not answer.
func away(tb testing.TB, c Config) *Store {
	tb.Helper()
	s, err := Open(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

func open(tb testing.TB, c Config) *Store {
	tb.Helper()
	s := away(tb, c)
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	if err := s.Ping(ctx); err != nil {
		tb.Fatal(err)
	}
	return s
}

// started starts a server of its own for t, and opens a Store on it.
func started(t *testing.T) (*redistest.Server, *Store) {
	t.Helper()
	server := redistest.Start(t)
	return server, open(t, Config{URL: "redis://" + server.Addr, Timeout: 5 * time.Second})
}

func TestStandaloneExact(t *testing.T) {
	t.Parallel()
	t.Run("tcp", func(t *testing.T) {
		conforms(t, func() Config { return on(t, "server") })
	})
	t.Run("unix", func(t *testing.T) {
		storetest.Vectors(t, func(t *testing.T, now func() algorithms.Micros) backend.Store {
			t.Helper()
			c := on(t, "server")
			c.URL, c.Clock = "unix://"+sharedServer().Socket, now
			return open(t, c)
		})
	})
}

func TestSentinelExact(t *testing.T) {
	t.Parallel()
	storetest.Vectors(t, func(t *testing.T, now func() algorithms.Micros) backend.Store {
		t.Helper()
		c := on(t, "sentinel")
		c.Clock = now
		return open(t, c)
	})
}

func TestClusterExact(t *testing.T) {
	t.Parallel()
	conforms(t, func() Config { return on(t, "cluster") })
	t.Run("groups over several slots", func(t *testing.T) {
		storetest.Bounded(t, 0, func(t *testing.T, now func() algorithms.Micros) backend.Store {
			t.Helper()
			c := on(t, "cluster")
			c.Clock = now
			return open(t, c)
		})
	})
}

func TestKeysLiveAsLongAsTheyMatter(t *testing.T) {
	t.Parallel()
	server, s := started(t)
	for i, spec := range storetest.Specs() {
		limit := compiled(t, spec)
		if limit.Rate == 0 {
			continue
		}
		key := []byte{byte('a' + i)}
		before := time.Now()
		d := takeOne(t, s, backend.Charge{Key: key, Limit: limit}, algorithms.Charge{Cost: 1, Slot: &algorithms.Slot{}})
		if !d.Allowed {
			t.Fatalf("%+v: got %+v; want it allowed", spec, d)
		}
		left := livesFor(t, server, string(key))
		needed := time.Duration(d.ResetAfter) * time.Microsecond
		if limit.Kind == algorithms.Concurrency {
			needed = time.Duration(limit.Period()) * time.Microsecond
		}
		if spec.Initial != nil {
			needed += 24 * time.Hour
		}
		most := needed
		if limit.Calendar != nil { // the script does not know later windows, so it assumes the longest possible ones
			most += 2 * time.Hour
		}
		if left < needed-time.Since(before)-time.Millisecond || left > most+most/8+2*time.Millisecond {
			t.Errorf("%s: the key lives for %v more, and the state matters for %v; want that, plus an eighth at most", limit.Kind, left, needed)
		}
	}
}

func TestSlotOf(t *testing.T) {
	// "123456789" is the check value of CRC16/XMODEM: 0x31C3.
	if got := slotOf("123456789"); got != 0x31C3%slots {
		t.Errorf("slot %d; want %v", got, 0x31C3%slots)
	}
	for slot, tag := range tags() {
		if tag == 0 {
			t.Fatalf("slot %d has no tag", slot)
		}
	}
}

// A URL with a mistake is refused. The error contains no part of it, because any part may belong to the
// password. Of an accepted URL, only the password field contains the password, so errors of connections do
// not show it.
func TestURLsWithPasswordsAreNotShown(t *testing.T) {
	for _, url := range []string{
		"redis://user:se/cret@h:6379", "redis://user:se/cret@h", "redis://:/secret@h", "redis://:123/secret@h", "redis://user:123/0@h",
		"redis://user:se?cret@h:6379", "redis://user:se?db=cret@h", "redis://user:se?secret=1@h", "redis://:1?secret@h",
		"redis://user:#secret@h", "redis://user:1#secret@h/0", "redis://:1#secret@h", "redis://user:%secret@h", "redis://user:secret#@h",
		"redis://user:secret:h:6379", "redis://user:secret", "redis://user:secret/0", "redis://:secret", "redis://:secret:6379",
		"redis://h:6379:secret", "redis://h/secret", "redis://h/0?secret", "redis://h?db=secret", "redis://h/0#secret", "redis://h?password=secret",
		"redis:user:secret@h", "redis:/user:secret@h:6379", "user:secret@h:6379", "secret@h", "user:secret@redis://h", "secret://h",
		"unix://user:secret/run/s", "unix://user:se/cret@/run/s", "unix://secret",
		"redis+sentinel://user:se/cret@h", "redis+sentinel://user:1/secret@h", "redis+sentinel://user:1/secret@h/main", "redis+sentinel://h/main/secret",
		"redis+sentinel://h/main?x=1&sentinel_password=secret", "redis+sentinel://h/main?sentinel_password=1#secret", "redis+sentinel://h/main?sentinel_password=1&secret",
		"redis+cluster://user:se/cret@h", "redis+cluster://user:secret", "redis+cluster://h1,user:secret", "redis+secret://h", "redis+cluster://h?db=secret",
	} {
		for _, form := range []string{"%s", " %s"} {
			_, err := Open(Config{URL: fmt.Sprintf(form, url)})
			if err == nil {
				t.Errorf("%s is accepted; want an error", url)
			} else if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "cret@") || strings.Contains(err.Error(), "user:") {
				t.Errorf("%s: got %v; want no %q, no %q and no %q", url, err, "secret", "cret@", "user:")
			}
		}
	}
	for url, want := range map[string]string{
		"redis://user:se%2Fcret@h:1": "se/cret", "redis://user:a:b@h": "a:b", "redis://user:a@b@h": "a@b", "redis://:p%3Fw%23@[::1]:6379/1": "p?w#",
		"redis+sentinel://:p@h1,h2:1/main": "p", "redis+cluster://:p@h1,h2:1": "p", "unix://:p@/run/s?db=1": "p",
	} {
		if l, err := parse(url); err != nil || l.password != want {
			t.Errorf("%s: password %q, %v; want no error and password %v", url, l.password, err, want)
		}
	}
}
