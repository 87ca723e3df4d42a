package redis

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// Eighty milliseconds away, a decision takes one round trip, however many others are in flight. Most of them share calls.
func TestAFarServerDecidesInOneRoundTrip(t *testing.T) {
	t.Parallel()
	const far = 80 * time.Millisecond
	server := redistest.Start(t)
	proxy := startProxy(t, server.Addr, 1)
	proxy.do(faults{far: far})
	s := open(t, Config{URL: "redis://" + proxy.Addr, Timeout: 20 * far})
	for range 2 { // connects, and learns how far the server is
		if d := takeAll(s, limited(1).Charges)[0]; d.Err != nil {
			t.Fatal(d.Err)
		}
	}
	calls, first := scriptsRun(t, server), time.Now()
	const requests = 400
	took := make([]time.Duration, requests)
	var wg sync.WaitGroup
	for i := range requests {
		time.Sleep(ms) // more than five round trips in all
		wg.Go(func() {
			b := limited(1)
			began := time.Now()
			<-start(s, b).done
			if took[i] = time.Since(began); b.Decisions[0].Err != nil || !b.Decisions[0].Allowed {
				t.Errorf("got %+v; want allowed", b.Decisions[0])
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	if median := took[requests/2]; median >= 2*far {
		t.Errorf("the median took %v; want about one round trip of %v", median, far)
	}
	if n, most := scriptsRun(t, server)-calls, farCalls*float64(time.Since(first)/far+1); n > most {
		t.Errorf("%v calls for %d decisions; want at most %v, which is %d in each round trip", n, requests, most, farCalls)
	}
}

func scriptsRun(b testing.TB, servers ...*redistest.Server) (n float64) {
	b.Helper()
	for _, s := range servers {
		for name, value := range fields(s.Do("INFO", "commandstats")) {
			if !strings.HasPrefix(name, "cmdstat_evalsha") {
				continue
			}
			text, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				b.Fatal(err)
			}
			n += v
		}
	}
	return n
}
