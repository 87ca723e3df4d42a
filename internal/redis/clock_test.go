package redis

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func serverWithClock(t *testing.T) (*redistest.Server, func(offset time.Duration)) {
	t.Helper()
	binary := tooltest.Path(t, "valkey-server-libc") // libfaketime hangs servers that use jemalloc
	libraries, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(libraries) == 0 {
		tooltest.Missing(t, "libfaketime")
	}
	file := filepath.Join(t.TempDir(), "offset")
	step := func(offset time.Duration) {
		if err := os.WriteFile(file, fmt.Appendf(nil, "%+d\n", int(offset.Seconds())), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	step(0)
	return redistest.StartBinary(t, binary, []string{
		"LD_PRELOAD=" + libraries[0], "FAKETIME_TIMESTAMP_FILE=" + file,
		"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
	}), step
}

func TestAWrongClockIsReported(t *testing.T) {
	t.Parallel()
	server, step := serverWithClock(t)
	s := open(t, Config{URL: "redis://" + server.Addr, Timeout: 5 * time.Second})
	for _, c := range []struct {
		offset time.Duration
		want   string
	}{
		{0, ""},
		{time.Hour, "warning: is 1h0m0s ahead of this machine's, and limits use the server's clock; synchronize both with NTP"},
		{-10 * time.Minute, "warning: is 10m0s behind this machine's, and limits use the server's clock; synchronize both with NTP"},
		{0, ""},
	} {
		step(c.offset)
		redistest.Eventually(t, "the findings for an offset of "+c.offset.String(), func() bool {
			return findingsOf(s.ExamineClocks(t.Context()), "clock") == c.want && findingsOf(s.Examine(t.Context(), 0), "clock") == c.want
		})
	}
}

// A step back neither refills a bucket nor stops its refill. A step forward counts as time that has passed, so it
// refills at most one capacity.
func TestFaultClockSteps(t *testing.T) {
	faulty(t)
	server, step := serverWithClock(t)
	s := open(t, Config{URL: "redis://" + server.Addr, Timeout: 5 * time.Second})
	const rate, perWindow = 50, 100
	begin := time.Now()
	half := algorithms.Micros(begin.Add(-30 * time.Minute).UnixMicro())
	bucket := compiled(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: rate, Period: algorithms.Second})
	window := compiled(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: perWindow, Period: 3600 * algorithms.Second, Start: &half})
	limits := [2]*algorithms.Limit{bucket, window}
	var admitted [2]int64
	// phase sends charges for a second, and then until the bucket has admitted minInflow units in this phase, for at
	// most a minute in all. It compares all units that were admitted so far with the given number of capacities, plus the
	// inflow of the bucket.
	phase := func(name string, offset time.Duration, capacities, minInflow int64) {
		t.Helper()
		step(offset)
		before := admitted
		for start := time.Now(); time.Since(start) < time.Second ||
			admitted[0]-before[0] < minInflow && time.Since(start) < time.Minute; time.Sleep(ms) {
			for i, limit := range limits {
				d := takeOne(t, s, backend.Charge{Key: []byte{byte('a' + i)}, Limit: limit, Owner: "test"}, algorithms.Charge{Cost: 1})
				if d.Allowed {
					admitted[i]++
				}
				if d.Remaining < 0 || d.ResetAfter < 0 || d.ResetAfter > 62*60*algorithms.Second ||
					!d.Allowed && (d.RetryAfter <= 0 || d.RetryAfter > 61*60*algorithms.Second) {
					t.Errorf("%s: got %+v; want nothing below 0, a reset in at most 62 min, and a retry time of at most 61 min", name, d)
				}
			}
		}
		flowed := int64(time.Since(begin).Seconds()*rate) + 1
		t.Logf("%s: clock at %v: admitted %d of the bucket, %d of the window", name, offset, admitted[0]-before[0], admitted[1]-before[1])
		if most := capacities*rate + flowed; admitted[0] > most {
			t.Errorf("%s: the bucket admitted %d since the beginning, want %d at the most", name, admitted[0], most)
		}
		if most := capacities * perWindow; admitted[1] > most {
			t.Errorf("%s: the window admitted %d since the beginning, want %d at the most", name, admitted[1], most)
		}
		if got := admitted[0] - before[0]; got < minInflow {
			t.Errorf("%s: the bucket admitted %d, want %d at least", name, got, minInflow)
		}
	}
	phase("at first", 0, 1, rate)
	phase("an hour back", -time.Hour, 1, rate/5) // no bucket is refilled at once, and refilling continues
	phase("and forward again", 0, 2, rate)
	phase("an hour forward", time.Hour, 3, rate)
	phase("and back again", 0, 3, rate/5)
}
