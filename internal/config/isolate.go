package config

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Keeper compiles configurations that follow one another, each domain for itself: one with a mistake
// keeps its last good version, the others go live. It is for one goroutine.
type Keeper struct {
	o Options
	// used and auth are the documents in use, and those whose auth is.
	used, auth []*document
}

// NewKeeper makes a Keeper that has nothing to keep yet.
func NewKeeper(o Options) *Keeper { return &Keeper{o: o} }

// Load is as the function Load, domain by domain. stale are the domains with a mistake: they are as
// they were before or, where they never were without one, Broken. The Snapshot is nil where there is
// no telling which domains a mistake is about, and nothing to keep; or where it is about all of them.
func (k *Keeper) Load(paths []string) (s *limiter.Snapshot, problems Problems, stale []string) {
	return k.compile(readAll(paths, &k.o))
}

// CompileMessages is Load for what a control plane sends. Problems are those found so far.
func (k *Keeper) CompileMessages(messages []Message, found Problems) (s *limiter.Snapshot, problems Problems, stale []string) {
	s, problems, stale = k.compile(readMessages(messages))
	return s, append(found, problems...), stale
}

func (k *Keeper) compile(s *source) (*limiter.Snapshot, Problems, []string) {
	stale, known := k.touched(s)
	c := newCompiler(k.o, s)
	snapshot, problems := c.compile(s.docs, s.files)
	if snapshot != nil && len(stale) == 0 && len(s.lost) == 0 {
		k.used, k.auth = s.docs, s.docs
		return snapshot, problems, nil
	}
	keepAuth := c.badAuth
	for { // each time more domains are left as they were, so that it ends
		if k.used == nil && (!known || keepAuth) {
			return nil, problems, nil
		}
		maps.Copy(stale, c.bad)
		delete(stale, "") // of a document that names no domain
		docs := k.mixed(s.docs, stale)
		c = newCompiler(k.o, &source{hash: s.hash})
		c.broken(docs, stale)
		c.authDocs = docs
		if keepAuth {
			c.authDocs = append([]*document{}, k.auth...)
		}
		snapshot, more := c.compile(docs, s.files)
		switch {
		case snapshot != nil && !c.leadNowhere() && len(docs) > 0:
			snapshot.Hash += "-partly"
			k.used, k.auth = docs, c.authDocs
			return snapshot, problems, slices.Sorted(maps.Keys(stale))
		case snapshot != nil:
			return nil, problems, nil
		}
		for _, p := range more {
			if !p.Warning && !slices.Contains(problems, p) {
				problems = append(problems, p)
			}
		}
		fewer := len(c.bad) > 0
		for name := range c.bad {
			fewer = fewer && !stale[name]
		}
		if !fewer && (keepAuth || !c.badAuth) {
			return nil, problems, nil
		}
		keepAuth = keepAuth || c.badAuth
	}
}

// touched lists the domains of which something could not be read, and tells whether that is all of
// them.
func (k *Keeper) touched(s *source) (stale map[string]bool, known bool) {
	stale, known = map[string]bool{}, true
	lost := slices.Clone(s.lost)
	for _, d := range s.docs {
		switch name := d.Domain.value; {
		case name == "":
			lost = append(lost, d.at.file())
		case d.bad || slices.Contains(s.lost, d.at.file()):
			stale[name] = true
		}
	}
	for _, file := range lost {
		known = false
		for _, d := range k.used {
			if file == "" || within(d.at.file(), Root(file)) {
				stale[d.Domain.value] = true
			}
		}
	}
	return stale, known
}

// within tells whether file is root, or below it.
func within(file, root string) bool {
	way, err := filepath.Rel(root, file)
	return err == nil && way != ".." && !strings.HasPrefix(way, ".."+string(filepath.Separator))
}

// broken adds the stale domains of which there are no documents.
func (c *compiler) broken(docs []*document, stale map[string]bool) {
	for name := range stale {
		if !slices.ContainsFunc(docs, func(d *document) bool { return d.Domain.value == name }) {
			c.snapshot.Domains[name] = &limiter.Domain{Name: name, Tree: &descriptors.Tree{}, OnFailure: c.o.OnFailure, Broken: true}
		}
	}
}

// mixed are the documents read of the domains that are fine, and those in use of the stale ones.
func (k *Keeper) mixed(read []*document, stale map[string]bool) (docs []*document) {
	for _, d := range read {
		if name := d.Domain.value; name != "" && !stale[name] {
			docs = append(docs, d)
		}
	}
	for _, d := range k.used {
		if stale[d.Domain.value] {
			docs = append(docs, d)
		}
	}
	return docs
}

// leadNowhere tells whether a route asks a domain that is not there, and so would limit nothing.
func (c *compiler) leadNowhere() bool {
	if c.snapshot.Auth == nil {
		return false
	}
	return slices.ContainsFunc(c.snapshot.Auth.Routes, func(r limiter.Route) bool { return c.snapshot.Domains[r.Domain] == nil })
}
