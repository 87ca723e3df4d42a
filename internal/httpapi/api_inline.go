package httpapi

import (
	"fmt"
	"sync"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const (
	// maxInline bounds the configuration of a limit that comes with a request, in bytes of compact JSON.
	maxInline  = 2 << 10
	maxInlines = 4096
)

// inlines is a cache of limits that came with requests. They are compiled under one configuration.
type inlines struct {
	mu       sync.Mutex        // guards the fields after it
	of       *limiter.Snapshot // the configuration under which compiled was made
	compiled map[inline]*limiter.Policy
}

type inline struct{ domain, name, text string }

func (a *API) addInlineLimit(req *apiRequest) error {
	for i, text := range req.configs {
		if text == nil {
			continue
		}
		limit := &req.call.Limits[i]
		p, err := a.inline(req.call.Request.Domain, limit.Name, string(text))
		if err != nil {
			return err
		}
		limit.Inline = p
	}
	return nil
}

// inline compiles text, the configuration of the limit called name, which came with a request or is part of a
// reservation. Its errors are a *limiter.RequestError and ErrNoConfig.
func (a *API) inline(domain, name, text string) (*limiter.Policy, error) {
	if a.Inline == nil {
		return nil, &limiter.RequestError{Problem: "config in requests is off here; the sidecar must be started with --api-inline-config"}
	}
	s := a.Limiter.Current()
	if s == nil {
		return nil, limiter.ErrNoConfig
	}
	d, err := s.InlineDomain(domain, name)
	if err != nil {
		return nil, err
	}
	what := inline{d.Name, name, text}
	a.inlines.mu.Lock()
	defer a.inlines.mu.Unlock()
	if a.inlines.of != s || len(a.inlines.compiled) >= maxInlines {
		a.inlines.of, a.inlines.compiled = s, map[inline]*limiter.Policy{}
	}
	if p := a.inlines.compiled[what]; p != nil {
		return p, nil
	}
	p, err := a.Inline(d, name, []byte(text))
	if err != nil {
		return nil, &limiter.RequestError{Problem: fmt.Sprintf("config of limit %q: %v", descriptors.Printable(name), err)}
	}
	a.inlines.compiled[what] = p
	return p, nil
}
