package docgen

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// schema is the part of a JSON Schema that the pages describe. Properties and definitions keep their order.
type schema struct {
	Ref         string          `json:"$ref"`
	Description string          `json:"description"`
	Type        any             `json:"type"`
	Const       any             `json:"const"`
	Enum        []any           `json:"enum"`
	Default     json.RawMessage `json:"default"`
	Minimum     json.Number     `json:"minimum"`
	Maximum     json.Number     `json:"maximum"`
	MaxLength   int             `json:"maxLength"`
	MaxItems    int             `json:"maxItems"`
	Required    []string        `json:"required"`
	Items       *schema         `json:"items"`
	OneOf       []schema        `json:"oneOf"`
	AnyOf       []schema        `json:"anyOf"`
	Properties  ordered[schema] `json:"properties"`
	Defs        ordered[schema] `json:"$defs"`
	Not         json.RawMessage `json:"not"`
	Others      *schema         `json:"additionalProperties"`
}

// UnmarshalJSON accepts true and false too, which describe no more than an empty schema.
func (s *schema) UnmarshalJSON(text []byte) error {
	type fields schema
	if text[0] != '{' {
		return nil
	}
	return json.Unmarshal(text, (*fields)(s))
}

// forbidden reports whether no value is valid.
func (s *schema) forbidden() bool { return string(s.Not) == "{}" }

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

// kind describes the values that a schema allows. link returns a link to the section of an object, or "".
func (all schemas) kind(s *schema, link func(name string) string) string {
	if s.Ref != "" {
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
	if of.Others != nil && of.Others.Ref != "" && text == "object" {
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

// properties writes a table of the keys of an object. The keys of an object that a value contains follow the value:
// before is the place of s in the outermost object, such as "settle.".
func (p *page) properties(all schemas, s *schema, link func(string) string, before string) {
	for _, key := range s.Properties.keys {
		if s.Properties.of[key].forbidden() {
			continue
		}
		value := s.Properties.of[key]
		of := all.resolve(value)
		standard := ""
		switch {
		case slices.Contains(s.Required, key):
			standard = "required"
		case of.Default != nil:
			standard = "default " + code(strings.Trim(string(of.Default), `"`))
		}
		p.row("field | type | meaning", code(before+key), of.Description, all.kind(value, link), standard)
		if object := all.object(value, link); object != nil {
			p.properties(all, object, link, before+key+".")
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
				return "[" + strings.ReplaceAll(name, "_", " ") + "](#" + Anchor(s.title) + ")"
			}
		}
		return ""
	}
	p := &page{}
	p.begin("Configuration files: every key", "[`schema.json`](../../internal/config/schema.json)")
	p.prose("", "[Configuration files](../config.md) and [algorithms](../algorithms.md) explain the keys together, "+
		"with examples. `rlsidecar check FILE` reports mistakes in a file.")
	p.line()
	p.prose("", "An object is a mapping of YAML. `settle.ttl` is the key `ttl` of the object `settle`. Two types need an explanation:")
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
		p.properties(root.Defs.of, of, link, "")
		p.line()
	}
	return strings.TrimSuffix(p.String(), "\n"), nil
}

// likeRateLimit writes which keys of a rate limit a named limit has. It returns a schema with the other keys of named.
func (p *page) likeRateLimit(named, rate *schema, link func(string) string) *schema {
	more := &schema{Required: named.Required, Properties: ordered[schema]{of: named.Properties.of}}
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

func last(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }
