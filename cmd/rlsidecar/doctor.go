package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/server"
	"github.com/rlsidecar/rlsidecar/pkg/backend/redis"
)

type doctorCmd struct {
	redisFlags
	Wait   time.Duration `default:"5s" help:"How long to wait for answers (${default})."`
	Format string        `enum:"text,json" default:"text" help:"text or json."`
}

// Help is shown by doctor --help.
func (doctorCmd) Help() string {
	return `Asks each master: can it be reached, is it recent enough, may the script run,
may the user do all that limits need, could live keys be evicted, are all slots
served, do the clocks agree, and how long does it take compared with
--backend-timeout. Writes one key, and removes it. Exits 1 if limits cannot be kept.

Example:

  rlsidecar doctor --redis-url redis://localhost:6379`
}

// Run examines the Redis that serve would use.
func (c *doctorCmd) Run(a *app) error {
	if a.reference.err != nil {
		return exitError{exitUsage, a.reference.err}
	}
	if c.RedisURL == "" {
		return exitError{exitUsage, fmt.Errorf("--redis-url is needed: it says which Redis to examine")}
	}
	settings := c.redis()
	settings.Timeout = max(settings.Timeout, time.Second) // being slow is measured, and is no reason to give up
	stores, err := server.OpenRedis(settings)
	if err != nil {
		return exitError{exitUsage, err}
	}
	ctx, cancel := context.WithTimeout(a.ctx, c.Wait)
	defer cancel()
	var found []redis.Finding
	for _, store := range stores {
		found = append(found, store.Examine(ctx, c.BackendTimeout)...)
		store.Close()
	}
	if c.Format == "json" {
		e := json.NewEncoder(a.stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(found); err != nil {
			return err
		}
	}
	bad := false
	for _, f := range found {
		bad = bad || f.Severity == redis.Problem
		if c.Format == "text" {
			fmt.Fprintf(a.stdout, "%-8s %s: %s: %s\n", f.Severity, f.Server, f.Check, f.Text)
		}
	}
	if bad {
		return exitError{code: exitNo}
	}
	return nil
}
