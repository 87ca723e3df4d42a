package config

import (
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
)

// step is one level of the path to a descriptor.
type step struct {
	descriptors.Pattern
	shared bool // share_threshold: all values that match the pattern share buckets
	metric bool // value_to_metric
}

// composite is the reference server's name for the step. The reference server has no expressions.
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

// loose reports whether the key itself is a pattern.
func (s step) loose() bool { return strings.Contains(s.Key, "*") }

// pattern reports whether several keys and values match the step, but not all values.
func (s step) pattern() bool {
	return s.loose() || s.How != descriptors.Exact && s.How != descriptors.Any
}

// open reports whether the value of the request identifies the bucket.
func (s step) open() bool { return !s.shared && (s.How != descriptors.Exact || s.loose()) }

// path is the steps from the root to a descriptor.
type path []step

// name returns the path as text for messages.
func (p path) name() string { return strings.Join(p.levels(), ".") }

// levels returns the composite of each step.
func (p path) levels() []string {
	parts := make([]string, len(p))
	for i, s := range p {
		parts[i] = s.composite()
	}
	return parts
}

var escape = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `=`, `\=`, `#`, `\#`)

// id returns the path as key=value,key…. Unlike the name it is unique. What is not a plain value has a word and a
// second "=" before it.
func (p path) id() string {
	parts := make([]string, len(p))
	for i, s := range p {
		parts[i] = escape.Replace(s.Key)
		switch s.How {
		case descriptors.Any:
			continue
		case descriptors.HasPrefix, descriptors.HasSuffix, descriptors.Regex:
			parts[i] += "=" + s.How.String()
		case descriptors.Exact, descriptors.Wildcard:
		}
		parts[i] += "=" + escape.Replace(s.Text)
	}
	return strings.Join(parts, ",")
}
