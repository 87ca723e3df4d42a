package config

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// Keeper compiles successive configurations, each domain on its own. A domain with a mistake keeps its last
// valid version, and the other domains are replaced. A Keeper is not safe for concurrent use.
type Keeper struct {
	loader *Loader
	// used are the current domains. auth are the documents with the current sections auth.
	used []*built
	auth []*document
}

// NewKeeper returns a Keeper without a configuration.
func NewKeeper(o Options) *Keeper { return &Keeper{loader: NewLoader(o)} }

// Load does what Loader.Load does, for each domain on its own. stale lists the domains with a mistake. They
// keep their last valid version; a domain that never had one is Broken. The Snapshot is nil if
//
//   - no domain has a valid version,
//   - there is no earlier configuration, and a mistake may concern any domain or is in a section auth,
//   - the changed domains and the kept versions together have more than Options.MaxLimits limits, or
//   - a route would name a domain that does not exist.
func (k *Keeper) Load(paths []string) (s *limiter.Snapshot, problems Problems, stale []string) {
	read := k.loader.read(Read(paths))
	defer k.loader.evict(read)
	return k.compile(read)
}

// Bytes returns the number of bytes that the last Load read.
func (k *Keeper) Bytes() int { return k.loader.Bytes() }

// CompileMessages is like Load, for messages of a control plane. The problems start with found, those that the caller
// has found already.
func (k *Keeper) CompileMessages(messages []Message, found Problems) (s *limiter.Snapshot, problems Problems, stale []string) {
	s, problems, stale = k.compile(readMessages(messages))
	return s, append(found, problems...), stale
}

func (k *Keeper) compile(s *source) (*limiter.Snapshot, Problems, []string) {
	stale, known := k.affected(s)
	c := k.loader.compiler(s)
	snapshot, problems := c.compile(s.docs, s.files)
	if snapshot != nil && len(stale) == 0 && len(s.lost) == 0 {
		k.used, k.auth = c.built, s.docs
		return snapshot, problems, nil
	}
	keepAuth := c.badAuth
	for { // each round marks more domains as stale or starts to keep the routes, so the loop ends
		if k.used == nil && (!known || keepAuth) {
			return nil, problems, nil
		}
		maps.Copy(stale, c.bad)
		delete(stale, "") // the mistake is in a document that names no domain
		c = k.loader.compiler(&source{hash: s.hash, cached: s.cached})
		docs := k.mixed(c, s.docs, stale)
		c.broken(docs, stale)
		if keepAuth {
			c.authDocs = append([]*document{}, k.auth...)
		}
		snapshot, more := c.compile(docs, s.files)
		switch {
		case snapshot != nil && !c.routesToUnknownDomain() && len(c.built) > 0:
			snapshot.Hash += "-partly"
			k.used, k.auth = c.built, c.authDocs
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

// affected returns the domains of which a part could not be read, or has a mistake in its structure. known reports
// whether no other domain can be affected.
func (k *Keeper) affected(s *source) (stale map[string]bool, known bool) {
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
		for _, b := range k.used {
			if file == "" || slices.ContainsFunc(b.docs, func(d *document) bool { return within(d.at.file(), Root(file)) }) {
				stale[b.Name] = true
			}
		}
	}
	return stale, known
}

func within(file, root string) bool {
	where, err := filepath.Rel(root, file)
	return err == nil && where != ".." && !strings.HasPrefix(where, ".."+string(filepath.Separator))
}

// broken adds a Broken domain for each stale domain that has no valid version.
func (c *compiler) broken(docs []*document, stale map[string]bool) {
	for name := range stale {
		if !slices.ContainsFunc(docs, func(d *document) bool { return d.Domain.value == name }) &&
			!slices.ContainsFunc(c.stale, func(b *built) bool { return b.Name == name }) {
			c.snapshot.Domains[name] = &limiter.Domain{Name: name, Tree: &limiter.Tree{}, OnFailure: c.o.OnFailure, Broken: true}
		}
	}
}

// mixed returns the documents of the domains without mistakes. It makes c keep the current versions of the stale
// domains. c then compiles the sections auth of all these domains.
func (k *Keeper) mixed(c *compiler, read []*document, stale map[string]bool) (docs []*document) {
	for _, d := range read {
		if name := d.Domain.value; name != "" && !stale[name] {
			docs = append(docs, d)
		}
	}
	c.authDocs = append([]*document{}, docs...)
	for _, b := range k.used {
		if stale[b.Name] {
			c.stale = append(c.stale, b)
			c.authDocs = append(c.authDocs, b.docs...)
		}
	}
	return docs
}

// A route to a domain that does not exist would limit nothing.
func (c *compiler) routesToUnknownDomain() bool {
	if c.snapshot.Auth == nil {
		return false
	}
	return slices.ContainsFunc(c.snapshot.Auth.Routes, func(r limiter.Route) bool { return c.snapshot.Domains[r.Domain] == nil })
}
