package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Inline compiles a limit of d that comes with a request. text is a JSON object with the numbers of a named
// limit, parsed as strictly as a file. The other settings are the defaults of the domain. The limit never
// shares buckets with a limit in a file, even if the names are equal.
func Inline(d *limiter.Domain, name string, text []byte) (*limiter.Policy, error) {
	if err := checkInlineKeys(text); err != nil {
		return nil, err
	}
	domain, err := json.Marshal(d.Name)
	if err != nil {
		return nil, err
	}
	as, err := json.Marshal(name)
	if err != nil {
		return nil, err
	}
	file := File{Name: "config", Data: fmt.Appendf(nil, `{"domain": %s, "limits": {%s: %s}}`, domain, as, text)} // every JSON text is valid YAML
	s, problems := Compile([]File{file}, Options{OnFailure: d.OnFailure, LocalShare: d.LocalShare})
	for _, p := range problems {
		if !p.Warning {
			return nil, errors.New(p.Message)
		}
	}
	p := *s.Domains[d.Name].Named[name]
	p.Index, p.Place, p.StatKey = -1, limiter.Place{}, ""
	p.Owner = owner(d.Name) + "/#inline"
	p.Prefix = descriptors.Prefix(d.Name, "inline", name, p.Limit.Kind)
	more := *p.Extra()
	more.Slot = d.Slot
	p.Extras = &more
	return &p, nil
}

func checkInlineKeys(text []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		return errors.New("must be an object")
	}
	known := inlineKeys()
	for _, key := range sortedKeys(keys) {
		if !slices.Contains(known, key) {
			return fmt.Errorf("unknown field %q; it has %s", descriptors.Printable(key), strings.Join(known, ", "))
		}
	}
	return nil
}

func inlineKeys() (list []string) {
	for field := range reflect.TypeFor[limit]().Fields() {
		if key := field.Tag.Get("key"); field.Tag.Get("form") == "algorithm" && key != "max_delay" && key != "then" {
			list = append(list, key)
		}
	}
	return list
}
