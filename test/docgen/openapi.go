package docgen

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

type openAPI struct {
	Paths      ordered[ordered[operation]] `json:"paths"`
	Components struct {
		Schemas       ordered[schema]       `json:"schemas"`
		Parameters    map[string]*parameter `json:"parameters"`
		Responses     map[string]*answer    `json:"responses"`
		RequestBodies map[string]*body      `json:"requestBodies"`
	} `json:"components"`
}

type operation struct {
	Summary     string          `json:"summary"`
	Description string          `json:"description"`
	Parameters  []parameter     `json:"parameters"`
	RequestBody *body           `json:"requestBody"`
	Responses   ordered[answer] `json:"responses"`
}

type parameter struct {
	Ref         string `json:"$ref"`
	Name        string `json:"name"`
	In          string `json:"in"`
	Schema      schema `json:"schema"`
	Description string `json:"description"`
}

type body struct {
	Ref         string           `json:"$ref"`
	Description string           `json:"description"`
	Content     ordered[content] `json:"content"`
}

type content struct {
	Schema   schema         `json:"schema"`
	Examples ordered[value] `json:"examples"`
}

type value struct {
	Value json.RawMessage `json:"value"`
}

type answer struct {
	Ref         string           `json:"$ref"`
	Description string           `json:"description"`
	Headers     ordered[any]     `json:"headers"`
	Content     ordered[content] `json:"content"`
}

// HTTP returns docs/reference/http.md. text is the OpenAPI document.
func HTTP(text []byte) (string, error) {
	return reference(text, "The HTTP API: every field", "[`openapi.json`](../../internal/httpapi/openapi.json), which `GET /openapi.json` returns",
		"The HTTP listener serves these calls, by default at `http://127.0.0.1:8080`.",
		"[The HTTP API for applications](../http-api.md) and [the HTTP interface for proxies](../nginx.md) explain them.",
		"[Access](../http-api.md#access) says which of them need a token.")
}

// Operators returns docs/reference/operators-api.md. text is the OpenAPI document.
func Operators(text []byte) (string, error) {
	return reference(text, "The operators' API: every field", "[`openapi-operators.json`](../../internal/httpapi/openapi-operators.json), which `GET /api/openapi.json` returns",
		"The admin listener serves these calls, by default at `http://127.0.0.1:6070`.",
		"If the listener has a token, they require `Authorization: Bearer TOKEN`.",
		"[Operations](../operations.md#admin) and [change a limit for a while](../howto/change-a-limit-for-a-while.md) explain them.")
}

// apiPage is a page about an API.
type apiPage struct {
	page
	openAPI
	all   schemas
	uses  map[string]int  // how many calls have the answer of a reference
	parts map[string]bool // objects that only one other object has; the page describes their fields with its fields
}

// link returns a link to the section of an object, or "" if it has none.
func (p *apiPage) link(name string) string {
	if s := p.all[name]; s != nil && len(p.all.whole(*s).Properties.keys) > 0 && !s.plain() && !p.parts[name] {
		return "[" + name + "](#" + Anchor(name) + ")"
	}
	return ""
}

func reference(text []byte, title, source string, introduction ...string) (string, error) {
	p := &apiPage{uses: map[string]int{}, parts: map[string]bool{}}
	if err := json.Unmarshal(text, &p.openAPI); err != nil {
		return "", err
	}
	p.all = p.Components.Schemas.of
	for _, s := range p.all {
		for _, of := range s.Properties.of {
			if ref := one(of).Ref; ref != "" && !s.plain() && bytes.Count(text, []byte(`"`+ref+`"`)) == 1 {
				p.parts[last(ref)] = true
			}
		}
	}
	p.begin(title, source)
	p.prose("", strings.Join(introduction, " "))
	p.line()
	p.shared()
	p.calls()
	p.objects()
	return strings.TrimSuffix(p.String(), "\n"), nil
}

// one returns the schema of the items if s is that of a list, otherwise s.
func one(s *schema) *schema {
	if s.Items != nil {
		return s.Items
	}
	return s
}

func (p *apiPage) each(visit func(name string, o *operation)) {
	for _, path := range p.Paths.keys {
		methods := p.Paths.of[path]
		for _, method := range methods.keys {
			visit(code(strings.ToUpper(method)+" "+path), methods.of[method])
		}
	}
}

const sharedTitle = "Answers that several calls have"

// shared writes the answers that at least three calls have. The tables of the calls link to them.
func (p *apiPage) shared() {
	p.line("## ", sharedTitle)
	p.line()
	of := map[string][]*answer{} // by status
	p.each(func(_ string, o *operation) {
		for _, status := range o.Responses.keys {
			a := o.Responses.of[status]
			if p.uses[a.Ref]++; a.Ref != "" && p.uses[a.Ref] == 3 {
				of[status] = append(of[status], a)
			}
		}
	})
	for _, status := range slices.Sorted(maps.Keys(of)) {
		for _, a := range of[status] {
			p.row("answer | body | meaning", status, p.meaning(a), p.bodies(a))
		}
	}
	p.line()
}

// answers divides the answers of a call into its own and those of [apiPage.shared].
func (p *apiPage) answers(o *operation) (own, shared []string) {
	for _, status := range o.Responses.keys {
		if a := o.Responses.of[status]; a.Ref != "" && p.uses[a.Ref] > 2 {
			shared = append(shared, status)
		} else {
			own = append(own, status)
		}
	}
	return own, shared
}

func (p *apiPage) resolved(a *answer) *answer {
	if a.Ref != "" {
		return p.Components.Responses[last(a.Ref)]
	}
	return a
}

func (p *apiPage) meaning(a *answer) string {
	a = p.resolved(a)
	if names := a.Headers.keys; len(names) > 0 {
		return a.Description + " With " + code(strings.Join(names, "`, `")) + "."
	}
	return a.Description
}

func (p *apiPage) bodies(a *answer) string {
	a = p.resolved(a)
	var kinds []string
	for _, kind := range a.Content.keys {
		text := code(kind)
		if of := p.all.kind(&a.Content.of[kind].Schema, p.link); of != "" && of != "object" {
			text += ": " + of
		}
		kinds = append(kinds, text)
	}
	return strings.Join(kinds, "; ")
}

// calls writes a section for each call, and a table of those that have neither parameters nor a body and few answers.
func (p *apiPage) calls() {
	type call struct{ name, answers, meaning string }
	var simple []call
	parameters := map[string]string{} // the calls that describe parameters, by their description
	p.each(func(name string, o *operation) {
		own, shared := p.answers(o)
		if o.Parameters == nil && o.RequestBody == nil && len(own) < 3 {
			c := call{name: name, meaning: o.Summary + " " + o.Description}
			for _, status := range own {
				a := o.Responses.of[status]
				c.answers += status + " " + p.bodies(a) + "; "
				c.meaning += " " + status + ": " + p.meaning(a)
			}
			c.answers += strings.Join(shared, ", ")
			simple = append(simple, c)
			return
		}
		p.line("## ", name)
		p.line()
		p.prose("", o.Summary+" "+o.Description)
		p.line()
		p.parameters(name, o.Parameters, parameters)
		p.body(o.RequestBody)
		if len(own) == 1 && len(shared) > 0 {
			a := o.Responses.of[own[0]]
			p.prose("", "Answers: "+own[0]+" ("+p.bodies(a)+"): "+p.meaning(a)+" "+strings.Join(shared, ", ")+": [as other calls](#"+Anchor(sharedTitle)+").")
			p.line()
			return
		}
		for _, status := range own {
			a := o.Responses.of[status]
			p.row("answer | body | meaning", status, p.meaning(a), p.bodies(a))
		}
		if len(shared) > 0 {
			p.row("answer | body | meaning", strings.Join(shared, ", "), "[as other calls](#"+Anchor(sharedTitle)+")")
		}
		p.line()
	})
	p.line("## Calls without parameters")
	p.line()
	for _, c := range simple {
		p.row("call | answers | meaning", c.name, c.meaning, c.answers)
	}
	p.line()
}

// parameters writes the parameters of a call: a table of several, a paragraph about one, or a link to the call that has
// the same.
func (p *apiPage) parameters(name string, of []parameter, described map[string]string) {
	var rows page
	for i := range of {
		one := &of[i]
		if one.Ref != "" {
			one = p.Components.Parameters[last(one.Ref)]
		}
		kind := "in the " + one.In + "; " + p.all.kind(&one.Schema, p.link)
		if len(of) == 1 {
			p.prose("", "Parameter "+code(one.Name)+" ("+kind+"): "+one.Description)
			p.line()
			return
		}
		rows.row("parameter | type | meaning", code(one.Name), one.Description, kind)
	}
	if len(of) == 0 {
		return
	}
	if first, ok := described[rows.String()]; ok {
		p.line("It has the parameters of [", first, "](#", Anchor(first), ").")
	} else {
		described[rows.String()] = name
		p.WriteString(rows.String())
	}
	p.line()
}

func (p *apiPage) body(b *body) {
	if b == nil {
		return
	}
	if b.Ref != "" {
		b = p.Components.RequestBodies[last(b.Ref)]
	}
	for _, kind := range b.Content.keys {
		c := b.Content.of[kind]
		p.prose("", "The body is "+code(kind)+": "+p.all.kind(&c.Schema, p.link)+". "+b.Description)
		p.line()
		if len(c.Examples.keys) == 0 {
			continue
		}
		p.line("```json")
		for _, example := range c.Examples.keys {
			p.line(string(c.Examples.of[example].Value))
		}
		p.line("```")
		p.line()
	}
}

// objects writes a section for each object that is not a part of another one.
func (p *apiPage) objects() {
	p.line("## Objects")
	p.line()
	p.line("`a.b` is the field `b` of the object `a`, or of each object in the list `a`.")
	p.line()
	for _, name := range p.Components.Schemas.keys {
		if p.link(name) == "" {
			continue
		}
		p.line("### ", name)
		p.line()
		s := *p.all[name]
		for i := range s.AllOf {
			if to := p.link(last(s.AllOf[i].Ref)); to != "" {
				s.Description += " It has the fields of " + to + ", and these:"
				s.AllOf = slices.Delete(slices.Clone(s.AllOf), i, i+1)
				break
			}
		}
		s = p.all.whole(s)
		if s.Description != "" {
			p.prose("", s.Description)
			p.line()
		}
		p.properties(p.all, &s, p.link, "", func(value *schema) *schema {
			if name := last(one(value).Ref); p.parts[name] {
				return p.all[name]
			}
			return nil
		})
		p.line()
	}
}
