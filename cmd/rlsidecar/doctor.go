package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/server"
)

type doctorCmd struct {
	Redis server.Redis  `embed:""`
	Wait  time.Duration `default:"5s" help:"Maximum duration of the whole check (${default})."`
	format
}

func (doctorCmd) Help() string {
	return `Checks each Redis master:

  - the connection, the version and the clock
  - whether the user may run the script and all commands that limits need
  - whether Redis could evict live keys
  - how long Redis may stop answering while it removes expired keys
  - whether all slots of a cluster are served
  - the response time, compared with --backend-timeout

Give it the same Redis flags or variables as serve. It writes one key and deletes it. Exits with 1 if Redis cannot keep limits.

Example:

  rlsidecar doctor --redis-url redis://localhost:6379`
}

func (c *doctorCmd) Run(a *app) error {
	if a.reference.err != nil {
		return exitError{exitUsage, a.reference.err}
	}
	if c.Redis.URL == "" {
		return exitError{exitUsage, fmt.Errorf("--redis-url is missing; give the URL of the Redis to check")}
	}
	settings := c.Redis
	settings.Timeout = max(settings.Timeout, time.Second) // longer than for serve, because doctor measures slow answers too
	stores, err := server.OpenRedis(settings)
	if err != nil {
		return exitError{exitUsage, err}
	}
	ctx, cancel := context.WithTimeout(a.ctx, c.Wait)
	defer cancel()
	var found []redis.Finding
	for _, store := range stores {
		found = append(found, store.Examine(ctx, c.Redis.Timeout)...)
		store.Close()
	}
	err = c.print(a.stdout, found, "{{range .}}\n{{printf `%-8s` .Severity}} {{.Server}}: {{.Check}}: {{.Text}}\n{{end}}\n")
	if err == nil && slices.ContainsFunc(found, func(f redis.Finding) bool { return f.Severity == redis.Problem }) {
		return exitError{code: exitNo}
	}
	return err
}
