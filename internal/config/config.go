// Package config reads and compiles configurations: files, and messages of a control plane. Parsing is strict:
// the package reports all mistakes at once, each with its place, and does not use a configuration that contains
// a mistake.
//
// A configuration passes in one direction. The parser reads YAML into the structs of file.go (parse.go, values.go and the
// methods read), and a reader converts messages to the same structs (message.go). The compiler checks these structs and
// compiles them to a Snapshot: the domains (compile.go), the tree (tree.go), the limits (limits.go) and auth (auth.go).
// Nothing later reads YAML, and nothing earlier knows the Snapshot.
//
// The format is a superset of the format of envoyproxy/ratelimit. If that server has a message for a mistake,
// the message here starts with the same text.
package config

import (
	"cmp"
	_ "embed"
	"fmt"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// Schema is the JSON Schema (2020-12) of a file, for editors.
//
//go:embed schema.json
var Schema []byte

// Options are defaults for keys that the files omit, and settings that the files cannot contain.
type Options struct {
	// ConsumeEach makes `each` the default of a domain's `consume`, as in the reference server.
	ConsumeEach bool
	// ConsumeTogether overrides ConsumeEach and each domain's `consume: each`.
	ConsumeTogether bool
	// OnFailure is the default of `on_backend_failure`.
	OnFailure limiter.OnFailure
	// LocalShare is the default of local_share for limits whose on_backend_failure is local.
	LocalShare float64
	// KeepBlanks keeps blanks at the ends of the descriptor values in requests.
	KeepBlanks bool
	// MaxLimits bounds the number of limits. A limit counts at each place that uses it. 0 means
	// DefaultMaxLimits.
	MaxLimits int
	// Cluster enables warnings about limits that a Redis Cluster cannot charge in one step.
	Cluster bool
	// LogListener means that access logs return slots. Without it, there is a warning about routes to concurrency limits.
	LogListener bool
	// Overlay, unless nil, is a file that makes limits of CompileMessages settle (overlayForm).
	Overlay *File
	// Pause, unless nil, is called again and again while a configuration is loaded, for each limit and each piece of a
	// file. Loading 100,000 limits takes seconds, in which requests may wait for the processor.
	Pause func()
}

func (o *Options) pause() {
	if o.Pause != nil {
		o.Pause()
	}
}

// DefaultMaxLimits is the default of Options.MaxLimits.
const DefaultMaxLimits = 100_000

func (o *Options) maxLimits() int { return cmp.Or(o.MaxLimits, DefaultMaxLimits) }

type File struct {
	Name string
	Data []byte
}

// Problem is a mistake or a warning about a configuration.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`   // counted from 1; 0 means the whole file
	Column  int    `json:"column"` // counted from 1; 0 means the whole file
	Message string `json:"message"`
	// Warning means that the configuration can be used in spite of the problem.
	Warning bool `json:"warning,omitempty"`
}

// String returns file:line:column: message. A warning has "warning: " before the message.
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

// Problems lists problems in the order of the files.
type Problems []Problem

// Error returns one line for each problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// Bad reports whether any problem is more than a warning.
func (p Problems) Bad() bool {
	for i := range p {
		if !p[i].Warning {
			return true
		}
	}
	return false
}

// Load reads and compiles paths. Each path is a file, a folder of *.yaml and *.yml files, or folder/** for all files
// below the folder that are not hidden. The Snapshot is nil if a Problem is not a warning. A file that cannot be
// read is such a Problem.
func Load(paths []string, o Options) (*limiter.Snapshot, Problems) {
	files, problems := Read(paths)
	return compileFiles(files, problems, o)
}

// compileFiles compiles files. unread has the mistakes of files that could not be read.
func compileFiles(files []File, unread Problems, o Options) (*limiter.Snapshot, Problems) {
	s := parseAll(files, &o)
	if len(unread) > 0 {
		s.incomplete = true
		s.mistakes += len(unread)
		s.problems = append(unread, s.problems...)
	}
	return s.compile(o)
}
