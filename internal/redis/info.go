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
	if s.cluster == nil {
		client := s.client.(*goredis.Client)
		one, err := infoOf(ctx, client, s.name)
		if err != nil {
			return nil, s.fleetError("INFO", err)
		}
		return []ServerInfo{one}, nil
	}
	var mu sync.Mutex
	err = s.cluster.client.ForEachMaster(ctx, func(ctx context.Context, client *goredis.Client) error {
		one, err := infoOf(ctx, client, client.Options().Addr)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, one)
		return nil
	})
	return all, s.fleetError("INFO", err)
}

func infoOf(ctx context.Context, client *goredis.Client, address string) (ServerInfo, error) {
	text, err := withTimeout(client, proveTimeout).Info(ctx).Result()
	if err != nil {
		return ServerInfo{}, err
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
	return i, nil
}
