package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

type keeper struct {
	*Keeper
	t      *testing.T
	folder string
}

func newKeeper(t *testing.T) *keeper {
	t.Helper()
	return &keeper{NewKeeper(Options{}), t, t.TempDir()}
}

// load writes files, given as name=content; a name alone removes the file. It returns the domains in use, each with
// its limits, and the stale ones.
func (k *keeper) load(files ...string) (domains, stale string, problems Problems) {
	k.t.Helper()
	for _, f := range files {
		name, content, write := strings.Cut(f, "=")
		path := filepath.Join(k.folder, name)
		if !write {
			must(k.t, os.Remove(path))
			continue
		}
		must(k.t, os.WriteFile(path, []byte(content), 0o600))
	}
	s, problems, names := k.Load([]string{k.folder})
	return shown(s), strings.Join(names, " "), problems
}

func shown(s *limiter.Snapshot) string {
	if s == nil {
		return ""
	}
	var list []string
	for name, d := range s.Domains {
		var text strings.Builder
		text.WriteString(name)
		if d.Broken {
			text.WriteString(" broken")
		}
		for _, p := range s.Policies {
			if p.Domain == name {
				fmt.Fprintf(&text, " %d", p.Limit.Rate)
			}
		}
		list = append(list, text.String())
	}
	slices.Sort(list)
	for _, p := range s.Policies {
		if s.Domains[p.Domain].Policies[p.Index] != p {
			list = append(list, "wrong index")
		}
	}
	return strings.Join(list, "; ")
}

// of returns a file with one limit in domain. A rate of -1 is a mistake.
func of(domain string, rate int) string {
	return fmt.Sprintf("domain: %s\ndescriptors:\n  - {key: k%d, rate_limit: {unit: day, requests_per_unit: %d}}\n", domain, rate, rate)
}

func TestAMistakeAffectsOnlyItsDomain(t *testing.T) {
	const half = "domain: a\ndescriptors:\n  - {key: k, rate_limit: {unit: d"
	route := func(to string) string {
		return fmt.Sprintf("auth: {default: allow, routes: [{domain: %s, descriptors: [[{key: k, from: path}]]}]}\n", to)
	}
	type step struct {
		subject        string
		files          []string
		domains, stale string
	}
	for name, steps := range map[string][]step{
		"a bad file, then a good one": {
			{"start", []string{"a.yaml=" + of("a", 1), "b.yaml=" + of("b", 1)}, "a 1; b 1", ""},
			{"a is bad, b goes live", []string{"a.yaml=" + of("a", -1), "b.yaml=" + of("b", 2)}, "a 1; b 2", "a"},
			{"still", []string{"b.yaml=" + of("b", 3)}, "a 1; b 3", "a"},
			{"a is fixed", []string{"a.yaml=" + of("a", 4)}, "a 4; b 3", ""},
		},
		"good, good, bad": {
			{"start", []string{"a.yaml=" + of("a", 1), "b.yaml=" + of("b", 1)}, "a 1; b 1", ""},
			{"good again", []string{"a.yaml=" + of("a", 2), "b.yaml=" + of("b", 2)}, "a 2; b 2", ""},
			{"a is bad", []string{"a.yaml=" + of("a", -1), "b.yaml=" + of("b", 3)}, "a 2; b 3", "a"},
			{"b too", []string{"b.yaml=" + of("b", -1), "c.yaml=" + of("c", 1)}, "a 2; b 3; c 1", "a b"},
			{"a is good", []string{"a.yaml=" + of("a", 4)}, "a 4; b 3; c 1", "b"},
			{"and bad", []string{"a.yaml=" + of("a", -1)}, "a 4; b 3; c 1", "a b"},
		},
		"a file that is half written": {
			{"start", []string{"a.yaml=" + of("a", 1), "b.yaml=" + of("b", 1)}, "a 1; b 1", ""},
			{"half of it", []string{"a.yaml=" + half, "b.yaml=" + of("b", 2)}, "a 1; b 2", "a"},
			{"nothing of it", []string{"a.yaml=", "b.yaml=" + of("b", 3)}, "a 1; b 3", "a"},
			{"without its first line", []string{"a.yaml=descriptors: []", "b.yaml=" + of("b", 4)}, "a 1; b 4", "a"},
			{"all of it", []string{"a.yaml=" + of("a", 2)}, "a 2; b 4", ""},
		},
		"a file that is removed takes its domain with it": {
			{"start", []string{"a.yaml=" + of("a", 1), "b.yaml=" + of("b", 1)}, "a 1; b 1", ""},
			{"removed", []string{"a.yaml"}, "b 1", ""},
			{"another is bad", []string{"b.yaml=" + of("b", -1), "c.yaml=" + of("c", 1)}, "b 1; c 1", "b"},
			{"and removed", []string{"b.yaml"}, "c 1", ""},
		},
		"a domain in two files is kept whole": {
			{"start", []string{"a1.yaml=" + of("a", 1), "a2.yaml=" + of("a", 2), "b.yaml=" + of("b", 1)}, "a 1 2; b 1", ""},
			{"one is bad", []string{"a1.yaml=" + of("a", 3), "a2.yaml=" + of("a", -1), "b.yaml=" + of("b", 2)}, "a 1 2; b 2", "a"},
			{"the other is removed", []string{"a1.yaml"}, "a 1 2; b 2", "a"},
			{"the bad one too", []string{"a2.yaml"}, "b 2", ""},
		},
		"a conflict between files": {
			{"start", []string{"a1.yaml=" + of("a", 1), "b.yaml=" + of("b", 1)}, "a 1; b 1", ""},
			{"the same key twice", []string{"a2.yaml=" + of("a", 1), "b.yaml=" + of("b", 2)}, "a 1; b 2", "a"},
		},
		"two domains in a file": {
			{"start", []string{"ab.yaml=" + of("a", 1) + "---\n" + of("b", 1)}, "a 1; b 1", ""},
			{"a mistake in one", []string{"ab.yaml=" + of("a", -1) + "---\n" + of("b", 2)}, "a 1; b 2", "a"},
			{"the domain with the mistake is unknown", []string{"ab.yaml=" + of("a", 3) + "---\n" + half, "c.yaml=" + of("c", 1)}, "a 1; b 2; c 1", "a b"},
		},
		"at the start": {
			{"a mistake", []string{"a.yaml=" + of("a", -1), "b.yaml=" + of("b", 1)}, "a broken; b 1", "a"},
			{"it is fixed", []string{"a.yaml=" + of("a", 1)}, "a 1; b 1", ""},
		},
		"a new domain": {
			{"start", []string{"a.yaml=" + of("a", 1)}, "a 1", ""},
			{"is bad", []string{"b.yaml=" + of("b", -1)}, "a 1; b broken", "b"},
		},
		"nothing is good": {
			{"start", []string{"a.yaml=" + of("a", -1), "b.yaml=" + of("b", -1)}, "", ""},
		},
		"the domain is unknown": {
			{"start", []string{"a.yaml=" + half, "b.yaml=" + of("b", 1)}, "", ""},
			{"no domain", []string{"a.yaml=descriptors: []"}, "", ""},
			{"then it is good", []string{"a.yaml=" + of("a", 1)}, "a 1; b 1", ""},
		},
		"the only domain": {
			{"start", []string{"a.yaml=" + of("a", 1)}, "a 1", ""},
			{"is bad", []string{"a.yaml=" + half}, "a 1", "a"},
			{"is gone", []string{"a.yaml"}, "a 1", "a"},
		},
		"routes": {
			{"start", []string{"a.yaml=" + of("a", 1) + route("b"), "b.yaml=" + of("b", 1)}, "a 1; b 1", ""},
			{"to a domain that is bad", []string{"a.yaml=" + of("a", 2) + route("b"), "b.yaml=" + of("b", -1)}, "a 2; b 1", "b"},
			{"that are bad", []string{"a.yaml=" + of("a", 3) + route("b") + "nonsense: 1", "b.yaml=" + of("b", 2)}, "a 2; b 2", "a"},
			{"to no domain", []string{"a.yaml=" + of("a", 3) + route("c"), "b.yaml=" + of("b", 3)}, "a 3; b 3", ""},
			{"kept, to a domain that is removed", []string{"b.yaml"}, "", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKeeper(t)
			for _, s := range steps {
				domains, stale, problems := k.load(s.files...)
				if domains != s.domains || stale != s.stale {
					t.Errorf("%s: %q, stale %q; want %q, %q\n%v", s.subject, domains, stale, s.domains, s.stale, problems)
				}
				if fine := s.stale == "" && s.domains != "" && s.subject != "to no domain"; fine == problems.Bad() {
					t.Errorf("%s: got %v; want mistakes: %t", s.subject, problems, !fine)
				}
			}
		})
	}
}

// After a mistake the routes of the last valid configuration stay in use, not those of an earlier one.
func TestTheLastGoodRoutesAreKept(t *testing.T) {
	route := func(path string) string {
		return fmt.Sprintf("auth: {routes: [{match: {path: %s}, descriptors: [[{key: k1, from: path}]]}]}\n", path)
	}
	k := newKeeper(t)
	for _, step := range []struct {
		subject, auth string
		b             int // the rate of domain b
		want          string
	}{
		{"good", route("/one"), 1, "/one"},
		{"good again", route("/two"), 1, "/two"},
		{"a bad route", route("two"), 1, "/two"},
		{"bad limits", route("/three") + "nonsense: 1", 1, "/two"},
		{"good", route("/four"), 1, "/four"},
		{"bad", route("four"), 1, "/four"},
		{"good, beside a bad domain", route("/five"), -1, "/five"},
		{"bad, too", route("five"), -1, "/five"},
	} {
		must(t, os.WriteFile(filepath.Join(k.folder, "a.yaml"), []byte(of("a", 1)+step.auth), 0o600))
		must(t, os.WriteFile(filepath.Join(k.folder, "b.yaml"), []byte(of("b", step.b)), 0o600))
		s, problems, stale := k.Load([]string{k.folder})
		if s == nil || len(s.Auth.Routes) != 1 || s.Auth.Routes[0].Path != step.want {
			t.Errorf("%s: %+v, stale %v\n%v\nwant a configuration with one route, for the path %s", step.subject, s, stale, problems, step.want)
		}
	}
}

// Routes to a removed domain would limit nothing, so a configuration that would keep such a route is rejected. The
// hash of a configuration that is used in part differs from the hash of one that is used as a whole.
func TestRoutesToADomainThatIsGoneAreNotKept(t *testing.T) {
	route := func(path string) string {
		return fmt.Sprintf("auth: {routes: [{match: {path: %s}, descriptors: [[{key: k1, from: path}]]}]}\n", path)
	}
	k := newKeeper(t)
	a, b := filepath.Join(k.folder, "a.yaml"), filepath.Join(k.folder, "b.yaml")
	write := func(file, text string) {
		t.Helper()
		must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write(a, of("a", 1)+route("/a"))
	write(b, of("b", 1))
	whole, problems, stale := k.Load([]string{k.folder})
	if whole == nil || strings.HasSuffix(whole.Hash, "-partly") {
		t.Fatalf("got %+v, %v, stale %v; want a configuration whose hash does not end in -partly", whole, problems, stale)
	}
	write(b, of("b", -1))
	if s, _, _ := k.Load([]string{k.folder}); s == nil || !strings.HasSuffix(s.Hash, "-partly") {
		t.Errorf("with a mistake in domain b: %+v; want a configuration whose hash ends in -partly", s)
	}
	must(t, os.Remove(a))
	write(b, of("b", 1)+route("b")) // the route of b is wrong, so the previous routes would be kept; one of them is to a, which was removed
	if s, problems, stale := k.Load([]string{k.folder}); s != nil {
		t.Errorf("got a configuration with %d routes, %d domains, stale %v\n%v\nwant none, because a route names a removed domain", len(s.Auth.Routes), len(s.Domains), stale, problems)
	}
	write(b, of("b", 1)+route("/b"))
	if s, problems, _ := k.Load([]string{k.folder}); s == nil || strings.HasSuffix(s.Hash, "-partly") || len(s.Auth.Routes) != 1 {
		t.Errorf("without a mistake: got %+v, %v; want a configuration with one route, whose hash does not end in -partly", s, problems)
	}
}

func TestAMistakeAffectsOnlyItsMessage(t *testing.T) {
	message := func(domain string, rate uint32) Message {
		return Message{Name: domain, Domain: domain, Descriptors: []MessageDescriptor{{Key: "k", Limit: &MessageLimit{Unit: "day", RequestsPerUnit: rate}}}}
	}
	wrong := Message{Name: "a", Domain: "a", Descriptors: []MessageDescriptor{{Key: "", Value: "x"}}}
	reported := Problems{{File: "xds", Message: "cannot be decoded"}}
	k := NewKeeper(Options{})
	for _, s := range []struct {
		subject        string
		messages       []Message
		found          Problems
		domains, stale string
	}{
		{"start", []Message{message("a", 1), message("b", 1)}, nil, "a 1; b 1", ""},
		{"a mistake", []Message{wrong, message("b", 2)}, nil, "a 1; b 2", "a"},
		{"one that cannot be decoded", []Message{{Name: "a", Unreadable: true}, message("b", 3)}, reported, "a 1; b 3", "a"},
		{"nor its name", []Message{{Unreadable: true}, message("c", 1)}, reported, "a 1; b 3; c 1", "a b"},
		{"removed", []Message{message("c", 2)}, nil, "c 2", ""},
		{"all of them", nil, nil, "", ""},
	} {
		snapshot, problems, stale := k.CompileMessages(s.messages, s.found)
		if got := shown(snapshot); got != s.domains || strings.Join(stale, " ") != s.stale {
			t.Errorf("%s: %q, stale %q; want %q, %q\n%v", s.subject, got, stale, s.domains, s.stale, problems)
		}
		if problems.Bad() != (s.stale != "") {
			t.Errorf("%s: got the problems %v; want mistakes: %t", s.subject, problems, s.stale != "")
		}
	}
}

// Domain b has a mistake and keeps its last version. Together with the changed domain a it has more than MaxLimits
// limits. The configuration in use must still have at most MaxLimits, and a message must state the problem.
func TestKeptDomainsCountTowardsTheMostLimits(t *testing.T) {
	k := newKeeper(t)
	k.Keeper = NewKeeper(Options{MaxLimits: 3})
	two := func(domain string) string {
		return "domain: " + domain + "\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}, {key: b, rate_limit: {unit: day, requests_per_unit: 2}}]\n"
	}
	if got, stale, problems := k.load("a.yaml="+of("a", 7), "b.yaml="+two("b")); got != "a 7; b 1 2" || stale != "" {
		t.Fatalf("got %q, stale %q, %v; want both domains", got, stale, problems)
	}
	got, stale, problems := k.load("a.yaml="+two("a"), "b.yaml="+of("b", -1))
	limits := 0
	for _, b := range k.used {
		limits += len(b.Policies)
	}
	if limits > 3 || !strings.Contains(problems.Error(), "more than 3 limits") {
		t.Errorf("got %q, stale %q, with %d limits; the problems are %s; want at most 3, and a message about it", got, stale, limits, problems.Error())
	}
}

// The function within determines which domains are below an unreadable folder, so that they keep their last version.
func TestADomainBelowAnUnreadableFolderIsKept(t *testing.T) {
	for file, root := range map[string]string{"a/b/c.yaml": "a", "a/b.yaml": "a/b.yaml", "a/..b.yaml": "a"} {
		if !within(filepath.FromSlash(file), filepath.FromSlash(root)) {
			t.Errorf("%s is not below %s", file, root)
		}
	}
	for file, root := range map[string]string{"ab/c.yaml": "a", "c.yaml": "a", "a.yaml": "a/b"} {
		if within(filepath.FromSlash(file), filepath.FromSlash(root)) {
			t.Errorf("%s is below %s", file, root)
		}
	}
}

func TestADocumentWithoutADomainAddsNone(t *testing.T) {
	k := newKeeper(t)
	k.load("a.yaml=" + of("a", 1))
	domains, stale, problems := k.load("a.yaml="+of("a", 2), "x.yaml=descriptors: [{key: k, limit: missing}]\n")
	if domains != "a 2" || stale != "" || !problems.Bad() {
		t.Errorf("got %q, stale %q, %v; want domain a alone, none stale, and a mistake", domains, stale, problems)
	}
}

// If the limit that pays for another one has a mistake, only that mistake is reported, and the domain keeps its last
// valid version.
func TestAPayerWithAMistake(t *testing.T) {
	const file = "domain: d\nhash_tag: domain\nlimits:\n  plan: {algorithm: fixed_window, rate: %d, period: 1h, then: credits}\n" +
		"  credits: {algorithm: %s, rate: 5, period: 1h}\ndescriptors: [{key: k, limit: plan}]\n"
	k := newKeeper(t)
	domains, stale, problems := k.load("d.yaml=" + fmt.Sprintf(file, 1, "fixed_window"))
	if domains == "" || stale != "" || problems.Bad() {
		t.Fatalf("got %q, stale %q, %v; want a valid configuration", domains, stale, problems)
	}
	if again, stale, problems := k.load("d.yaml=" + fmt.Sprintf(file, 2, "no")); again != domains || stale != "d" || len(problems) != 1 || !strings.Contains(problems.Error(), "algorithm must be one of") {
		t.Errorf("got %q, stale %q, %v; want %q, stale, and one mistake of the algorithm", again, stale, problems, domains)
	}
}
