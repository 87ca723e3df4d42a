package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// pieces are documents: valid ones, parts of domains, and some with a mistake. %d is a number that may change without
// any other change.
var pieces = []string{
	"domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: %d}}]\n",
	"domain: a\ndescriptors: [{key: other, value: x*, rate_limit: {unit: day, requests_per_unit: %d}}]\n",
	"domain: a\nlimits: {named: {algorithm: token_bucket, rate: %d, period: 1s}}\n",
	"domain: a\ndescriptors: [{key: uses, limit: named, metadata: {n: %d}}]\n",
	"domain: a\non_backend_failure: allow # %d\n",
	"domain: b\ndescriptors: [{key: k, value: v, rate_limit: {name: n%[1]d, unit: day, requests_per_unit: %[1]d}, descriptors: [{key: l, value_regex: 'x+', rate_limit: {unit: hour, requests_per_unit: %[1]d}}]}]\n",
	"domain: b\ndescriptors: [{key: r, rate_limit: {name: r, unit: day, requests_per_unit: 5, replaces: [{name: n%d}]}}]\n",
	"domain: b\nconsume: each\nmax_override: {unit: hour, requests_per_unit: %d}\n",
	"{domain: c, hash_tag: domain, descriptors: [{key: k, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: %d}}]}\n",
	"domain: c\ndescriptors: [{key: s, shadow_mode: true, rate_limit: [{unit: day, requests_per_unit: %d}, {unit: hour, requests_per_unit: 2}]}]\n",
	"domain: d\nauth: {routes: [{match: {path: /%d}, domain: a, descriptors: [[{key: k, from: value, value: x}]]}]}\n",
	"domain: d\nauth: {default: allow, routes: [{match: {path: /x}, domain: b, descriptors: [[{key: k, from: value, value: v%d}]]}]}\n",
	"domain: e\ndescriptors: [{key: k, value: v%[1]d, rate_limit: {unit: day, requests_per_unit: %[1]d}}, {key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n",
	"domain: e\ndescriptors: [{key: l, value: 'v*', descriptors: [{key: m, rate_limit: {unit: day, requests_per_unit: %d}}, {key: n, value_prefix: a, rate_limit: {unit: day}}]}]\n",
	"domain: e\ndescriptors: [{key: l, value_regex: 'v+', descriptors: [{key: 'm*', rate_limit: {unit: day, requests_per_unit: %d}}, {key: m, value: x, rate_limit: {unit: hour, requests_per_unit: 2}}]}]\n",
	"domain: e\ndescriptors: [{key: l, value_prefix: v, rate_limit: [{unit: day, requests_per_unit: %d}, {unit: hour, requests_per_unit: 2}]}, {key: l, value_suffix: w, rate_limit: {unit: day, requests_per_unit: 9}}]\n",
	"domain: e\ndescriptors: [{key: o, value: x, rate_limit: {unit: day, requests_per_unit: %d}}, {key: o, value: y, descriptors: [{key: p, rate_limit: {algorithm: token_bucket, rate: 3, period: 1s}}]}]\n",
	"domain: e\nconsume: each # %d\n",
	"domain: e\ndescriptors: [{key: q, rate_limit: {unit: day, requests_per_unit: %d, name: n}}]\n",
	"domain: a\nnonsense: %d\n",
	"domain: b\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: -%d}}]\n",
	"domain: c\ndescriptors: [{key: u, limit: missing%d}]\n",
	"descriptors: [{key: %d}]\n",
	"domain: \"\"\n# %d\n",
	"domain: a\n  bad: [ %d\n",
	"# %d\n",
}

func edit(t *rapid.T, before []File) []File {
	after := slices.Clone(before)
	for range rapid.IntRange(1, 3).Draw(t, "edits") {
		name := fmt.Sprintf("f%d.yaml", rapid.IntRange(0, 4).Draw(t, "file"))
		at := slices.IndexFunc(after, func(f File) bool { return f.Name == name })
		if rapid.IntRange(0, 4).Draw(t, "remove") == 0 {
			if at >= 0 {
				after = slices.Delete(after, at, at+1)
			}
			continue
		}
		var docs []string
		for range rapid.IntRange(1, 2).Draw(t, "documents") {
			docs = append(docs, fmt.Sprintf(rapid.SampledFrom(pieces).Draw(t, "piece"), rapid.IntRange(1, 3).Draw(t, "number")))
		}
		f := File{name, []byte(strings.Join(docs, "---\n"))}
		if at < 0 {
			after = append(after, f)
		} else {
			after[at] = f
		}
	}
	slices.SortFunc(after, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return after
}

func unread(t *rapid.T) Problems {
	if rapid.IntRange(0, 5).Draw(t, "unreadable") > 0 {
		return nil
	}
	return Problems{{File: "f9.yaml", Message: "cannot be read"}}
}

func compiledAnew(files []File, problems Problems, o *Options) *source {
	s := parseAll(files, o)
	for _, p := range problems {
		s.incomplete = true
		s.mistakes++
		s.lost = append(s.lost, p.File)
	}
	s.problems = append(slices.Clone(problems), s.problems...)
	return s
}

func same(t *rapid.T, step int, got, want *limiter.Snapshot, reported, wantReported Problems) {
	t.Helper()
	if !slices.Equal(reported, wantReported) {
		t.Fatalf("step %d: got the problems\n%v\nwant\n%v", step, reported, wantReported)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("step %d: got %+v, want %+v", step, got, want)
	}
}

func TestAPartialLoadEqualsAFullLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{MaxLimits: rapid.SampledFrom([]int{0, 3, 6}).Draw(t, "max limits")}
		l := NewLoader(o)
		var files []File
		for step := range rapid.IntRange(1, 8).Draw(t, "steps") {
			files = edit(t, files)
			problems := unread(t)
			read := l.read(files, problems)
			got, reported := l.compiler(read).compile(read.docs, read.files)
			l.evict(read)
			want, wantReported := compiledAnew(files, problems, &o).compile(o)
			same(t, step, got, want, reported, wantReported)
		}
	})
}

func TestAPartialReloadIsolatesLikeAFullOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{MaxLimits: rapid.SampledFrom([]int{0, 3, 6}).Draw(t, "max limits")}
		k, plain := NewKeeper(o), NewKeeper(o)
		var files []File
		for step := range rapid.IntRange(1, 8).Draw(t, "steps") {
			files = edit(t, files)
			problems := unread(t)
			read := k.loader.read(files, problems)
			got, reported, stale := k.compile(read)
			k.loader.evict(read)
			want, wantReported, wantStale := plain.compile(compiledAnew(files, problems, &o))
			same(t, step, got, want, reported, wantReported)
			if !slices.Equal(stale, wantStale) {
				t.Fatalf("step %d: stale %q, want %q", step, stale, wantStale)
			}
		}
	})
}

// The files are together larger than smallChange, so domains are compiled while files are parsed. Some domains are in
// two files, and likelyDomains misses some.
func TestLargeFilesGiveTheSameConfiguration(t *testing.T) {
	var files []File
	for i := range 40 {
		domain := fmt.Sprintf("domain: d%d", i%30)
		if i%7 == 0 {
			domain = fmt.Sprintf("? domain\n: 'd%d'", i%30)
		}
		text := domain + "\ndescriptors:\n"
		for j := range 50 {
			text += fmt.Sprintf("- {key: k%d_%d, rate_limit: {unit: day, requests_per_unit: %d}}\n", i, j, 1+j%3)
		}
		files = append(files, File{fmt.Sprintf("f%02d.yaml", i), []byte(text + "#" + strings.Repeat("x", smallChange/20))})
	}
	l := NewLoader(Options{})
	load := func() *limiter.Snapshot {
		t.Helper()
		read := l.read(files, nil)
		got, reported := l.compiler(read).compile(read.docs, read.files)
		l.evict(read)
		want, wantReported := Compile(files, Options{})
		if !slices.Equal(reported, wantReported) || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, want %v", reported, wantReported)
		}
		return got
	}
	first := load()
	files[35].Data = append([]byte("# changed\n"), files[35].Data...) // domain d5 is also in f05.yaml
	second := load()
	for name, d := range second.Domains {
		if kept := d == first.Domains[name]; kept != (name != "d5") {
			t.Errorf("domain %s: kept %t; want %v kept", name, kept, name != "d5")
		}
	}
	for _, p := range l.parts {
		if !p.bare || p.file.Data != nil {
			t.Errorf("%s: the parsed form is still in memory; want bare and data nil", p.file.Name)
		}
	}
}

func TestAChangedFileIsParsedAlone(t *testing.T) {
	var files []File
	for i := range 200 {
		files = append(files, File{fmt.Sprintf("f%03d.yaml", i), fmt.Appendf(nil, "domain: d%d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]", i)})
	}
	l := NewLoader(Options{})
	load := func() *limiter.Snapshot {
		t.Helper()
		read := l.read(files, nil)
		defer l.evict(read)
		s, reported := l.compiler(read).compile(read.docs, read.files)
		if s == nil {
			t.Fatal(reported)
		}
		return s
	}
	first := load()
	if l.Parsed() != 200 {
		t.Errorf("%d files were parsed at first; want 200", l.Parsed())
	}
	files[7].Data = []byte("domain: d7\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 6}}]")
	second := load()
	if l.Parsed() != 1 {
		t.Errorf("%d files were parsed for one that changed; want 1", l.Parsed())
	}
	for name, d := range second.Domains {
		if kept := d == first.Domains[name]; kept != (name != "d7") {
			t.Errorf("domain %s: kept %t; want %v kept", name, kept, name != "d7")
		}
	}
	load()
	if l.Parsed() != 0 {
		t.Errorf("%d files were parsed for none that changed; want 0", l.Parsed())
	}
}

func TestDomainsThatAreGoneAreNotKept(t *testing.T) {
	l := NewLoader(Options{})
	for i := range 10 {
		read := l.read([]File{{Name: "a.yaml", Data: fmt.Appendf(nil, "domain: d%d\ndescriptors: []\n", i)}}, nil)
		if s, problems := l.compiler(read).compile(read.docs, read.files); s == nil {
			t.Fatal(problems)
		}
		l.evict(read)
	}
	if len(l.built) != 1 || len(l.parts) != 1 {
		t.Errorf("%d domains and %d files are kept, want one of each", len(l.built), len(l.parts))
	}
}

func TestAChangedFileHasTheSettingsOfItsDomain(t *testing.T) {
	for _, settings := range []string{
		"on_backend_failure: allow", "on_backend_failure: local\nlocal_share: 20%", "on_backend_failure: error", "consume: each",
		"hash_tag: domain", "hash_tag: entry:k1", "deny_body: openai", "local_share: 50%", "http_headers: openai",
	} {
		l := NewLoader(Options{LocalShare: 0.1, OnFailure: limiter.Deny})
		descriptorsOf := func(key string, rate int) string {
			return fmt.Sprintf("domain: d\ndescriptors:\n- {key: %s, rate_limit: {algorithm: token_bucket, rate: %d, period: 1s}}\n"+
				"- {key: %s, value: x, rate_limit: {algorithm: token_bucket, rate: %d, period: 1s, on_backend_failure: local}}\n", key, rate, key, rate+1)
		}
		for step, texts := range [][]string{
			{"domain: d\n" + settings + "\n", descriptorsOf("k1", 1), descriptorsOf("k2", 1)},
			{"domain: d\n" + settings + "\n", descriptorsOf("k1", 1), descriptorsOf("k2", 3)},
			{"domain: d\n" + settings + "\n", descriptorsOf("k1", 4) + descriptorsOf("k3", 4)[len("domain: d\ndescriptors:\n"):], descriptorsOf("k2", 3)},
			{"domain: d\n", descriptorsOf("k1", 4), descriptorsOf("k2", 3)},
			{"domain: d\n", descriptorsOf("k1", 4) + settings + "\n", descriptorsOf("k2", 3)},
			{"domain: d\n", descriptorsOf("k1", 4) + settings + "\n", descriptorsOf("k2", 5)},
			{"domain: d\n", descriptorsOf("k1", 4), descriptorsOf("k2", 5)},
		} {
			var files []File
			for i, text := range texts {
				files = append(files, File{fmt.Sprintf("f%d.yaml", i), []byte(text)})
			}
			read := l.read(files, nil)
			got, reported := l.compiler(read).compile(read.docs, read.files)
			l.evict(read)
			want, wantReported := Compile(files, l.o)
			if !slices.Equal(reported, wantReported) || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, step %d: %v, want %v; the configurations are equal: %v", settings, step, reported, wantReported, reflect.DeepEqual(got, want))
			}
			if want == nil {
				t.Errorf("%s, step %d: %v", settings, step, wantReported)
			}
		}
	}
}

// A part of a file that moves to another file may have another meaning there, so the hash must change.
func TestTheHashDependsOnTheFilesOfAConfiguration(t *testing.T) {
	const first, moved, second = "domain: d\ndescriptors: []\n", "# a comment\n", "domain: e\ndescriptors: []\n"
	one, _ := Compile([]File{{"a.yaml", []byte(first + moved)}, {"b.yaml", []byte(second)}}, Options{})
	two, _ := Compile([]File{{"a.yaml", []byte(first)}, {"b.yaml", []byte(moved + second)}}, Options{})
	if one.Hash == two.Hash {
		t.Error("two configurations with the same bytes in other files have one hash")
	}
	three, _ := Compile([]File{{"a.yaml", []byte(first)}, {"b.yaml", []byte(moved + second)}}, Options{OnFailure: limiter.Allow})
	if two.Hash == three.Hash {
		t.Error("two configurations with other defaults for failures have one hash")
	}
}

// The key domain of a document is at the start of a line. That of a route is indented.
func TestLikelyDomains(t *testing.T) {
	for text, want := range map[string]string{
		"domain: a\n": "a", "# x\ndomain: \"a b\" # c\n---\ndomain: 'c'": "a b,c", "auth:\n  domain: a\nsubdomain: b\n": "", "domain:": "", "": "",
	} {
		if got := strings.Join(likelyDomains([]byte(text)), ","); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
