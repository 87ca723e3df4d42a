package config

import (
	"strings"

	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// step is one level of the path to a descriptor.
type step struct {
	descriptors.Pattern
	shared bool // share_threshold: all values that match the pattern share buckets
	metric bool // value_to_metric
	// name and id describe the whole path that ends here. They are stored because the steps below use them
	// often.
	name, id string
}

// composite returns the reference server's name for the step. The form for a regular expression is this program's,
// because the reference server has none.
func (s step) composite() string {
	switch s.How {
	case descriptors.Any:
		return s.Key
	case descriptors.HasPrefix:
		return s.Key + "_" + s.Text + "*"
	case descriptors.HasSuffix:
		return s.Key + "_*" + s.Text
	case descriptors.Regex:
		return s.Key + "_~" + s.Text
	case descriptors.Exact, descriptors.Wildcard:
	}
	return s.Key + "_" + s.Text
}

func (s step) hasWildcardKey() bool { return strings.Contains(s.Key, "*") }

// matchesSeveral reports whether s matches several keys, or several but not all values.
func (s step) matchesSeveral() bool {
	return s.hasWildcardKey() || s.How != descriptors.Exact && s.How != descriptors.Any
}

// identifiesBucket reports whether the value in the request is a part of the bucket's key.
func (s step) identifiesBucket() bool {
	return !s.shared && (s.How != descriptors.Exact || s.hasWildcardKey())
}

// path lists the steps from the root to a descriptor. Only newPath and extended create paths. Do not store a
// path: the paths of one tree share memory, so the next call of extended may overwrite it. A copy for each
// descriptor took a tenth of the memory that a load allocates.
type path []step

func newPath() path { return make(path, 0, 8) }

// extended returns p with the step s added. The result overwrites the path that the last call of extended on p
// returned.
func (p path) extended(s step) path {
	s.name, s.id = s.composite(), s.pair()
	if len(p) > 0 {
		s.name, s.id = p.name()+"."+s.name, p.id()+","+s.id
	}
	return append(p, s)
}

// name returns the path as text, for the names of limits and counters, and for messages.
func (p path) name() string {
	if len(p) == 0 {
		return ""
	}
	return p[len(p)-1].name
}

// id returns the path as text such as key=value,key. Unlike the name, the id is unique.
func (p path) id() string {
	if len(p) == 0 {
		return ""
	}
	return p[len(p)-1].id
}

func (p path) levels() []string {
	parts := make([]string, len(p))
	for i, s := range p {
		parts[i] = s.composite()
	}
	return parts
}

var escape = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `=`, `\=`, `#`, `\#`)

// pair returns s as key=value, or as key if any value matches. For a prefix, a suffix or a regular expression
// it returns key=KIND=text.
func (s step) pair() string {
	key := escape.Replace(s.Key)
	switch s.How {
	case descriptors.Any:
		return key
	case descriptors.HasPrefix, descriptors.HasSuffix, descriptors.Regex:
		key += "=" + s.How.String()
	case descriptors.Exact, descriptors.Wildcard:
	}
	return key + "=" + escape.Replace(s.Text)
}
