package server

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/rlsidecar/rlsidecar/internal/admin"
	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// follow reads the configuration again when the files have changed, and when asked to.
func (s *server) follow(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-s.config.Hangup:
		}
		for _, p := range s.load() {
			if !p.Warning {
				s.log.Error("configuration refused; the one before it stays in use", zap.Stringer("problem", p))
			}
		}
	}
}

// load reads the configuration and puts it to use, unless there is a mistake in it. It logs
// warnings; mistakes are the caller's to tell.
func (s *server) load() config.Problems {
	snapshot, problems := config.Load(s.config.Paths, s.config.Defaults)
	now := time.Now()
	s.metrics.Loaded(snapshot != nil, now)
	for _, p := range problems {
		if p.Warning {
			s.log.Warn("configuration", zap.Stringer("warning", p))
		}
	}
	if snapshot != nil {
		limits := owners(snapshot)
		if current := s.limiter.Current(); current == nil || current.Hash != snapshot.Hash {
			s.swap(snapshot, limits)
		}
		s.log.Info("configuration loaded", zap.String("hash", snapshot.Hash), zap.Int("limits", len(limits)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reload.Paths = s.config.Paths
	if snapshot != nil {
		s.reload.Loaded, s.reload.Failed, s.reload.Problems = now, time.Time{}, ""
	} else {
		s.reload.Failed, s.reload.Problems = now, problems.Error()
	}
	return problems
}

// owners are those who share the room of the store.
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
