package redis

import (
	"cmp"
	"context"
	"strconv"
	"sync"
)

// ServerInfo is what a master reports about itself.
type ServerInfo struct {
	Address string
	// Version has the name of the program. Role is master or slave.
	Version, Role string
	// Memory and MaxMemory are in bytes. MaxMemory is 0 if there is no bound.
	Memory, MaxMemory int64
	// Eviction is maxmemory-policy.
	Eviction string
}

// Info returns what each master reports about itself. The Redis user needs INFO.
func (s *Store) Info(ctx context.Context) (all []ServerInfo, err error) {
	all, err = eachMaster(ctx, s, infoOf)
	return all, fleetError("info", err)
}

func infoOf(ctx context.Context, to *serverSenders) ([]ServerInfo, error) {
	info, err := to.askSoon(ctx, "info")
	if err != nil {
		return nil, err
	}
	values := fields(info.text)
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(values[name], 10, 64) // 0 if the server does not have it
		return n
	}
	i := ServerInfo{
		Address: to.server, Version: "Redis " + values["redis_version"], Role: values["role"],
		Memory: number("used_memory"), MaxMemory: number("maxmemory"), Eviction: cmp.Or(values["maxmemory_policy"], "noeviction"),
	}
	if v := values["valkey_version"]; v != "" {
		i.Version = "Valkey " + v
	}
	return []ServerInfo{i}, nil
}

// askSoon sends a command, and waits at most proveTimeout for the reply. That is longer than the timeout of a call, because
// a slow server is no mistake.
func (w *serverSenders) askSoon(ctx context.Context, command ...any) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, proveTimeout)
	defer cancel()
	replies, err := ask(ctx, w.others, command)
	if err != nil {
		return nil, err
	}
	return &replies[0], nil
}

// eachMaster calls f with each master at the same time, and returns all results and an error if there was one.
func eachMaster[T any](ctx context.Context, s *Store, f func(ctx context.Context, to *serverSenders) ([]T, error)) (all []T, err error) {
	if s.cluster == nil {
		return f(ctx, s.store.(*serverSenders))
	}
	err = s.cluster.read(ctx)
	l := s.cluster.layout.Load()
	if l == nil {
		return nil, err
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	err = nil // that of the masters matters
	for _, master := range l.masters {
		running.Go(func() {
			found, failed := f(ctx, master)
			mu.Lock()
			defer mu.Unlock()
			all, err = append(all, found...), cmp.Or(err, failed)
		})
	}
	running.Wait()
	return all, err
}
