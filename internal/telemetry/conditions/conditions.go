// Package conditions holds the current problems of the program. Parts of the program report problems to a
// Registry. The admin page, /readyz and the log read them. A condition stays until the part that set it
// clears it, or until a more severe one needs its room. It has the start of the problem, and describes the
// problem and its remedy in words.
package conditions

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Severity is how bad a Condition is.
type Severity string

// The severities, in ascending order.
const (
	// Warning means that requests are decided as configured, but that this may change soon or may not be
	// intended.
	Warning Severity = "warning"
	// Degraded means that some requests are not decided by their limits, or are decided by an old configuration.
	Degraded Severity = "degraded"
	// Critical means that most requests are not decided by their limits.
	Critical Severity = "critical"
)

func (s Severity) rank() int { return slices.Index([]Severity{Warning, Degraded, Critical}, s) }

// Condition is one problem.
type Condition struct {
	// Name identifies the condition. It consists of lower case words joined by hyphens. If there can be
	// several conditions of one kind, a slash and the subject follow, as in
	// "redis-breaker-open/10.0.0.1:6379".
	Name     string   `json:"name"`
	Severity Severity `json:"severity"`
	// Since is when the condition was first set.
	Since time.Time `json:"since"`
	// Headline is the problem in a few words, without a period. At most MaxHeadline bytes of it are kept.
	Headline string `json:"headline"`
	// Summary describes the problem, and how requests are answered while it lasts. Remedy describes what the
	// operator can do. Both are printable sentences, and may quote texts from the network.
	Summary string `json:"summary"`
	Remedy  string `json:"remedy"`
	// Error is the last error of the network or of a file that caused the problem, or "".
	Error string `json:"error,omitempty"`
}

// MaxHeadline bounds the Headline of a Condition, in bytes.
const MaxHeadline = 100

const (
	// maxConditions bounds the number of conditions in a Registry. At the bound, a new condition replaces the
	// least severe one if that is less severe than the new one. Otherwise the new one is ignored.
	maxConditions = 64
	// maxName and maxText bound the texts of a condition, in bytes.
	maxName, maxText = 256, 1024
)

// Registry holds the conditions of a process. It is safe for concurrent use.
type Registry struct {
	now func() time.Time

	mu  sync.Mutex
	all map[string]Condition // guarded by mu
}

// New returns an empty Registry.
func New(now func() time.Time) *Registry {
	return &Registry{now: now, all: map[string]Condition{}}
}

// Set adds c, or replaces the condition with the same name and keeps its Since. A zero Since of a new
// condition becomes the current time. Set reports whether it added a new condition.
func (r *Registry) Set(c Condition) (added bool) {
	c.Name, c.Headline = printable(c.Name, maxName), printable(c.Headline, MaxHeadline-len("…"))
	c.Summary, c.Remedy, c.Error = printable(c.Summary, maxText), printable(c.Remedy, maxText), printable(c.Error, maxText)
	r.mu.Lock()
	defer r.mu.Unlock()
	before, known := r.all[c.Name]
	switch {
	case known:
		c.Since = before.Since
	case c.Since.IsZero():
		c.Since = r.now()
	}
	if list := r.list(); !known && len(list) >= maxConditions {
		mildest := list[len(list)-1]
		if mildest.Severity.rank() >= c.Severity.rank() {
			return false
		}
		delete(r.all, mildest.Name)
	}
	r.all[c.Name] = c
	return !known
}

// Clear removes the condition with this name. It reports whether there was one.
func (r *Registry) Clear(name string) (removed bool) {
	name = printable(name, maxName)
	r.mu.Lock()
	defer r.mu.Unlock()
	_, removed = r.all[name]
	delete(r.all, name)
	return removed
}

// List returns the conditions, the most severe first. Equally severe ones are ordered by age, the oldest
// first.
func (r *Registry) List() []Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list()
}

// list is List for a caller that holds mu.
func (r *Registry) list() []Condition {
	list := slices.AppendSeq([]Condition{}, maps.Values(r.all)) // not nil, so that JSON has [] and not null
	slices.SortFunc(list, func(a, b Condition) int {
		return cmp.Or(cmp.Compare(b.Severity.rank(), a.Severity.rank()), a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// printable returns text with blanks in place of control characters and invalid UTF-8. If text has more than bound
// bytes, it is cut there, and an ellipsis follows.
func printable(text string, bound int) string {
	if len(text) > bound {
		cut := bound
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == utf8.RuneError || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, text)
}
