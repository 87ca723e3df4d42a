package server

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/admin"
	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// configure loads the configuration and follows its changes until background ends. It waits for the first
// configuration, unless StartWithout is set. ctx bounds the wait. The error has type config.Problems if the
// files cannot be used.
func (s *server) configure(ctx, background context.Context, wg *sync.WaitGroup) error {
	if s.config.XDS.Server != "" {
		return s.configureXDS(ctx, background, wg)
	}
	watcher := config.NewWatcher(s.config.Paths)
	if problems := s.load(watcher); s.limiter.Current() == nil {
		return problems
	}
	changed := make(chan struct{}, 1)
	wg.Go(func() {
		watcher.Run(background, func() {
			select {
			case changed <- struct{}{}:
			default: // another reload is already pending
			}
		})
	})
	wg.Go(func() { s.follow(background, watcher, changed) })
	return nil
}

func (s *server) follow(ctx context.Context, watcher *config.Watcher, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-s.config.Hangup:
		}
		s.refused(s.load(watcher))
	}
}

// usePrevious puts the configuration before the last load in use, until the next load. author is for the log.
func (s *server) usePrevious(author string) error {
	if s.config.XDS.Server != "" {
		return errors.New("the configuration comes from a control plane")
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	previous, current := s.watch.previous, s.limiter.Current()
	if previous == nil {
		return errors.New("no earlier configuration is in memory")
	}
	s.swap(previous, owners(previous))
	s.watch.compare(current, previous)
	s.mu.Lock()
	s.reload.Loaded, s.reload.Again, s.reload.Before = time.Now(), true, current.Hash[:min(len(current.Hash), 12)]
	s.mu.Unlock()
	s.checkAuth(previous)
	s.log.Warn("the earlier configuration is in use again, until the next load", zap.String("author", descriptors.Printable(author)), zap.String("hash", previous.Hash))
	return nil
}

func (s *server) refused(problems config.Problems) {
	for _, p := range problems {
		if !p.Warning {
			s.log.Error("configuration refused; the one before it stays in use", zap.Stringer("problem", p))
		}
	}
}

// load reads the configuration and puts it in use if it is valid. It logs warnings, and returns all problems.
func (s *server) load(files *config.Watcher) config.Problems {
	s.loading.Lock()
	defer s.loading.Unlock()
	start, o := time.Now(), s.config.Defaults
	if s.limiter.Current() != nil { // requests may wait, and the configuration in use takes memory, too
		defer debug.SetGCPercent(debug.SetGCPercent(reloadGC))
		turn := start
		o.Pause = func() { // the scheduler would let the load run for 10 ms, and requests wait that long on one processor
			if time.Since(turn) > time.Millisecond {
				time.Sleep(250 * time.Microsecond)
				turn = time.Now()
			}
		}
	}
	snapshot, problems := files.Load(o)
	s.apply(snapshot, problems, s.config.Paths, start)
	return problems
}

// reloadGC is the garbage that the heap may gain before a collection during a reload, as a percentage of the live heap.
// With Go's default of 100, a reload of 100,000 limits takes a third more memory.
const reloadGC = 50

// apply puts snapshot in use. sources are the places from which it was read, and start is when reading began.
// snapshot is nil if the configuration has a mistake.
func (s *server) apply(snapshot *limiter.Snapshot, problems config.Problems, sources []string, start time.Time) {
	now := time.Now()
	for _, p := range problems {
		if p.Warning {
			s.log.Warn("configuration", zap.Stringer("warning", p))
		}
	}
	if snapshot != nil {
		limits := owners(snapshot)
		if current := s.limiter.Current(); current == nil || current.Hash != snapshot.Hash || !slices.Equal(current.Files, snapshot.Files) {
			s.swap(snapshot, limits)
			s.watch.compare(current, snapshot)
		}
		s.log.Info("configuration loaded", zap.String("hash", snapshot.Hash), zap.Int("limits", len(limits)), zap.Duration("took", time.Since(start)))
	}
	refusals := admin.Refusals(problems)
	s.mu.Lock()
	s.reload.Paths = sources
	if snapshot != nil {
		s.reload.Loaded, s.reload.Again, s.reload.Before = now, false, ""
		if s.watch != nil && s.watch.previous != nil {
			s.reload.Before = s.watch.previous.Hash[:min(len(s.watch.previous.Hash), 12)]
		}
	}
	s.reload.Failed, s.reload.Refused = time.Time{}, refusals
	if problems.Bad() {
		s.reload.Failed = now
	}
	s.mu.Unlock()
	s.metrics.Loaded(!problems.Bad(), now) // called after swap: once the metric counts a configuration, that configuration decides
	s.reportReload(problems)
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
	s.stack.forgetting(nil, true, func() { s.limiter.Swap(snapshot) })
}
