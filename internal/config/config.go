// Package config reads policy files. A file is parsed strictly: every mistake is found at once,
// each with its place, and a configuration with a mistake is not used at all.
//
// The files are a superset of those of envoyproxy/ratelimit. Where that server has a message for a
// mistake, the message here starts with it.
package config

import (
	"cmp"
	_ "embed"
	"fmt"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Schema is the JSON Schema (2020-12) of a file, for editors.
//
//go:embed schema.json
var Schema []byte

// Options are defaults that come from outside the files.
type Options struct {
	// ConsumeEach is the default of a domain's `consume`: each, as the reference server does.
	ConsumeEach bool
	// ConsumeTogether takes precedence over ConsumeEach, and over `consume: each` of a domain.
	ConsumeTogether bool
	// OnFailure is the default of `on_backend_failure`.
	OnFailure descriptors.OnFailure
	// LocalShare goes with OnFailure local, where a limit does not say.
	LocalShare float64
	// KeepBlanks keeps spaces and tabs at the ends of descriptor values.
	KeepBlanks bool
	// MaxLimits bounds the limits, each counted where it is used; 0: DefaultMaxLimits.
	MaxLimits int
	// Cluster warns of what a Redis Cluster cannot charge in one step.
	Cluster bool
}

// DefaultMaxLimits is the default of Options.MaxLimits.
const DefaultMaxLimits = 100_000

func (o *Options) maxLimits() int { return cmp.Or(o.MaxLimits, DefaultMaxLimits) }

// File is one file's name and content.
type File struct {
	Name string
	Data []byte
}

// Problem is one thing to say about a configuration.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`   // from 1; 0: the whole file
	Column  int    `json:"column"` // from 1
	Message string `json:"message"`
	// Warning: the configuration is used all the same.
	Warning bool `json:"warning,omitempty"`
}

// String is file:line:column: message.
func (p Problem) String() string {
	place := p.File
	if p.Line > 0 {
		place = fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
	}
	if p.Warning {
		return place + ": warning: " + p.Message
	}
	return place + ": " + p.Message
}

// Problems is all there is to say, in the order of the files.
type Problems []Problem

// Error has one line for each.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// Bad reports whether any of them is more than a warning.
func (p Problems) Bad() bool {
	for i := range p {
		if !p[i].Warning {
			return true
		}
	}
	return false
}

// Load reads paths, each a file, a folder of *.yaml (and *.yml) files, or folder/** for all files
// under it, and compiles them. The
// Snapshot is nil if a Problem is more than a warning; a file that cannot be read is a Problem.
func Load(paths []string, o Options) (*limiter.Snapshot, Problems) {
	return readAll(paths, &o).compile(o)
}

// readAll reads what paths name.
func readAll(paths []string, o *Options) *source {
	files, problems := read(paths)
	s := parseAll(files, o)
	for _, p := range problems { // none of them is a warning
		s.incomplete = true
		s.mistakes++
		s.lost = append(s.lost, p.File)
	}
	s.problems = append(problems, s.problems...)
	return s
}
