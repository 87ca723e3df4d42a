package simulate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// field is the number of a field in the lines of an access log. Numbers from firstHeader on are the request
// headers that a template contains.
type field int

const (
	host     field = iota // the client's address
	method                // GET
	path                  // without the query
	query                 // without the "?"
	protocol              // HTTP/1.1
	status                // 200
	user                  // the name with which the client logged in
	fragment              // the part of the target from "#" on
	firstHeader
)

// letters are the directives of a template. They are those of Apache and goaccess.
var letters = map[byte]field{'h': host, 'm': method, 'U': path, 'q': query, 'H': protocol, 's': status, 'u': user}

// record has the fields of one line of an access log; "" means that the line does not have the field.
type record []string

func (r record) reset() { clear(r) }

// Templates make descriptors from the lines of an access log.
type Templates struct {
	format      Format
	descriptors []template
	headers     []string // normalized names of headers; the field of a header is firstHeader + its index
	routes      *routes  // if not nil, routes make the descriptors instead of templates
}

type template []templateEntry

type templateEntry struct {
	key   string
	parts []part
}

// part is a literal text or, if the text is empty, the value of a field.
type part struct {
	text  string
	field field
}

// ParseTemplates reads descriptors in their text form, key=value[,key=value]…. Values may contain %h (the client's
// address), %m (method), %U (path without query), %q (query), %H (protocol), %s or %>s (status), %u (user), %{NAME}i (a
// request header) and %% (a percent sign).
func ParseTemplates(format Format, texts []string) (Templates, error) {
	t := Templates{format: format}
	for _, text := range texts {
		entries, err := descriptors.Parse(text)
		if err != nil {
			return Templates{}, err
		}
		d := make(template, len(entries))
		for i, e := range entries {
			d[i].key = e.Key
			if d[i].parts, err = t.parts(e.Value); err != nil {
				return Templates{}, fmt.Errorf("descriptor %q: %w", text, err)
			}
		}
		t.descriptors = append(t.descriptors, d)
	}
	return t, nil
}

func (t *Templates) parts(value string) (parts []part, err error) {
	literal := ""
	for value != "" {
		i := strings.IndexByte(value, '%')
		if i < 0 {
			i = len(value)
		}
		literal += value[:i]
		if value = value[i:]; value == "" {
			break
		}
		if strings.HasPrefix(value, "%%") {
			literal, value = literal+"%", value[2:]
			continue
		}
		if literal != "" {
			parts, literal = append(parts, part{text: literal}), ""
		}
		var f field
		if f, value, err = t.directive(value); err != nil {
			return nil, err
		}
		parts = append(parts, part{field: f})
	}
	if literal != "" {
		parts = append(parts, part{text: literal})
	}
	if len(parts) == 0 {
		return nil, errors.New("an entry has no value; write key=value")
	}
	return parts, nil
}

// directive reads the directive at the start of text, which begins with %. It returns the directive's field and the
// rest of text.
func (t *Templates) directive(text string) (f field, rest string, err error) {
	letter := strings.TrimPrefix(text[1:], ">") // in Apache, %>s is the last of several statuses; a log has only one
	if name, after, ok := strings.Cut(letter, "}i"); ok && strings.HasPrefix(name, "{") && len(name) > 1 {
		f, err = t.header(name[1:])
		return f, after, err
	}
	if letter != "" {
		if f, ok := letters[letter[0]]; ok {
			return f, letter[1:], nil
		}
	}
	return 0, "", fmt.Errorf("%q is not known; use %%h, %%m, %%U, %%q, %%H, %%s, %%u, %%{NAME}i and %%%%", text)
}

func (t *Templates) header(name string) (field, error) {
	name = headerName(name)
	if t.format == Nginx && name != "referer" && name != "user-agent" {
		return 0, fmt.Errorf("%%{%s}i is not in the combined format, which has only Referer and User-Agent", name)
	}
	for i, have := range t.headers {
		if have == name {
			return firstHeader + field(i), nil
		}
	}
	t.headers = append(t.headers, name)
	return firstHeader + field(len(t.headers)-1), nil
}

// headerName returns the normalized name of a header, in lower case and with - in place of _, because JSON logs write
// user_agent.
func headerName(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

func (t *Templates) record() record { return make(record, int(firstHeader)+len(t.headers)) }

func (t *Templates) set(r record, name, value string) {
	for i, have := range t.headers {
		if have == name {
			r[int(firstHeader)+i] = value
		}
	}
}

// apply adds the descriptors of r, or those of its route, to c. Like Envoy, it leaves out a descriptor if one of its
// values is missing.
func (t *Templates) apply(r record, c *limiter.Call) {
	if t.routes != nil {
		t.routes.apply(r, c)
		return
	}
next:
	for _, d := range t.descriptors {
		for _, e := range d {
			for _, p := range e.parts {
				if r.value(p) == "" {
					continue next
				}
			}
		}
		to := c.AddDescriptor()
		to.Cost = 1
		for _, e := range d {
			to.Entries = append(to.Entries, descriptors.Entry{Key: e.key, Value: r.fill(e.parts)})
		}
	}
}

func (r record) fill(parts []part) string {
	if len(parts) == 1 {
		return r.value(parts[0])
	}
	var text strings.Builder
	for _, p := range parts {
		text.WriteString(r.value(p))
	}
	return text.String()
}

func (r record) value(p part) string {
	if p.text != "" {
		return p.text
	}
	return r[p.field]
}
