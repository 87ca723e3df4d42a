package metrics

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// These are the indexes of the reference server's counters. They have the names of its Prometheus exporter,
// so that its dashboards work. They count hits, not requests. totalHits excludes the hits within the limit;
// sum adds them.
const (
	totalHits = iota
	withinLimit
	nearLimit
	overLimit
	shadowMode
)

var hitNames = [...]string{
	totalHits: "total_hits", withinLimit: "within_limit", nearLimit: "near_limit", overLimit: "over_limit", shadowMode: "shadow_mode",
}

var hitDescs = [...]*prometheus.Desc{
	totalHits:   hitDesc(totalHits, "Hits requested."),
	withinLimit: hitDesc(withinLimit, "Hits allowed."),
	nearLimit:   hitDesc(nearLimit, "Allowed hits above 80 % of the limit. RLSIDECAR_NEAR_LIMIT_RATIO sets another share."),
	overLimit:   hitDesc(overLimit, "Hits above a limit. Of a denied request, only the hits that did not fit count."),
	shadowMode:  hitDesc(shadowMode, "Hits that would have been denied without shadow mode."),
}

func hitDesc(i int, help string) *prometheus.Desc {
	return newDesc("ratelimit_service_rate_limit_"+hitNames[i]+"{domain,key1,key2}", help)
}

const (
	// maxRuntimeSeries bounds the number of series with labels from requests. Further hits count under the
	// labels of the configuration.
	maxRuntimeSeries = 10_000
	// maxRuntimeKey bounds the key of a runtime series, in bytes. The key contains texts from the request.
	maxRuntimeKey = 256
)

// labels are the values of domain, key1 and key2. As in the reference server, deeper levels are omitted, and
// limits that differ only in deeper levels share a series.
type labels [3]string

type series struct {
	counter
	labels labels
}

func (s *series) sum(i int) uint64 {
	n := s.counter.sum(i)
	if i == totalHits {
		n += s.counter.sum(withinLimit)
	}
	return n
}

// seriesSet holds all series by their full names: domain.key_value.key_value….
type seriesSet struct {
	maxRuntime int
	most       int // bounds the series without values of requests
	levels     int // the number of levels of a descriptor whose values are distinguished

	mu      sync.RWMutex
	byName  index[string, series] // guarded by mu
	runtime map[string]*series    // by the keys that appendRuntimeKey makes; guarded by mu
}

// static returns the series with this name, or the overflow series if there is no room. It creates the series
// if necessary.
func (s *seriesSet) static(name string, l labels) *series {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byName.of(statName(name), s.most+len(s.runtime), func(name string) *series {
		if name == overflow {
			l = labels{overflow, overflow, ""}
		}
		return &series{newCounter(), l}
	})
}

// keep removes all series whose names are not in used, except the runtime series of policies.
func (s *seriesSet) keep(used map[string]bool, policies []*limiter.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	statKeys := map[string]bool{}
	if len(s.runtime) > 0 {
		for _, p := range policies {
			if p.Detailed || len(p.Extra().StatValues) > 0 {
				statKeys[p.StatKey] = true
			}
		}
	}
	kept := map[*series]bool{}
	maps.DeleteFunc(s.runtime, func(key string, one *series) bool {
		statKey, _, _ := strings.Cut(key, "\x00")
		if statKeys[statKey] {
			kept[one] = true // another key may have the same series
		}
		return !statKeys[statKey]
	})
	maps.DeleteFunc(s.byName.all, func(name string, one *series) bool { return !used[name] && !kept[one] })
}

// of returns the series of p for a request with these entries. It returns configured, the series without values of
// requests, if there is no room for another series or the values are too long.
func (s *seriesSet) of(p *limiter.Policy, entries []descriptors.Entry, configured *series) *series {
	entries = entries[:min(s.levels, len(entries))]
	var room [maxRuntimeKey]byte
	key, ok := appendRuntimeKey(room[:0], p, entries)
	if !ok {
		return configured
	}
	s.mu.RLock()
	one := s.runtime[string(key)]
	full := len(s.runtime) >= s.maxRuntime
	s.mu.RUnlock()
	switch {
	case one != nil:
		return one
	case full:
		return configured
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.runtime) >= s.maxRuntime {
		return configured
	}
	one = s.byName.of(runtimeName(p, entries), math.MaxInt, func(string) *series {
		return &series{newCounter(), runtimeLabels(p, entries)}
	})
	s.runtime[string(key)] = one
	return one
}

// appendRuntimeKey appends the key of p's runtime series: the stat key of p, and the values of the request that
// are part of the name. It returns false if the key is longer than maxRuntimeKey.
func appendRuntimeKey(b []byte, p *limiter.Policy, entries []descriptors.Entry) ([]byte, bool) {
	if len(p.StatKey) > cap(b) {
		return b, false
	}
	b = append(b, p.StatKey...)
	for i := range entries {
		if !fromRequest(p, i) {
			continue
		}
		e := &entries[i]
		if len(e.Key)+len(e.Value)+2 > cap(b)-len(b) {
			return b, false
		}
		b = append(append(append(append(b, 0), e.Key...), 0), e.Value...)
	}
	return b, true
}

// fromRequest reports whether the request's value of entry i is part of the name.
func fromRequest(p *limiter.Policy, i int) bool {
	return p.Detailed || slices.Contains(p.Extra().StatValues, i)
}

// labelsOf returns the labels of p. They come from the configuration only.
func labelsOf(p *limiter.Policy) labels {
	key, ok := strings.CutPrefix(p.StatKey, p.Domain+".")
	if !ok {
		key = p.Name
	}
	parts := strings.SplitN(statName(key), ".", 3)
	l := labels{label(p.Domain), label(parts[0])}
	if len(parts) > 1 {
		l[2] = label(parts[1])
	}
	return l
}

func runtimeLabels(p *limiter.Policy, entries []descriptors.Entry) labels {
	l := labelsOf(p)
	for i := range min(2, len(entries)) {
		if fromRequest(p, i) {
			l[1+i] = label(statName(composite(&entries[i])))
		}
	}
	return l
}

func runtimeName(p *limiter.Policy, entries []descriptors.Entry) string {
	parts := append([]string{p.Domain}, p.Extra().StatLevels...)
	for i := range entries {
		if fromRequest(p, i) && i < len(p.Extra().StatLevels) {
			parts[1+i] = composite(&entries[i])
		}
	}
	return statName(strings.Join(parts, "."))
}

// composite returns the name of an entry in the reference server.
func composite(e *descriptors.Entry) string {
	if e.Value == "" {
		return e.Key
	}
	return e.Key + "_" + e.Value
}

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// statName returns s in the form of the reference server's counter names. It also replaces characters that
// would end a name or a line in the StatsD protocol, because s may contain text from clients.
func statName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == ':' || r == '|' || unicode.IsControl(r) {
			return '_'
		}
		return r
	}, label(s))
	return ipv4.ReplaceAllStringFunc(s, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

// r.Cost must be positive.
func (s *series) add(at int, r *limiter.Result, nearRatio float32) {
	to, hits := &s.counter[at], uint64(r.Cost)
	switch r.Outcome {
	case limiter.Unlimited, limiter.Replaced:
		return
	case limiter.Allowed:
		to[withinLimit].Add(hits)
		if near, _ := split(r, nearRatio); near > 0 {
			to[nearLimit].Add(near)
		}
		return
	case limiter.Denied, limiter.Shadowed:
		near, over := split(r, nearRatio)
		to[nearLimit].Add(near)
		to[overLimit].Add(over)
		if r.Outcome == limiter.Shadowed {
			to[shadowMode].Add(hits)
		}
	case limiter.FailedAllowed, limiter.FailedDenied:
	}
	to[totalHits].Add(hits)
}

// split divides the hits of r by their position in the limit, as the reference server does. If the request
// was denied, only the hits beyond the limit count as over. All hits of a request without a limit, whose override is
// invalid, count as over.
func split(r *limiter.Result, nearRatio float32) (near, over uint64) {
	if r.Policy == nil {
		return 0, uint64(r.Cost)
	}
	limit := r.Policy.Limit.Capacity
	from := int64(float32(limit) * nearRatio)
	left := r.Decision.Remaining // will be the units that remained before these hits
	switch {
	case r.Outcome == limiter.Allowed: // Remaining does not include these hits
		left += r.Cost
	case r.Policy.Limit.TakesDenied: // Value may be below zero
		left = r.Decision.Value + r.Cost
	}
	left = min(max(0, left), limit)
	before := limit - left
	if fits := left - r.Cost; fits >= 0 {
		return uint64(max(0, before+r.Cost-max(from, before))), 0
	}
	return uint64(left - max(0, min(from-before, left))), uint64(r.Cost - left)
}

func (s *seriesSet) collect(send func(*prometheus.Desc, uint64, ...string)) {
	sums := map[labels]*[len(hitDescs)]uint64{}
	s.mu.RLock()
	for _, one := range s.byName.all {
		sum := sums[one.labels]
		if sum == nil {
			sum = new([len(hitDescs)]uint64)
			sums[one.labels] = sum
		}
		for i := range sum {
			sum[i] += one.sum(i)
		}
	}
	s.mu.RUnlock()
	for l, sum := range sums {
		for i, desc := range hitDescs {
			send(desc, sum[i], l[:]...)
		}
	}
}
