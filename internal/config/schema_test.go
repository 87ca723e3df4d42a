package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func asJSON(v any) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			var err error
			if v[key], err = asJSON(v[key]); err != nil {
				return nil, err
			}
		}
	case map[any]any:
		m := map[string]any{}
		for key, value := range v {
			name, isText := key.(string)
			if !isText && fmt.Sprint(key) != "7" { // metadata in testdata uses the number 7 as a key
				return nil, fmt.Errorf("key %v is not text", key)
			}
			if !isText {
				name = fmt.Sprint(key)
			}
			m[name] = value
		}
		return asJSON(m)
	case []any:
		for i := range v {
			var err error
			if v[i], err = asJSON(v[i]); err != nil {
				return nil, err
			}
		}
	case time.Time:
		return v.Format(time.RFC3339Nano), nil
	case int:
		return json.Number(fmt.Sprint(v)), nil
	case uint64:
		return json.Number(fmt.Sprint(v)), nil
	}
	return v, nil
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	must(t, err)
	c := jsonschema.NewCompiler()
	must(t, c.AddResource("schema.json", doc))
	s, err := c.Compile("schema.json")
	must(t, err)
	return s
}

func validate(s *jsonschema.Schema, f File) error {
	roots, err := decode(bytes.NewReader(f.Data))
	for _, root := range roots {
		if isNull(root) && len(roots) > 1 {
			continue
		}
		var v any
		if err := root.Decode(&v); err != nil {
			return err
		}
		if v, err := asJSON(v); err != nil {
			return err
		} else if err := s.Validate(v); err != nil {
			return err
		}
	}
	if err == nil && len(roots) == 0 {
		return s.Validate(nil)
	}
	return err
}

func TestSchemaAcceptsGoodFiles(t *testing.T) {
	s := compileSchema(t)
	for _, f := range fixtures(t, ".good.yaml") {
		if f.Name == "warnings.good.yaml" {
			continue // the schema refuses a part of this file on purpose
		}
		if err := validate(s, f); err != nil {
			t.Errorf("%s: %#v", f.Name, err)
		}
	}
}

// The schema must refuse each bad file. If a schema cannot detect the mistake, the first line of the file
// states this.
func TestSchemaRefusesBadFiles(t *testing.T) {
	s := compileSchema(t)
	for _, f := range fixtures(t, ".bad.yaml") {
		beyondSchema := strings.HasPrefix(string(f.Data), "# A schema cannot detect this mistake.\n")
		if strings.HasPrefix(f.Name, "alias-") || f.Name == "metadata.bad.yaml" {
			continue // these files cannot be converted to JSON
		}
		err := validate(s, f)
		if refused := err != nil; refused == beyondSchema {
			t.Errorf("%s: refused %t (%v), want %t, according to the first line of the file", f.Name, refused, err, !beyondSchema)
		}
	}
}

func schemaAt(t *testing.T, name string) map[string]any {
	t.Helper()
	var whole map[string]any
	must(t, json.Unmarshal(Schema, &whole))
	if name == "" {
		return whole
	}
	part, ok := whole["$defs"].(map[string]any)[name].(map[string]any)
	if !ok {
		t.Fatalf("the schema lacks $defs/%s; want it", name)
	}
	return part
}

func property(t *testing.T, level map[string]any, key string) map[string]any {
	t.Helper()
	p := level["properties"].(map[string]any)[key].(map[string]any)
	if ref, ok := p["$ref"].(string); ok {
		return schemaAt(t, strings.TrimPrefix(ref, "#/$defs/"))
	}
	return p
}

// schemaTypes maps names under $defs of the schema to the types of the parser. The name "" means the top level.
var schemaTypes = map[string]reflect.Type{
	"": reflect.TypeFor[document](), "descriptor": reflect.TypeFor[descriptor](), "rate_limit": reflect.TypeFor[limit](),
	"named_limit": reflect.TypeFor[limit](), "guaranteed": reflect.TypeFor[guaranteed](), "lease": reflect.TypeFor[lease](), "replacement": reflect.TypeFor[replacement](),
	"auth": reflect.TypeFor[auth](), "auth_route": reflect.TypeFor[route](), "auth_entry": reflect.TypeFor[authEntry](),
}

// schemaLevels returns the keys that the parser accepts at each level of schemaTypes.
func schemaLevels() map[string][]string {
	levels := map[string][]string{}
	for name, typ := range schemaTypes {
		level := levelOf(typ)
		levels[name] = slices.DeleteFunc(slices.Clone(level.keys), func(k string) bool { return name == "named_limit" && level.form(k) == "reference" })
	}
	return levels
}

func TestSchemaHasTheKeysOfTheParser(t *testing.T) {
	for name, keys := range schemaLevels() {
		level := schemaAt(t, name)
		want := slices.Sorted(slices.Values(keys))
		if got := slices.Sorted(maps.Keys(level["properties"].(map[string]any))); !slices.Equal(got, want) {
			t.Errorf("%q has the keys\n%v\nwant those of the parser\n%v", name, got, want)
		}
		if level["additionalProperties"] != false {
			t.Errorf("%q allows other keys; want false", name)
		}
	}
}

func TestEveryKeyOfTheSchemaHasADescription(t *testing.T) {
	var check func(path string, s map[string]any)
	check = func(path string, s map[string]any) {
		keys, _ := s["properties"].(map[string]any)
		for key, value := range keys {
			if p, is := value.(map[string]any); is && p["description"] == nil && property(t, s, key)["description"] == nil && s["additionalProperties"] == false {
				t.Errorf("%s/%s has no description; want one", path, key)
			}
		}
		for key, value := range s {
			if part, is := value.(map[string]any); is {
				check(path+"/"+key, part)
			}
		}
	}
	check("", schemaAt(t, ""))
}

func TestSchemaHasTheWordsOfTheParser(t *testing.T) {
	words := func(v any) (list []string) {
		for _, w := range v.([]any) {
			list = append(list, w.(string))
		}
		return slices.Sorted(slices.Values(list))
	}
	same := func(subject string, got, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: the schema has %v, want %v as in the parser", subject, got, want)
		}
	}
	same("algorithm", words(schemaAt(t, "algorithm")["enum"]), sortedKeys(algorithmNames))
	same("on_backend_failure", words(schemaAt(t, "on_backend_failure")["enum"]), sortedKeys(limiter.OnFailures))
	same("default of auth", words(property(t, schemaAt(t, "auth"), "default")["enum"]), sortedKeys(authDefaultNames))
	same("consume", words(property(t, schemaAt(t, ""), "consume")["enum"]), sortedKeys(consumeNames))
	unit := property(t, schemaAt(t, "rate_limit"), "unit")["anyOf"].([]any)
	same("unit", words(unit[0].(map[string]any)["enum"]), sortedKeys(units))
	s := compileSchema(t)
	for name := range units {
		f := File{"unit.yaml", fmt.Appendf(nil, "domain: a\ndescriptors: [{key: a, rate_limit: {unit: %s, requests_per_unit: 1}}]", strings.ToUpper(name))}
		if err := validate(s, f); err != nil {
			t.Errorf("%s: %v", f.Data, err)
		}
	}
	if most := property(t, schemaAt(t, "rate_limit"), "shards")["maximum"]; most != float64(algorithms.MaxShards) {
		t.Errorf("the schema has at most %v shards, want %d", most, algorithms.MaxShards)
	}
}

// TestSchemaDefaultsAreThoseOfTheCode checks that stating a default changes nothing. It also checks that the schema has
// a default for each boolean, for consume, on_backend_failure, and default of auth.
func TestSchemaDefaultsAreThoseOfTheCode(t *testing.T) {
	policies := func(doc map[string]any) (list []any) {
		t.Helper()
		data, err := yaml.Marshal(doc)
		must(t, err)
		s, problems := Compile([]File{{"a.yaml", data}}, Options{})
		if problems.Bad() {
			t.Fatalf("%v in\n%s; want no mistakes", problems, data)
		}
		for _, p := range s.Policies {
			p.Place.File, p.Place.Line = "", 0
			list = append(list, *p, s.Domains["a"].Alone, s.Domains["a"].OnFailure)
		}
		if s.Auth != nil {
			list = append(list, *s.Auth)
		}
		return list
	}
	bases := map[string]func(key string, value any) map[string]any{
		"": func(key string, value any) map[string]any {
			return map[string]any{"domain": "a", key: value, "descriptors": []any{map[string]any{"key": "a", "rate_limit": map[string]any{"unlimited": true}}}}
		},
		"descriptor": func(key string, value any) map[string]any {
			d := map[string]any{"key": "a", "value": "b*", "rate_limit": map[string]any{"unit": "day"}, key: value}
			return map[string]any{"domain": "a", "descriptors": []any{d}}
		},
		"rate_limit": func(key string, value any) map[string]any {
			l := map[string]any{"unit": "day", key: value}
			if levelOf(reflect.TypeFor[limit]()).form(key) == "algorithm" {
				l = map[string]any{"algorithm": "token_bucket", "rate": 5, "period": "1s", key: value}
			}
			return map[string]any{"domain": "a", "descriptors": []any{map[string]any{"key": "a", "rate_limit": l}}}
		},
		"named_limit": func(key string, value any) map[string]any {
			l := map[string]any{"algorithm": "token_bucket", "rate": 5, "period": "1s", key: value}
			return map[string]any{"domain": "a", "limits": map[string]any{"x": l}}
		},
		"auth": func(key string, value any) map[string]any {
			return map[string]any{"domain": "a", "auth": map[string]any{key: value}}
		},
		"auth_route": func(key string, value any) map[string]any {
			r := map[string]any{"descriptors": []any{[]any{map[string]any{"key": "a", "from": "path"}}}, key: value}
			return map[string]any{"domain": "a", "auth": map[string]any{"routes": []any{r}}}
		},
	}
	for name, keys := range schemaLevels() {
		for _, key := range keys {
			value, has := property(t, schemaAt(t, name), key)["default"]
			typ := schemaTypes[name]
			field := typ.Field(levelOf(typ).field[key]).Type
			switch fixed := field == reflect.TypeFor[boolean]() || field == reflect.TypeFor[authDefault]() || field == reflect.TypeFor[consume]() || field == reflect.TypeFor[failure](); {
			case !has && fixed:
				t.Errorf("%q: %q has no default in the schema; want one", name, key)
			case has && !reflect.DeepEqual(policies(bases[name](key, value)), policies(bases[name](key, nil))):
				t.Errorf("%q: stating %q: %v, which the schema calls the default, changes the compiled limits; want no change", name, key, value)
			}
		}
	}
}
