package simulate

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const allAlgorithms = `
domain: edge
limits:
  token: {algorithm: token_bucket, rate: 5, period: 1s, capacity: 8, max_reserved: 6}
  empty: {algorithm: token_bucket, rate: 5, period: 1s, initial: 0}
  window: {algorithm: fixed_window, rate: 4, period: 1s, capacity: 6}
  sliding: {algorithm: sliding_window, rate: 5, period: 1s}
  log: {algorithm: sliding_log, rate: 4, period: 700ms}
  leaky: {algorithm: leaky_bucket, rate: 5, period: 1s, capacity: 3, max_delay: 400ms}
  sure: {algorithm: token_bucket, rate: 2, period: 1s, capacity: 5, guaranteed: {rate: 3, period: 1s}}
  over: {algorithm: token_bucket, rate: 5, period: 1s, overdraw: true, max_reserved: 9}
descriptors:
  - {key: token, limit: token}
  - {key: empty, limit: empty}
  - {key: window, limit: window}
  - {key: sliding, limit: sliding}
  - {key: log, limit: log}
  - {key: leaky, limit: leaky}
  - {key: sure, limit: sure}
  - {key: over, limit: over}
  - {key: both, limit: [token, window]}
  - {key: shadow, limit: log, shadow_mode: true}
  - {key: clock, rate_limit: {unit: second, requests_per_unit: 3}}
  - {key: pair, descriptors: [{key: second, limit: sliding}]}
---
domain: each
consume: each
limits:
  lone: {algorithm: token_bucket, rate: 5, period: 1s}
descriptors:
  - {key: lone, limit: lone}
  - {key: clock, rate_limit: {unit: second, requests_per_unit: 4}}
`

// limitsByKeys maps a domain and the keys of a descriptor to the limits that the descriptor matches. The code under
// test finds them in a tree.
var limitsByKeys = map[string][]string{
	"edge:token": {"token"}, "edge:empty": {"empty"}, "edge:window": {"window"}, "edge:sliding": {"sliding"},
	"edge:log": {"log"}, "edge:leaky": {"leaky"}, "edge:sure": {"sure"}, "edge:over": {"over"},
	"edge:both": {"token", "window"}, "edge:shadow": {"log"}, "edge:clock": {"clock"},
	"edge:pair,second": {"sliding"},
	"each:lone":        {"lone"}, "each:clock": {"clock"},
}

// reference is the reference implementation. It is as simple as possible: one map of buckets, and a list in place of
// charges and groups.
type reference struct {
	limits map[string]algorithms.Limit // by domain/name
	delay  algorithms.Micros           // the largest max_delay
	states map[string]algorithms.State
}

type matched struct {
	domain, name string
	values       []string
	terms        algorithms.Charge
	alone        bool // the limit is not part of a group
	shadow       bool
	wait         bool // the answer contains a waiting time
	decision     algorithms.Decision
}

func newReference(t *testing.T, s *limiter.Snapshot) *reference {
	t.Helper()
	w := &reference{limits: map[string]algorithms.Limit{}, states: map[string]algorithms.State{}}
	for _, p := range s.Policies {
		w.limits[p.Domain+"/"+p.Name] = *p.Limit
		w.delay = max(w.delay, p.Extra().MaxDelay)
	}
	return w
}

func (m *matched) bucket() string { return fmt.Sprintf("%s/%s%q", m.domain, m.name, m.values) }

func hashOf(values []string) uint64 {
	if len(values) == 1 {
		return xxhash.Sum64String(values[0])
	}
	var text strings.Builder
	for _, v := range values {
		text.WriteString(string(rune(len(v))) + v) // as in the real key, in which lengths below 128 take one byte
	}
	return xxhash.Sum64String(text.String())
}

func (w *reference) match(c *limiter.Call) (all []*matched) {
	for _, d := range c.Descriptors {
		var keys, values []string
		for _, e := range d.Entries {
			keys, values = append(keys, e.Key), append(values, e.Value)
		}
		for _, name := range limitsByKeys[c.Request.Domain+":"+strings.Join(keys, ",")] {
			m := &matched{domain: c.Request.Domain, name: name, values: values, shadow: keys[0] == "shadow", wait: name == "leaky"}
			m.alone = m.shadow || m.domain == "each"
			m.terms = algorithms.Charge{Cost: d.Cost, Hash: hashOf(values)}
			if name == "leaky" {
				m.terms.MaxWait = w.delay
			}
			all = append(all, m)
		}
	}
	for _, l := range c.Limits {
		domain := "edge"
		if l.Name == "lone" {
			domain = "each"
		}
		m := &matched{domain: domain, name: l.Name, values: l.Key, wait: l.Reserve || l.Name == "leaky"}
		m.terms = algorithms.Charge{Cost: l.Count, Hash: hashOf(l.Key), Reserve: l.Reserve}
		all = append(all, m)
	}
	return all
}

func (w *reference) answer(now algorithms.Micros, c *limiter.Call) []*matched {
	all := w.match(c)
	var group []algorithms.Bucket
	where := map[string]int{}
	for _, m := range all {
		if m.alone {
			continue
		}
		i, twice := where[m.bucket()]
		if !twice {
			limit := w.limits[m.domain+"/"+m.name]
			where[m.bucket()] = len(group)
			group = append(group, algorithms.Bucket{Limit: &limit, Charge: m.terms, State: w.states[m.bucket()]})
			continue
		}
		group[i].Charge.Cost += m.terms.Cost
		group[i].Charge.Reserve = group[i].Charge.Reserve && m.terms.Reserve
	}
	// If one limit of a request by name can never allow the cost, the request is a mistake and consumes nothing.
	mistake := len(c.Limits) > 0 && slices.ContainsFunc(group, func(b algorithms.Bucket) bool {
		return (!b.Limit.Overdraw || b.Charge.Reserve) && b.Charge.Cost > b.Limit.Most(b.Charge.Reserve)
	})
	for i := range group {
		group[i].Charge.DryRun = mistake
	}
	if len(group) > 0 {
		algorithms.TakeAll(now, group)
	}
	for bucket, i := range where {
		w.states[bucket] = group[i].State
	}
	for _, m := range all {
		if !m.alone {
			m.decision = group[where[m.bucket()]].Decision
			continue
		}
		limit := w.limits[m.domain+"/"+m.name]
		m.terms.DryRun = mistake
		w.states[m.bucket()], m.decision = limit.Take(w.states[m.bucket()], now, m.terms)
	}
	return all
}

type decisionLine struct {
	OK    bool            `json:"ok"`
	Retry int64           `json:"retry_after_us"`
	Error string          `json:"error"`
	Wait  *int64          `json:"wait_us"`
	Limit []decisionLimit `json:"limits"`
}

type decisionLimit struct {
	Name      string `json:"name"`
	Key       any    `json:"key"`
	OK        bool   `json:"ok"`
	Remaining int64  `json:"remaining"`
	Retry     int64  `json:"retry_after_us"`
	Error     string `json:"error"`
	Wait      *int64 `json:"wait_us"`
}

func (w *reference) line(all []*matched) decisionLine {
	line := decisionLine{OK: true, Limit: []decisionLimit{}}
	never, wait := false, (*int64)(nil)
	for _, m := range all {
		d := m.decision
		one := decisionLimit{Name: m.name, OK: d.Allowed, Remaining: d.Remaining, Retry: int64(d.RetryAfter)}
		switch len(m.values) {
		case 0:
		case 1:
			one.Key = m.values[0]
		default:
			one.Key = []any{m.values[0], m.values[1]}
		}
		if d.Never {
			one.Retry, one.Error = -1, "never"
		}
		if m.wait && d.Allowed {
			one.Wait = new(int64(d.Wait))
			if wait == nil || *wait < *one.Wait {
				wait = one.Wait
			}
		}
		if !d.Allowed && !m.shadow {
			line.OK, never = false, never || d.Never
		}
		if !m.shadow { // a limit with overdraw may be charged, and have a retry time, although it allows
			line.Retry = max(line.Retry, int64(d.RetryAfter))
		}
		line.Limit = append(line.Limit, one)
	}
	if never {
		line.Retry, line.Error = -1, "never"
	}
	if line.OK {
		line.Wait = wait
	}
	return line
}

func TestReplayAgreesWithTheReference(t *testing.T) {
	s := compiled(t, allAlgorithms)
	rapid.Check(t, func(rt *rapid.T) {
		var input []string
		now := int64(1_767_225_600_000_000)
		for range rapid.IntRange(1, 60).Draw(rt, "requests") {
			now += rapid.OneOf(rapid.Int64Range(0, 50_000), rapid.Int64Range(0, 1_500_000)).Draw(rt, "pause")
			input = append(input, drawRequest(rt, now))
		}
		decisions := strings.Split(decide(t, s, strings.Join(input, "\n"), 0), "\n")
		w := newReference(t, s)
		for i, line := range input {
			var c limiter.Call
			at, _, err := (&trace{}).read(line, &c)
			if err != nil {
				rt.Fatal(err)
			}
			want := w.line(w.answer(at, &c))
			var got decisionLine
			if err := json.Unmarshal([]byte(decisions[i]), &got); err != nil {
				rt.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				text, _ := json.Marshal(want)
				rt.Fatalf("request %d, %s:\ngot  %s\nwant %s", i, line, decisions[i], text)
			}
		}
	})
}

func drawRequest(t *rapid.T, now int64) string {
	domain := rapid.SampledFrom([]string{"edge", "edge", "each"}).Draw(t, "domain")
	cost := rapid.OneOf(rapid.Int64Range(0, 4), rapid.Int64Range(-3, 16))
	value := rapid.SampledFrom([]string{"a", "b"})
	var requests []string
	if rapid.Bool().Draw(t, "by name") {
		names := map[string][]string{"edge": {"token", "empty", "window", "sliding", "log", "leaky", "sure", "over"}, "each": {"lone"}}[domain]
		for range rapid.IntRange(1, 3).Draw(t, "requests") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			reserve := strings.Contains("token empty window lone", name) && rapid.Bool().Draw(t, "reserve")
			key := ""
			if rapid.IntRange(0, 4).Draw(t, "with key") > 0 {
				key = fmt.Sprintf(`"key":%q,`, value.Draw(t, "key"))
			}
			requests = append(requests, fmt.Sprintf(`{"name":%q,%s"count":%d,"reserve":%v}`, name, key, cost.Draw(t, "count"), reserve))
		}
		return fmt.Sprintf(`{"time_us":%d,"limits":[%s]}`, now, strings.Join(requests, ","))
	}
	keys := map[string][]string{
		"edge": {"token", "empty", "window", "sliding", "log", "leaky", "sure", "over", "both", "shadow", "clock", "pair", "none"},
		"each": {"lone", "clock"},
	}[domain]
	for range rapid.IntRange(1, 3).Draw(t, "descriptors") {
		key := rapid.SampledFrom(keys).Draw(t, "key")
		entries := fmt.Sprintf("[%q,%q]", key, value.Draw(t, "value"))
		if key == "pair" {
			entries += fmt.Sprintf(`,["second",%q]`, value.Draw(t, "value"))
		}
		requests = append(requests, fmt.Sprintf(`{"entries":[%s],"hits":%d}`, entries, cost.Draw(t, "hits")))
	}
	return fmt.Sprintf(`{"time_us":%d,"domain":%q,"descriptors":[%s]}`, now, domain, strings.Join(requests, ","))
}
