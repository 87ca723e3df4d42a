package main

import (
	"fmt"
	"slices"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

// measureRequests sends the requests of c to server. Answers are checked: with denied, each key may be allowed once,
// and otherwise no request may be denied.
func measureRequests(a *app, server *child, c load.Config, denied bool) (load.Result, error) {
	c.Target, c.PID = server.address, server.pid()
	r, err := load.Run(a, c)
	wrong := r.OverLimit
	if denied {
		wrong = max(0, r.OK-int64(c.Keys))
	}
	switch {
	case err != nil:
		return r, fmt.Errorf("%s: %w", server.name, err)
	case r.Failed() > 0:
		return r, fmt.Errorf("%s: errors: %v", server.name, &r)
	case r.Answers() == 0:
		return r, fmt.Errorf("%s: no answers", server.name)
	case wrong > 0:
		return r, fmt.Errorf("%s: wrong answers: %v", server.name, &r)
	}
	return r, nil
}

// median returns the median of values. values must not be empty.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}
