package metrics

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// The counters of the reference server, under the names that its Prometheus exporter gives them,
// for dashboards made for it. They count hits, not requests. What it derives from counts that a
// denial has raised is derived here from what is left; where a denial takes nothing, all its hits
// count as over the limit.
const (
	totalHits = iota
	withinLimit
	nearLimit
	overLimit
	shadowMode
)

var hitDescs = [...]*prometheus.Desc{
	totalHits:   hitDesc("total_hits", "Hits asked for."),
	withinLimit: hitDesc("within_limit", "Hits allowed."),
	nearLimit:   hitDesc("near_limit", "Hits allowed that were among the last of a limit: the last fifth, or what --near-limit-ratio leaves."),
	overLimit:   hitDesc("over_limit", "Hits denied."),
	shadowMode:  hitDesc("shadow_mode", "Hits that would have been denied but for shadow mode."),
}

func hitDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("ratelimit_service_rate_limit_"+name, help, []string{"domain", "key1", "key2"}, nil)
}

const (
	// maxRuntimeSeries bounds the series whose labels come from requests; what exceeds it is
	// counted under the labels that the configuration gives.
	maxRuntimeSeries = 10_000
	// maxRuntimeKey bounds the bytes of such labels.
	maxRuntimeKey = 256
)

// labels are domain, key1 and key2. As with the reference server what is further down is left
// out, and limits that differ only there are added up.
type labels [3]string

// series is the hits of one set of labels.
type series struct{ counter }

// seriesSet is all series.
type seriesSet struct {
	stripes int
	most    int // of runtime

	mu      sync.RWMutex
	all     map[labels]*series // guarded by mu
	runtime map[string]*series // by the raw keys of requests; guarded by mu
}

// static returns the series of l, made if need be, and notes l in kept, if given.
func (s *seriesSet) static(l labels, kept map[labels]bool) *series {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept != nil {
		kept[l] = true
	}
	return s.get(l)
}

// get requires s.mu.
func (s *seriesSet) get(l labels) *series {
	if s.all == nil {
		s.all, s.runtime = map[labels]*series{}, map[string]*series{}
	}
	one := s.all[l]
	if one == nil {
		one = &series{newCounter(s.stripes)}
		s.all[l] = one
	}
	return one
}

// keep drops all series but static ones and those that requests to one of statKeys made.
func (s *seriesSet) keep(static map[labels]bool, statKeys map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := map[*series]bool{}
	for key, one := range s.runtime {
		if statKey, _, _ := strings.Cut(key, "\x00"); statKeys[statKey] {
			kept[one] = true
		} else {
			delete(s.runtime, key)
		}
	}
	for l, one := range s.all {
		if !static[l] && !kept[one] {
			delete(s.all, l)
		}
	}
}

// of is the series for a request with these entries, or static where it would be one too many.
func (s *seriesSet) of(p *descriptors.Policy, entries []descriptors.Entry, static *series) *series {
	var room [maxRuntimeKey]byte
	key, ok := appendRuntimeKey(room[:0], p, entries)
	if !ok {
		return static
	}
	s.mu.RLock()
	one := s.runtime[string(key)]
	full := len(s.runtime) >= s.most
	s.mu.RUnlock()
	switch {
	case one != nil:
		return one
	case full:
		return static
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.runtime) >= s.most {
		return static
	}
	one = s.get(runtimeLabels(p, entries))
	s.runtime[string(key)] = one
	return one
}

// appendRuntimeKey appends what tells the runtime series of p apart: its stat key, and the values
// that go into the two labels. It fails where they are longer than a label should be.
func appendRuntimeKey(b []byte, p *descriptors.Policy, entries []descriptors.Entry) ([]byte, bool) {
	if len(p.StatKey) > cap(b) {
		return b, false
	}
	b = append(b, p.StatKey...)
	for i := range min(2, len(entries)) {
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

// fromRequest tells whether the value of entry i goes into the labels.
func fromRequest(p *descriptors.Policy, i int) bool {
	return p.Detailed || slices.Contains(p.StatValues, i)
}

// labelsOf are the labels that the configuration gives p.
func labelsOf(p *descriptors.Policy) labels {
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

// runtimeLabels are labelsOf p with the values of a request put in.
func runtimeLabels(p *descriptors.Policy, entries []descriptors.Entry) labels {
	l := labelsOf(p)
	for i := range min(2, len(entries)) {
		if fromRequest(p, i) {
			l[1+i] = entries[i].Key
			if entries[i].Value != "" {
				l[1+i] += "_" + entries[i].Value
			}
			l[1+i] = label(statName(l[1+i]))
		}
	}
	return l
}

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

var statReplacer = strings.NewReplacer(":", "_", "|", "_")

// statName is s as the reference server names a counter.
func statName(s string) string {
	return ipv4.ReplaceAllStringFunc(statReplacer.Replace(s), func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

// add counts r, whose cost is positive.
func (s *series) add(at int, r *limiter.Result, nearRatio float32) {
	to, hits := &s.counter[at], uint64(r.Cost)
	switch r.Outcome {
	case limiter.Unlimited, limiter.Replaced:
		return
	case limiter.Allowed:
		to[withinLimit].Add(hits)
		limit := r.Policy.Limit.Capacity
		if near := limit - r.Decision.Remaining - int64(float32(limit)*nearRatio); near > 0 {
			to[nearLimit].Add(min(hits, uint64(near)))
		}
	case limiter.Denied:
		to[overLimit].Add(hits)
	case limiter.Shadowed:
		to[overLimit].Add(hits)
		to[shadowMode].Add(hits)
	case limiter.FailedAllowed, limiter.FailedDenied:
	}
	to[totalHits].Add(hits)
}

func (s *seriesSet) collect(send func(*prometheus.Desc, uint64, ...string)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for l, one := range s.all {
		for i, desc := range hitDescs {
			send(desc, one.sum(i), l[:]...)
		}
	}
}
