package config

import (
	"crypto/sha256"
	"runtime"
	"slices"
	"sync"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// Loader compiles successive configurations. It parses only changed files, and the other files of their domains
// if it needs them. It reuses the compiled form of a domain whose files have not changed, so that pointers stay
// the same. The result equals the result of Load. A Loader is not safe for concurrent use.
type Loader struct {
	o      Options
	shared *shared
	parts  map[string]*part  // by file name
	built  map[string]*built // by domain name
	parsed int
	bytes  int
}

// part is the parsed form of a file.
type part struct {
	file  File // its Data is set only during a Load
	sum   [sha256.Size]byte
	nodes int64 // number of YAML nodes, with aliases followed
	report
	docs []*document
	lost bool // a part of the file could not be read
	at   int  // the index of the file in the current Load
	// bare means that docs no longer contain limits, max_override and descriptors. These take about twenty times
	// the size of the file, and a domain without changed files does not need them.
	bare bool
}

type built struct {
	*limiter.Domain
	docs     []*document
	problems Problems
	mistakes int
	// late are warnings that may be wrong while some file cannot be read.
	late Problems
	// incomplete means that a file could not be read when the domain was compiled, so that mistakes may be
	// missing.
	incomplete bool
}

// smallChange is the total size of changed files, in bytes, up to which a Load parses all of them before it compiles
// domains. If they are larger, it compiles domains while it parses, so that fewer files are in memory in parsed
// form.
const smallChange = 1 << 20

// NewLoader returns a Loader without a configuration.
func NewLoader(o Options) *Loader {
	return &Loader{o: o, shared: newShared(), parts: map[string]*part{}, built: map[string]*built{}}
}

// Load does what the function Load does, but parses and compiles only changed files and domains.
func (l *Loader) Load(paths []string) (*limiter.Snapshot, Problems) {
	s := l.read(Read(paths))
	defer l.evict(s)
	return l.compiler(s).compile(s.docs, s.files)
}

// Parsed returns the number of files that the last Load parsed: the changed files and, if it needed them, the files
// with other parts of the same domains.
func (l *Loader) Parsed() int { return l.parsed }

// Bytes returns the number of bytes that the last Load read.
func (l *Loader) Bytes() int { return l.bytes }

func (l *Loader) compiler(s *source) *compiler {
	c := newCompiler(l.o, s)
	if l != nil && s.cached {
		c.shared, c.loader = l.shared, l
	}
	return c
}

// read parses the changed files. problems are errors from reading the files.
func (l *Loader) read(files []File, problems Problems) *source {
	l.parsed, l.bytes = 0, 0
	s := &source{files: files, hash: hash(files), cached: true}
	nodes := newBudget(&l.o)
	parts, changed := make([]*part, len(files)), []*part(nil)
	for i, f := range files {
		l.bytes += len(f.Data)
		p := l.parts[f.Name]
		if sum := sha256.Sum256(f.Data); p == nil || p.sum != sum {
			p = &part{sum: sum}
			changed = append(changed, p)
		} else {
			nodes.left.Add(-p.nodes)
		}
		p.file, p.at, parts[i] = f, i, p
	}
	l.parse(parts, changed, nodes)
	if nodes.usedUp() { // all files are parsed again, because their order determines which file exceeds the budget
		l.built, s.cached = map[string]*built{}, false
		nodes = newBudget(&l.o)
		for _, p := range parts {
			*p = part{file: p.file, at: p.at}
			p.parse(nodes)
		}
	}
	s.problems = problems
	for _, p := range problems { // all problems from reading files are mistakes
		s.incomplete = true
		s.mistakes++
		s.lost = append(s.lost, p.File)
	}
	l.parts = make(map[string]*part, len(parts))
	for _, p := range parts {
		s.add(p)
		if s.cached {
			l.parts[p.file.Name] = p
		}
	}
	return s
}

func (s *source) add(p *part) {
	s.problems = append(s.problems, p.problems...)
	s.mistakes += p.mistakes
	s.incomplete = s.incomplete || p.incomplete
	if p.lost {
		s.lost = append(s.lost, p.file.Name)
	}
	s.docs = append(s.docs, p.docs...)
}

func (p *part) parse(nodes *budget) {
	own := &budget{most: nodes.most, all: nodes}
	own.left.Store(own.most)
	p.docs = parse(p.file, &p.report, own)
	p.nodes = own.most - own.left.Load()
	p.lost = p.incomplete || len(p.docs) == 0 || nodes.usedUp()
	for _, d := range p.docs {
		d.part = p
	}
}

// parse parses the changed parts, several at a time. If together they are larger than smallChange, it compiles a domain
// as soon as the last file that probably has a part of the domain is parsed.
func (l *Loader) parse(all, changed []*part, nodes *budget) {
	l.parsed += len(changed)
	size := 0
	for _, p := range changed {
		size += len(p.file.Data)
	}
	if size <= smallChange {
		inTurn(changed, func(p *part) { p.parse(nodes) }, func(*part) {})
		return
	}
	waiting := map[string]int{} // by domain, as far as known: the number of files that are not parsed yet
	for _, p := range changed {
		for _, name := range likelyDomains(p.file.Data) {
			waiting[name]++
		}
	}
	docs := map[string][]*document{} // the parsed documents, by domain
	for _, p := range all {
		for _, d := range p.docs { // only unchanged parts have documents yet
			docs[d.Domain.value] = append(docs[d.Domain.value], d)
		}
	}
	inTurn(changed, func(p *part) { p.parse(nodes) }, func(p *part) {
		if nodes.usedUp() {
			return
		}
		for _, d := range p.docs {
			docs[d.Domain.value] = append(docs[d.Domain.value], d)
		}
		for _, name := range likelyDomains(p.file.Data) {
			if waiting[name]--; waiting[name] == 0 {
				l.compileEarly(docs[name])
			}
		}
	})
}

// inTurn calls work for each part, on several goroutines, and then finish, on the caller's goroutine and in the order
// of parts. It bounds the number of parts that wait for finish.
func inTurn(parts []*part, work, finish func(*part)) {
	workers := runtime.GOMAXPROCS(0)
	room := make(chan struct{}, 2*workers)
	done := make([]chan struct{}, len(parts))
	for i := range done {
		done[i] = make(chan struct{})
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i, p := range parts {
			room <- struct{}{}
			wg.Go(func() {
				work(p)
				close(done[i])
			})
		}
	})
	for i, p := range parts {
		<-done[i]
		finish(p)
		<-room
	}
	wg.Wait()
}

// compileEarly compiles the domain of docs, the documents parsed so far. If the domain has more documents, it is
// compiled again later.
func (l *Loader) compileEarly(docs []*document) {
	slices.SortStableFunc(docs, func(a, b *document) int { return a.part.at - b.part.at })
	if len(docs) == 0 {
		return
	}
	c := l.compiler(&source{cached: true})
	for _, d := range c.domains(docs) {
		c.build(d)
	}
	for _, d := range docs {
		d.part.strip()
	}
}

// strip removes limits, max_override and descriptors from the documents of p, if all its domains are compiled.
func (p *part) strip() {
	if p.bare || slices.ContainsFunc(p.docs, func(d *document) bool { return !d.compiled }) {
		return
	}
	p.bare = true
	for _, d := range p.docs {
		d.Limits, d.Descriptors, d.MaxOverride = namedLimits{}, descriptorList{}, oneLimit{}
	}
}

// refill restores what strip removed from docs, by parsing the files again.
func (l *Loader) refill(docs []*document) {
	var bare []*part
	for _, d := range docs {
		if d.part != nil && d.part.bare && !slices.Contains(bare, d.part) {
			bare = append(bare, d.part)
		}
	}
	l.parsed += len(bare)
	inTurn(bare, func(p *part) {
		fresh := &part{file: p.file}
		fresh.parse(newBudget(&l.o))
		for i, d := range fresh.docs {
			p.docs[i].Limits, p.docs[i].Descriptors, p.docs[i].MaxOverride = d.Limits, d.Descriptors, d.MaxOverride
		}
		p.bare = false
	}, func(*part) {})
}

// evict ends the Load of s. It releases the memory that only a Load needs, and the compiled domains that are not in s.
func (l *Loader) evict(s *source) {
	there := make(map[string]bool, len(l.built))
	for _, d := range s.docs {
		there[d.Domain.value] = true
		d.compiled = true // its domain is compiled now, or has a mistake; strip may remove the limits, and refill restores them
	}
	for name := range l.built {
		if !there[name] {
			delete(l.built, name)
		}
	}
	for _, p := range l.parts {
		p.strip()
		p.file.Data = nil
	}
}

// cached returns the compiled form of d from an earlier load, or nil if d must be compiled.
func (l *Loader) cached(d *domain, incomplete bool) *built {
	b := l.built[d.Name]
	if d.Name == "" || b == nil || !slices.Equal(b.docs, d.docs) {
		return nil
	}
	if b.incomplete != incomplete && (b.incomplete || b.mistakes > 0) { // compiling again may find other mistakes
		return nil
	}
	return b
}
