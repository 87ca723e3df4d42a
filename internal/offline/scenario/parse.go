package scenario

import (
	"cmp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Parse reads a file of scenarios. The File is nil if there is any problem.
func Parse(name string, data []byte) (*File, config.Problems) {
	docs, problems := config.Documents(config.File{Name: name, Data: data})
	d := &decoder{file: name, problems: problems}
	if len(docs) == 0 {
		if len(problems) == 0 {
			d.mistake(&yaml.Node{Line: 1, Column: 1}, "the file is empty")
		}
		return nil, d.problems
	}
	f := d.document(docs[0])
	if len(docs) > 1 {
		d.mistake(docs[1], "the file has a second YAML document; use one file for each document")
	}
	if len(d.problems) > 0 {
		slices.SortStableFunc(d.problems, func(a, b config.Problem) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		return nil, d.problems
	}
	return f, nil
}

func (d *decoder) document(n *yaml.Node) *File {
	f, domain := &File{}, ""
	d.mapping(n, "the file", fields{
		"config": func(v *yaml.Node) { f.Configs = d.texts(v, "config") },
		"domain": func(v *yaml.Node) { domain = d.text(v, "domain") },
		"scenarios": func(v *yaml.Node) {
			d.list(v, "scenarios", func(one *yaml.Node) { f.Scenarios = append(f.Scenarios, d.scenario(one)) })
		},
	}, "config", "scenarios")
	for i := range f.Scenarios {
		f.Scenarios[i].inherit(domain)
	}
	return f
}

func (s *Scenario) inherit(domain string) {
	for i := range s.Steps {
		if s.Steps[i].Domain == "" {
			s.Steps[i].Domain = domain
		}
	}
}

func (d *decoder) scenario(n *yaml.Node) Scenario {
	s, domain := Scenario{Place: place(n), Start: defaultStart}, ""
	d.mapping(n, "a scenario", fields{
		"name":   func(v *yaml.Node) { s.Name = d.text(v, "name") },
		"start":  func(v *yaml.Node) { s.Start = d.moment(v, "start") },
		"domain": func(v *yaml.Node) { domain = d.text(v, "domain") },
		"steps": func(v *yaml.Node) {
			now := algorithms.Micros(0)
			d.list(v, "steps", func(one *yaml.Node) {
				step := d.step(one, now)
				now = step.last()
				s.Steps = append(s.Steps, step)
			})
		},
	}, "name", "steps")
	if n := len(s.Steps); n > 0 && s.Steps[n-1].last() > algorithms.MaxTime-s.Start {
		at := s.Steps[n-1].Place
		d.mistake(&yaml.Node{Line: at.Line, Column: at.Column}, "this step is beyond the year 2112, the end of the time that is computed exactly")
	}
	s.inherit(domain)
	return s
}

// last returns the time of a step's last request, counted from the start of the scenario. If that is later than
// algorithms.MaxTime, the result is any time after MaxTime.
func (s *Step) last() algorithms.Micros {
	const most = algorithms.MaxTime + 1
	if between := algorithms.Micros(s.Times - 1); between > 0 && s.Every > most/between {
		return most
	}
	return min(most, s.At) + s.Every*algorithms.Micros(s.Times-1)
}

// step reads a step; now is the time of the last request before it.
func (d *decoder) step(n *yaml.Node, now algorithms.Micros) Step {
	s := Step{Place: place(n), At: now, Times: 1, Real: -1}
	hits, described := limiter.Descriptor{Cost: 1}, (*yaml.Node)(nil)
	d.mapping(n, "a step", fields{
		"at":       func(v *yaml.Node) { s.At = d.span(v, "at") },
		"every":    func(v *yaml.Node) { s.Every = d.span(v, "every") },
		"times":    func(v *yaml.Node) { s.Times = d.times(v) },
		"domain":   func(v *yaml.Node) { s.Domain = d.text(v, "domain") },
		"hits":     func(v *yaml.Node) { hits.State(d.integer(v, "hits")) },
		"check":    func(v *yaml.Node) { s.DryRun = d.boolean(v, "check") },
		"reserves": func(v *yaml.Node) { s.Reserves = d.text(v, "reserves") },
		"done":     func(v *yaml.Node) { s.Done = d.text(v, "done") },
		"limits": func(v *yaml.Node) {
			d.list(v, "limits", func(one *yaml.Node) { s.Limits = append(s.Limits, d.limit(one)) })
		},
		"descriptors": func(v *yaml.Node) { described = v },
		"expect":      func(v *yaml.Node) { s.Expect = d.expect(v) },
	}, "expect")
	if described != nil { // descriptors inherit the hits of the step, which may follow them in the file
		d.list(described, "descriptors", func(one *yaml.Node) { s.Descriptors = append(s.Descriptors, d.descriptor(one, hits)) })
	}
	if hits.Declared {
		s.Real = hits.Cost
	}
	d.checkStep(n, &s, now)
	return s
}

func (d *decoder) checkStep(n *yaml.Node, s *Step, now algorithms.Micros) {
	kinds := 0
	for _, is := range [...]bool{len(s.Descriptors) > 0, len(s.Limits) > 0, s.Done != ""} {
		if is {
			kinds++
		}
	}
	switch {
	case s.At < now:
		d.mistake(n, "time goes back: this step is at %s, the last request was at %s", duration.Format(s.At), duration.Format(now))
	case n.Kind == yaml.MappingNode && kinds != 1:
		d.mistake(n, "a step needs descriptors, limits or done: one of the three")
	case s.Reserves != "" && len(s.Descriptors) == 0:
		d.mistake(n, "reserves needs descriptors: only the request of a proxy reserves units that done settles")
	case s.Done != "" && (s.DryRun || s.Real < -1):
		d.mistake(n, "done cannot be combined with check, and its hits are the real cost, 0 or more")
	}
}

func (d *decoder) times(n *yaml.Node) int {
	times := d.integer(n, "times")
	if times < 1 || times > maxTimes {
		d.mistake(n, "times must be between 1 and %d", maxTimes)
		return 1
	}
	return int(times)
}

// descriptor reads key=value[,key=value]…, or a mapping that has this text as entries, and hits.
// Without hits, its cost is that of one.
func (d *decoder) descriptor(n *yaml.Node, one limiter.Descriptor) limiter.Descriptor {
	entries := func(v *yaml.Node) {
		var err error
		if one.Entries, err = descriptors.Parse(d.text(v, "a descriptor")); err != nil {
			d.mistake(v, "%v", err)
		}
	}
	if n.Kind != yaml.MappingNode {
		entries(n)
		return one
	}
	d.mapping(n, "a descriptor", fields{
		"entries": entries,
		"hits":    func(v *yaml.Node) { one.State(d.integer(v, "hits")) },
	}, "entries")
	return one
}

func (d *decoder) limit(n *yaml.Node) limiter.NamedCharge {
	charge := limiter.NamedCharge{Count: 1}
	d.mapping(n, "an item of limits", fields{
		"name":    func(v *yaml.Node) { charge.Name = d.text(v, "name") },
		"key":     func(v *yaml.Node) { charge.Key = d.texts(v, "key") },
		"count":   func(v *yaml.Node) { charge.Count = d.integer(v, "count") },
		"costs":   func(v *yaml.Node) { charge.Costs = d.costs(v) },
		"reserve": func(v *yaml.Node) { charge.Reserve = d.boolean(v, "reserve") },
	}, "name")
	if charge.Costs != nil && charge.Count != 1 {
		d.mistake(n, "an item of limits has count and costs; write one of them")
	}
	return charge
}

func (d *decoder) costs(n *yaml.Node) map[string]int64 {
	costs, known := map[string]int64{}, fields{}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i].Value
			known[name] = func(v *yaml.Node) { costs[name] = d.integer(v, name) }
		}
	}
	d.mapping(n, "costs", known)
	return costs
}

func (d *decoder) expect(n *yaml.Node) (e Expectation) {
	known := d.answer(&e)
	if n.Kind == yaml.ScalarNode {
		e.Values["ok"] = n.Value == "ok" || n.Value == "not_limited"
		switch n.Value {
		case "ok", "denied":
		case "never":
			e.Values["never"] = true
		case "not_limited":
			e.NotLimited = true
		default:
			d.mistake(n, "expect is ok, denied, never, not_limited, or a mapping such as {ok: false, retry_after: 6s}")
		}
		return e
	}
	known["limits"] = func(v *yaml.Node) {
		d.list(v, "limits", func(one *yaml.Node) { e.Limits = append(e.Limits, d.expectLimit(one)) })
	}
	d.mapping(n, "expect", known)
	return e
}

func (d *decoder) expectLimit(n *yaml.Node) LimitExpectation {
	e := LimitExpectation{Place: place(n)}
	known := d.answer(&e.Expectation)
	known["name"] = func(v *yaml.Node) { e.Name = d.text(v, "name") }
	known["key"] = func(v *yaml.Node) { e.Key = d.texts(v, "key") }
	d.mapping(n, "an expected limit", known, "name")
	return e
}

// answer returns the keys that the expected answer to a request and that of one limit have in common.
func (d *decoder) answer(e *Expectation) fields {
	e.Values = map[string]any{}
	known := fields{}
	for _, a := range aspects {
		known[a.key] = func(v *yaml.Node) { e.Values[a.key] = a.read(d, v) }
	}
	return known
}

// settlements are the values that the key settlement of an expectation accepts: how a reservation was settled,
// or why it was not.
var settlements = []string{"settled", "unknown", "late", "repeated", "none", "forged", "foreign", "changed"}

func (d *decoder) settlement(n *yaml.Node, what string) string {
	if !slices.Contains(settlements, n.Value) {
		d.mistake(n, "%s must be one of %s", what, strings.Join(settlements, ", "))
	}
	return n.Value
}
