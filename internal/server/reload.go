package server

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/admin"
	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// configure loads the configuration and follows its changes until background ends. It waits for the first
// configuration, unless StartWithout is set. ctx bounds the wait. The error has type config.Problems if the
// files cannot be used.
func (s *server) configure(ctx, background context.Context, wg *sync.WaitGroup) error {
	if s.config.XDS.Server != "" {
		return s.configureXDS(ctx, background, wg)
	}
	changed := make(chan struct{}, 1)
	watcher := config.NewWatcher(s.config.Paths) // created before the files are read, so that no change is missed
	wg.Go(func() {
		watcher.Run(background, func() {
			select {
			case changed <- struct{}{}:
			default: // another reload is already pending
			}
		})
	})
	if problems, stale := s.load(); s.limiter.Current() == nil {
		return problems
	} else if problems.Bad() {
		s.refused(problems, stale)
	}
	wg.Go(func() { s.follow(background, changed) })
	return nil
}

func (s *server) follow(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-s.config.Hangup:
		}
		s.refused(s.load())
	}
}

// refused logs the mistakes among problems. stale is that of apply.
func (s *server) refused(problems config.Problems, stale []string) {
	condition := "configuration refused; the one before it stays in use"
	if len(stale) > 0 {
		condition = "configuration refused in part"
		s.log.Error("the configuration of these domains has mistakes; they keep their last valid version or, without one, are answered by on_backend_failure; the other domains are updated",
			zap.Strings("domains", stale))
	}
	for _, p := range problems {
		if !p.Warning {
			s.log.Error(condition, zap.Stringer("problem", p))
		}
	}
}

// load reads the configuration and puts it in use if it is valid. With a keeper, a mistake in one domain does not stop
// the others. load logs warnings, and returns all problems, and the stale domains of apply.
func (s *server) load() (problems config.Problems, stale []string) {
	defer s.collectMoreOften()()
	start := time.Now()
	if s.keeper != nil {
		snapshot, problems, stale := s.keeper.Load(s.config.Paths)
		s.apply(snapshot, problems, stale, s.config.Paths, start)
		return problems, stale
	}
	snapshot, problems := s.loader.Load(s.config.Paths)
	s.apply(snapshot, problems, nil, s.config.Paths, start)
	return problems, nil
}

// manyBytes is the least size, in bytes, of a configuration that counts as large. Its parsed form takes about twenty
// times as much memory.
const manyBytes = 1 << 20

// collectMoreOften reduces the memory that loading a large configuration, or the first one, needs. Until end is
// called, the garbage collector runs more often. If the configuration is large, end also returns unused memory to
// the system.
func (s *server) collectMoreOften() (end func()) {
	bytes := s.loader.Bytes
	if s.keeper != nil {
		bytes = s.keeper.Bytes
	}
	// often is the garbage that the heap may gain before a collection, as a percentage of the live heap. With
	// 25 instead of 50, a start with 100,000 limits took a fifth more processor time, and its peak was 510 MiB
	// instead of 530.
	const often = 50
	if s.limiter.Current() != nil && bytes() < manyBytes {
		return func() {}
	}
	before := debug.SetGCPercent(often)
	return func() {
		debug.SetGCPercent(before)
		if bytes() >= manyBytes {
			debug.FreeOSMemory()
		}
	}
}

// apply puts snapshot in use. sources are the places from which it was read, and start is when reading began.
// snapshot is nil if no part of the configuration can be used. stale lists the domains with a mistake, whose earlier
// version, if there is one, stays in use.
func (s *server) apply(snapshot *limiter.Snapshot, problems config.Problems, stale, sources []string, start time.Time) {
	now := time.Now()
	for _, p := range problems {
		if p.Warning {
			s.log.Warn("configuration", zap.Stringer("warning", p))
		}
	}
	if snapshot != nil {
		limits := owners(snapshot)
		if current := s.limiter.Current(); current == nil || current.Hash != snapshot.Hash {
			s.swap(snapshot, limits)
			s.watch.compare(current, snapshot)
		}
		s.log.Info("configuration loaded", zap.String("hash", snapshot.Hash), zap.Int("limits", len(limits)), zap.Duration("took", time.Since(start)))
	}
	refusals := admin.Refusals(problems)
	s.mu.Lock()
	s.reload.Paths = sources
	if snapshot != nil {
		s.reload.Loaded, s.reload.Stale = now, stale
	}
	s.reload.Failed, s.reload.Refused = time.Time{}, refusals
	if problems.Bad() {
		s.reload.Failed = now
	}
	s.mu.Unlock()
	s.metrics.Loaded(!problems.Bad(), now) // called after swap: once the metric counts a configuration, that configuration decides
	if snapshot != nil {
		s.metrics.Stale(stale)
	}
	s.reportReload(problems, stale)
	if snapshot != nil {
		s.checkAuth(snapshot)
		s.isConfigured()
	}
}

// owners returns the Owners of all limits that have buckets, sorted and each once. These limits share the room in the
// memory store.
func owners(s *limiter.Snapshot) []string {
	var list []string
	for _, p := range s.Policies {
		if !p.Unlimited {
			list = append(list, p.Owner)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (s *server) lastReload() admin.Reload {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reload
}

func (s *server) swap(snapshot *limiter.Snapshot, limits []string) {
	s.stack.memory.SetOwners(limits)
	if s.stack.lease != nil {
		s.stack.lease.Clear() // before the swap, while the limits under which the units were granted are still in use
	}
	s.limiter.Swap(snapshot)
	if s.stack.denied != nil {
		s.stack.denied.Clear() // after the swap, so that a raised limit applies at once
	}
}
