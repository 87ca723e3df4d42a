package docgen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// schema is the part of a JSON Schema that the pages describe. Properties and definitions keep their order.
type schema struct {
	Ref         string            `json:"$ref"`
	Description string            `json:"description"`
	Type        any               `json:"type"`
	Const       any               `json:"const"`
	Enum        []any             `json:"enum"`
	Default     json.RawMessage   `json:"default"`
	Minimum     json.Number       `json:"minimum"`
	Maximum     json.Number       `json:"maximum"`
	MaxLength   int               `json:"maxLength"`
	MaxItems    int               `json:"maxItems"`
	Required    []string          `json:"required"`
	Items       *schema           `json:"items"`
	OneOf       []schema          `json:"oneOf"`
	AnyOf       []schema          `json:"anyOf"`
	AllOf       []schema          `json:"allOf"`
	Properties  ordered[property] `json:"properties"`
	Defs        ordered[schema]   `json:"$defs"`
	Not         json.RawMessage   `json:"not"`
	Others      others            `json:"additionalProperties"`
}

// property is a schema, or the value false, which forbids the key.
type property struct{ schema }

// forbidden reports whether no value is valid.
func (p *property) forbidden() bool { return string(p.Not) == "{}" }

// others is the schema of all keys that an object does not name. It is nil if they are forbidden or may have any value.
type others struct{ *schema }

func (o *others) UnmarshalJSON(text []byte) error {
	if text[0] != '{' {
		return nil
	}
	return json.Unmarshal(text, &o.schema)
}

func (p *property) UnmarshalJSON(text []byte) error {
	if string(text) == "false" {
		return nil
	}
	return json.Unmarshal(text, &p.schema)
}

// ordered is an object whose keys stay in their order.
type ordered[T any] struct {
	keys []string
	of   map[string]*T
}

func (o *ordered[T]) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return err
	}
	o.of = make(map[string]*T)
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		value := new(T)
		if err := d.Decode(value); err != nil {
			return err
		}
		o.keys = append(o.keys, key.(string))
		o.of[key.(string)] = value
	}
	return nil
}

type schemas map[string]*schema

// resolve returns the schema to which s refers, or s itself if it has no reference or the target is missing. A
// description or a default beside a reference takes precedence over that of its target.
func (all schemas) resolve(s *schema) schema {
	if s.Ref == "" {
		return *s
	}
	named, ok := all[last(s.Ref)]
	if !ok {
		return *s
	}
	merged := all.resolve(named)
	if s.Description != "" {
		merged.Description = s.Description
	}
	if s.Default != nil {
		merged.Default = s.Default
	}
	return merged
}

// plain reports whether s is an object with one or two keys, without a description because the names explain it. The pages describe such an object
// where it is used.
func (s *schema) plain() bool {
	for _, of := range s.Properties.of {
		if of.Description != "" {
			return false
		}
	}
	return s.Description == "" && len(s.Properties.keys) > 0 && len(s.Properties.keys) < 3
}

// whole returns s with the keys of all schemas that it combines (allOf).
func (all schemas) whole(s schema) schema {
	for i := range s.AllOf {
		part := all.whole(all.resolve(&s.AllOf[i]))
		s.Required = slices.Concat(s.Required, part.Required)
		s.Properties.keys = slices.Concat(s.Properties.keys, part.Properties.keys)
		of := maps.Clone(part.Properties.of)
		maps.Copy(of, s.Properties.of)
		s.Properties.of = of
	}
	return s
}

// kind describes the values that a schema allows. link returns a link to the section of an object, or "".
func (all schemas) kind(s *schema, link func(name string) string) string {
	if s.Ref != "" && link != nil {
		if to := link(last(s.Ref)); to != "" {
			return to
		}
	}
	for named := s; named != nil && named.Ref != ""; named = all[last(named.Ref)] {
		if last(named.Ref) == "duration" {
			return "duration"
		}
	}
	of := all.resolve(s)
	var words []string
	if link != nil && of.plain() {
		for _, key := range of.Properties.keys {
			words = append(words, code(key)+": "+all.kind(&of.Properties.of[key].schema, link))
		}
		return "object of " + strings.Join(words, ", ")
	}
	switch {
	case of.Const != nil:
		return code(fmt.Sprint(of.Const))
	case len(of.Enum) > 0:
		for _, value := range of.Enum {
			words = append(words, code(fmt.Sprint(value)))
		}
		return strings.Join(words, ", ")
	}
	switch kind := of.Type.(type) {
	case string:
		words = append(words, kind)
	case []any:
		for _, one := range kind {
			if one != "null" {
				words = append(words, one.(string))
			}
		}
	}
	if len(words) == 0 {
		for _, choices := range [][]schema{of.OneOf, of.AnyOf} {
			for i := range choices {
				if word := all.kind(&choices[i], link); word != "" && word != "null" && !slices.Contains(words, word) {
					words = append(words, word)
				}
			}
		}
	}
	if slices.Equal(words, []string{"string", "integer", "boolean"}) { // a value that may be written as any of these in YAML, but is used as text
		words = []string{"text"}
	}
	text := ""
	for i, word := range words {
		switch {
		case i == 0:
		case strings.Contains(text, ", "):
			text += ", or "
		default:
			text += " or "
		}
		text += word
	}
	if of.Items != nil && (text == "array" || text == "") {
		if text = all.kind(of.Items, link); strings.Contains(text, " or ") || strings.Contains(text, ", at most") {
			text = "(" + text + ")"
		}
		text = "list of " + text
	}
	if of.Others.schema != nil && of.Others.Ref != "" && link != nil && text == "object" {
		if to := link(last(of.Others.Ref)); to != "" {
			text = "object of " + to
		}
	}
	switch {
	case of.Minimum != "" && of.Maximum != "":
		text += fmt.Sprintf(", %s to %s", of.Minimum, of.Maximum)
	case of.Minimum != "":
		text += ", at least " + of.Minimum.String()
	case of.Maximum != "":
		text += ", at most " + of.Maximum.String()
	}
	if of.MaxLength > 0 {
		text += fmt.Sprintf(", at most %d characters", of.MaxLength)
	}
	if of.MaxItems > 0 {
		text += fmt.Sprintf(", at most %d", of.MaxItems)
	}
	return text
}

// properties lists the keys of an object. head starts each item. If inner is not nil, it returns the object
// that a value contains, and the keys of this object follow in a nested list. Otherwise the keys are a table.
func (p *page) properties(all schemas, s *schema, link func(string) string, head string, inner func(*schema) *schema) {
	for _, key := range s.Properties.keys {
		if s.Properties.of[key].forbidden() {
			continue
		}
		value := &s.Properties.of[key].schema
		of := all.resolve(value)
		standard := ""
		switch {
		case slices.Contains(s.Required, key):
			standard = "required"
		case of.Default != nil:
			standard = "default " + code(strings.Trim(string(of.Default), `"`))
		}
		if inner == nil {
			p.row("field | type | meaning", code(key), of.Description, all.kind(value, link), standard)
			continue
		}
		p.item(head, code(key), of.Description, all.kind(value, link), standard)
		if object := inner(value); object != nil {
			p.properties(all, object, link, "  "+head, inner)
		}
	}
}

// object returns the schema of the object that a value of s contains: s itself, the items of a list, or the first
// alternative (oneOf) that has keys. It returns nil if there is no object, and for a schema to which link returns a
// link.
func (all schemas) object(s *schema, link func(string) string) *schema {
	if s.Ref != "" && link(last(s.Ref)) != "" {
		return nil
	}
	of := all.resolve(s)
	if len(of.Properties.keys) > 0 {
		return &of
	}
	if of.Items != nil {
		return all.object(of.Items, link)
	}
	for i := range of.OneOf {
		if object := all.object(&of.OneOf[i], link); object != nil {
			return object
		}
	}
	return nil
}

// Config returns docs/reference/config.md. text is the JSON Schema of configuration files.
func Config(text []byte) (string, error) {
	var root schema
	if err := json.Unmarshal(text, &root); err != nil {
		return "", err
	}
	sections := []struct{ def, title string }{
		{"", "A file"}, {"descriptor", "A descriptor"}, {"rate_limit", "A limit at a descriptor: `rate_limit`"},
		{"named_limit", "A named limit: `limits`"}, {"auth", "`auth`"}, {"auth_route", "A route of `auth`"}, {"auth_entry", "An entry of a route's descriptor"},
	}
	link := func(name string) string {
		for _, s := range sections {
			if s.def == name {
				return "[" + strings.ReplaceAll(name, "_", " ") + "](#" + anchor(s.title) + ")"
			}
		}
		return ""
	}
	p := &page{}
	p.begin("Configuration files: every key", "[`schema.json`](../../internal/config/schema.json)")
	p.prose("", "[Configuration files](../config.md) and [algorithms](../algorithms.md) explain the keys together, "+
		"with examples. `rlsidecar check FILE` reports mistakes in a file.")
	p.line()
	p.line("An object is a mapping of YAML. Two types need an explanation:")
	p.line()
	p.prose("- ", "text: a word, a whole number or a boolean, which is used as it is written. Write a number with a fraction in quotes.")
	p.prose("- ", "duration: whole numbers with the units `us`, `ms`, `s`, `m`, `h`, `d` (24 hours) or `w` (7 days), such as `500ms`, `1m` or `1h30m`.")
	p.line()
	for _, s := range sections {
		of := &root
		if s.def != "" {
			if of = root.Defs.of[s.def]; of == nil {
				return "", fmt.Errorf("the schema has no %s", s.def)
			}
		}
		p.line("## ", s.title)
		p.line()
		if of.Description != "" && s.def != "" {
			p.prose("", of.Description)
			p.line()
		}
		if s.def == "named_limit" {
			of = p.likeRateLimit(of, root.Defs.of["rate_limit"], link)
		}
		p.properties(root.Defs.of, of, link, "- ", func(value *schema) *schema { return schemas(root.Defs.of).object(value, link) })
		p.line()
	}
	return strings.TrimSuffix(p.String(), "\n"), nil
}

// likeRateLimit writes which keys of a rate limit a named limit has. It returns a schema with the other keys of named.
func (p *page) likeRateLimit(named, rate *schema, link func(string) string) *schema {
	more := &schema{Required: named.Required, Properties: ordered[property]{of: named.Properties.of}}
	var without, required []string
	for _, key := range rate.Properties.keys {
		if named.Properties.of[key] == nil {
			without = append(without, code(key))
		}
	}
	for _, key := range named.Properties.keys {
		switch in := rate.Properties.of[key]; {
		case in == nil || in.forbidden():
			more.Properties.keys = append(more.Properties.keys, key)
		case slices.Contains(named.Required, key):
			required = append(required, code(key))
		}
	}
	p.prose("", "It has the keys of a "+link("rate_limit")+", except "+strings.Join(without, ", ")+". It must have "+
		strings.Join(required, ", ")+". In addition:")
	p.line()
	return more
}

func anchor(title string) string {
	keep := func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		default:
			return -1
		}
	}
	return strings.Map(keep, strings.ToLower(title))
}

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

func last(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }

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

func reference(text []byte, title, source string, introduction ...string) (string, error) {
	var api openAPI
	if err := json.Unmarshal(text, &api); err != nil {
		return "", err
	}
	all := schemas(api.Components.Schemas.of)
	link := func(name string) string {
		if s := all[name]; s != nil && len(all.whole(*s).Properties.keys) > 0 && !s.plain() {
			return "[" + name + "](#" + anchor(name) + ")"
		}
		return ""
	}
	p := &page{}
	p.begin(title, source)
	p.prose("", strings.Join(introduction, " "))
	p.line()
	p.common(&api, all, link)
	for _, path := range api.Paths.keys {
		methods := api.Paths.of[path]
		for _, method := range methods.keys {
			p.operation(&api, all, link, strings.ToUpper(method)+" "+path, methods.of[method])
		}
	}
	p.line("## Objects")
	p.line()
	for _, name := range api.Components.Schemas.keys {
		if link(name) == "" {
			continue
		}
		p.line("### ", name)
		p.line()
		s := *all[name]
		for i := range s.AllOf {
			if to := link(last(s.AllOf[i].Ref)); to != "" {
				s.Description += " It has the fields of " + to + ", and these:"
				s.AllOf = slices.Delete(slices.Clone(s.AllOf), i, i+1)
				break
			}
		}
		s = all.whole(s)
		if s.Description != "" {
			p.prose("", s.Description)
			p.line()
		}
		p.properties(all, &s, link, "- ", nil)
		p.line()
	}
	return strings.TrimSuffix(p.String(), "\n"), nil
}

func (p *page) operation(api *openAPI, all schemas, link func(string) string, name string, o *operation) {
	p.line("## `", name, "`")
	p.line()
	p.prose("", o.Summary+" "+o.Description)
	p.line()
	if len(o.Parameters) > 0 {
		for i := range o.Parameters {
			of := &o.Parameters[i]
			if of.Ref != "" {
				of = api.Components.Parameters[last(of.Ref)]
			}
			p.row("parameter | type | meaning", code(of.Name), of.Description, "in the "+of.In, all.kind(&of.Schema, link))
		}
		p.line()
	}
	if b := o.RequestBody; b != nil {
		if b.Ref != "" {
			b = api.Components.RequestBodies[last(b.Ref)]
		}
		for _, kind := range b.Content.keys {
			c := b.Content.of[kind]
			p.prose("", "The body is "+code(kind)+": "+all.kind(&c.Schema, link)+". "+b.Description)
			p.line()
			if len(c.Examples.keys) > 0 {
				p.line("```json")
				for _, example := range c.Examples.keys {
					p.line(string(c.Examples.of[example].Value))
				}
				p.line("```")
				p.line()
			}
		}
	}
	var common []string
	for _, status := range o.Responses.keys {
		if a := o.Responses.of[status]; api.common(a) {
			common = append(common, status)
		} else {
			p.answer(api, all, link, status, a)
		}
	}
	if len(common) > 0 {
		p.row("answer | body | meaning", strings.Join(common, ", "), "[as other calls](#"+anchor(commonTitle)+")")
	}
	p.line()
}

const commonTitle = "Answers that several calls have"

// common reports whether the page describes an answer once for all calls: it is shared, and few readers need it.
func (api *openAPI) common(a *answer) bool {
	switch last(a.Ref) {
	case "Unauthorized", "Forbidden", "WrongMethod", "TooSlow", "TooLarge":
		return true
	default:
		return false
	}
}

// common writes the section to which the items of the calls link.
func (p *page) common(api *openAPI, all schemas, link func(string) string) {
	p.line("## ", commonTitle)
	p.line()
	written := map[string]bool{}
	var statuses []string
	of := map[string][]*answer{}
	for _, path := range api.Paths.keys {
		methods := api.Paths.of[path]
		for _, method := range methods.keys {
			answers := methods.of[method].Responses
			for _, status := range answers.keys {
				a := answers.of[status]
				if !api.common(a) || written[a.Ref] {
					continue
				}
				written[a.Ref] = true
				if of[status] == nil {
					statuses = append(statuses, status)
				}
				of[status] = append(of[status], a)
			}
		}
	}
	slices.Sort(statuses)
	for _, status := range statuses {
		for _, a := range of[status] {
			p.answer(api, all, link, status, a)
		}
	}
	p.line()
}

func (p *page) answer(api *openAPI, all schemas, link func(string) string, status string, a *answer) {
	if a.Ref != "" {
		a = api.Components.Responses[last(a.Ref)]
	}
	var kinds []string
	for _, kind := range a.Content.keys {
		c := a.Content.of[kind]
		text := code(kind)
		if of := all.kind(&c.Schema, link); of != "" && of != "object" {
			text += ": " + of
		}
		kinds = append(kinds, text)
	}
	text := a.Description
	if names := a.Headers.keys; len(names) > 0 {
		text += " With " + code(strings.Join(names, "`, `")) + "."
	}
	p.row("answer | body | meaning", status, text, strings.Join(kinds, "; "))
}
