package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/admin"
	"github.com/rlsidecar/rlsidecar/internal/redis"
)

const (
	// reportEvery is the interval at which a sidecar stores its report for the others. The interval varies
	// randomly, by up to 5 % in each direction.
	reportEvery = 10 * time.Second
	// tidyEvery is the number of reports after which the reports of stopped sidecars are removed.
	tidyEvery     = 30
	reportTimeout = 2 * time.Second
)

// fleet stores the report of this process in Redis, and reads the reports of the sidecars that share that
// Redis.
type fleet struct {
	store *redis.Store
	id    string

	mu      sync.Mutex
	lastErr error // the error of the last attempt to store the report, or nil; guarded by mu
}

// newFleet returns the fleet of this process, or nil without Redis or without an admin listener.
func (s *server) newFleet() *fleet {
	if len(s.stack.redis) == 0 || s.watch == nil {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		host = "sidecar"
	}
	return &fleet{store: s.stack.redis[0], id: host[:min(len(host), 64)] + "-" + strings.ToLower(rand.Text()[:6])}
}

func (f *fleet) run(ctx context.Context, report func() admin.Report) {
	for n := 0; ; n++ {
		err := f.report(ctx, report())
		if n%tidyEvery == 0 && err == nil {
			_, _ = f.members(ctx) // members removes old reports; the admin page shows an error of members when it reads them
		}
		f.mu.Lock()
		f.lastErr = err
		f.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(reportEvery - reportEvery/20 + mathrand.N(reportEvery/10)):
		}
	}
}

func (f *fleet) report(ctx context.Context, report admin.Report) error {
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	return f.store.Report(ctx, f.id, string(text))
}

func (f *fleet) members(ctx context.Context) ([]redis.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	return f.store.Fleet(ctx)
}

func (f *fleet) read(ctx context.Context) admin.Fleet {
	list, err := f.members(ctx)
	f.mu.Lock()
	problem := errors.Join(f.lastErr, err)
	f.mu.Unlock()
	out := admin.Fleet{Self: f.id, Problem: problem}
	for _, m := range list {
		member := admin.Member{ID: m.ID, Age: m.Age}
		if json.Unmarshal([]byte(m.Report), &member.Report) == nil {
			out.Members = append(out.Members, member)
		}
	}
	return out
}

func (s *server) report() admin.Report {
	r := admin.Report{Version: s.config.Version, Started: s.watch.started.Truncate(time.Second).UTC()}
	if len(r.Version) > 64 {
		r.Version = r.Version[:64]
	}
	if current := s.limiter.Current(); current != nil {
		r.Config, r.Loaded = current.Hash[:min(len(current.Hash), 12)], s.lastReload().Loaded.Truncate(time.Second).UTC()
	}
	r.Allowed, r.Denied = s.metrics.Requests()
	if list := s.conditions.List(); len(list) > 0 {
		r.Wrong = list[0].Name[:min(len(list[0].Name), 100)]
	}
	return r
}
