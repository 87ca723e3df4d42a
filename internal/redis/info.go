package redis

import (
	"cmp"
	"context"
	"strconv"
	"sync"

	goredis "github.com/redis/go-redis/v9"
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
	return all, s.fleetError("INFO", err)
}

func infoOf(ctx context.Context, address string, client *goredis.Client) ([]ServerInfo, error) {
	text, err := withTimeout(client, proveTimeout).Info(ctx).Result()
	if err != nil {
		return nil, err
	}
	values := fields(text)
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(values[name], 10, 64) // 0 if the server does not have it
		return n
	}
	i := ServerInfo{
		Address: address, Version: "Redis " + values["redis_version"], Role: values["role"],
		Memory: number("used_memory"), MaxMemory: number("maxmemory"), Eviction: cmp.Or(values["maxmemory_policy"], "noeviction"),
	}
	if v := values["valkey_version"]; v != "" {
		i.Version = "Valkey " + v
	}
	return []ServerInfo{i}, nil
}

// eachMaster calls f with each master at the same time, and returns all results and an error if there was one.
func eachMaster[T any](ctx context.Context, s *Store, f func(ctx context.Context, server string, client *goredis.Client) ([]T, error)) (all []T, err error) {
	if s.cluster == nil {
		return f(ctx, s.name, s.client.(*goredis.Client))
	}
	var mu sync.Mutex
	err = s.cluster.client.ForEachMaster(ctx, func(ctx context.Context, client *goredis.Client) error {
		found, err := f(ctx, client.Options().Addr, client)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, found...)
		return err
	})
	return all, err
}
