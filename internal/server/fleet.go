package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"math"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
)

const (
	// reportEvery is the interval at which a sidecar stores its report for the others. The interval varies
	// randomly, by up to 5 % in each direction.
	reportEvery = 10 * time.Second
	// tidyEvery is the number of reports after which the reports of stopped sidecars are removed.
	tidyEvery     = 30
	reportTimeout = 2 * time.Second
)

// fleet stores the report of this process in Redis, and reads the reports of the sidecars that share that Redis, and
// what its servers report about themselves.
type fleet struct {
	stores  []*redis.Store
	id      string
	lastErr atomic.Pointer[error] // of the last attempt to store the report; nil before the first one

	reading   sync.Mutex      // held while Redis is read
	sidecars  status.Fleet    // as last read; guarded by reading
	servers   []status.Server // as last read; guarded by reading
	serversAt time.Time       // guarded by reading
	serverErr error           // guarded by reading
	readAt    time.Time       // when Redis was last asked; guarded by reading
}

// readAgainAfter is the age at which what was read from Redis is read again for a viewer.
const readAgainAfter = time.Second

// newFleet returns the fleet of this process, or nil without Redis or without an admin listener.
func (s *server) newFleet() *fleet {
	if len(s.stack.redis) == 0 || s.watch == nil {
		return nil
	}
	return &fleet{stores: s.stack.redis, id: hostname() + "-" + strings.ToLower(rand.Text()[:6])}
}

func hostname() string {
	host, _ := os.Hostname()
	return cmp.Or(host[:min(len(host), 64)], "sidecar")
}

func (f *fleet) run(ctx context.Context, report func() status.Report) {
	for n := 0; ; n++ {
		err := f.report(ctx, report())
		if n%tidyEvery == 0 && err == nil {
			_, _ = f.members(ctx) // members removes old reports; the admin page shows an error of members when it reads them
		}
		f.lastErr.Store(&err)
		if !sleep(ctx, reportEvery-reportEvery/20+mathrand.N(reportEvery/10)) {
			return
		}
	}
}

func (f *fleet) report(ctx context.Context, report status.Report) error {
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	return f.stores[0].Report(ctx, f.id, string(text))
}

func (f *fleet) members(ctx context.Context) ([]redis.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	return f.stores[0].Fleet(ctx)
}

// read returns the sidecars and the servers. What cannot be read is as it was read last.
func (f *fleet) read(ctx context.Context) (sidecars status.Fleet, store status.Store) {
	f.reading.Lock()
	defer f.reading.Unlock()
	if now := time.Now(); now.Sub(f.readAt) > readAgainAfter {
		f.readServers(ctx, now)
		f.readSidecars(ctx, now)
		f.readAt = time.Now()
	}
	sidecars, store = f.sidecars, status.Store{Kind: "redis", Servers: f.servers, AsOf: f.serversAt}
	if f.serverErr != nil {
		store.Problem = f.serverErr.Error()
	}
	return sidecars, store
}

// readServers reads the servers. The caller holds f.reading.
func (f *fleet) readServers(ctx context.Context, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var servers []status.Server
	for _, store := range f.stores {
		infos, err := store.Info(ctx)
		if f.serverErr = err; err != nil {
			return
		}
		for _, i := range infos {
			servers = append(servers, status.Server(i))
		}
	}
	slices.SortFunc(servers, func(a, b status.Server) int { return cmp.Compare(a.Address, b.Address) })
	f.servers, f.serversAt = servers, now
}

// readSidecars reads the sidecars. The caller holds f.reading.
func (f *fleet) readSidecars(ctx context.Context, now time.Time) {
	f.sidecars.Self = f.id
	if f.serverErr != nil && !errors.Is(f.serverErr, redis.ErrNotPermitted) { // the next call would wait as long
		f.sidecars.Problem = f.serverErr.Error()
		return
	}
	list, err := f.members(ctx)
	problem := err
	if last := f.lastErr.Load(); last != nil {
		problem = errors.Join(*last, err)
	}
	if f.sidecars.Problem = ""; problem != nil {
		f.sidecars.Problem = problem.Error()
	}
	if err != nil && list == nil {
		return
	}
	f.sidecars.Sidecars, f.sidecars.AsOf = []status.Sidecar{}, now
	for _, m := range list {
		one := status.Sidecar{ID: m.ID, Age: m.Age.Seconds()}
		if json.Unmarshal([]byte(m.Report), &one.Report) == nil {
			f.sidecars.Sidecars = append(f.sidecars.Sidecars, one)
		}
	}
	slices.SortFunc(f.sidecars.Sidecars, func(a, b status.Sidecar) int { return cmp.Compare(a.ID, b.ID) })
}

// report returns the Report of this process. Only fleet.run calls it.
func (s *server) report() status.Report {
	w := s.watch
	r := status.Report{Version: s.config.Version[:min(len(s.config.Version), 64)], Link: w.link, Started: w.started.Truncate(time.Second).UTC()}
	if current := s.limiter.Current(); current != nil {
		r.Config, r.Loaded = current.Hash[:min(len(current.Hash), 12)], s.lastReload().Loaded.Truncate(time.Second).UTC()
	}
	requests := s.metrics.Requests()
	r.Allowed, r.Denied = requests.Allowed, requests.Denied
	rates := w.history.Rate()
	r.AllowedRate, r.DeniedRate = round(rates.Allowed), round(rates.Denied)
	now, used := time.Now(), processorTime()
	if seconds := now.Sub(w.reportedAt).Seconds(); !w.reportedAt.IsZero() && seconds > 0 {
		r.Load = round((used - w.reportedUse).Seconds() / seconds)
	}
	w.reportedAt, w.reportedUse = now, used
	if list := s.conditions.List(); len(list) > 0 {
		r.Wrong = list[0].Name[:min(len(list[0].Name), 100)]
	}
	return r
}

func round(x float64) float64 { return math.Round(x*100) / 100 }
