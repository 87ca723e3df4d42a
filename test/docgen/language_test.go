package docgen_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// phrases are words that readers outside of the project do not understand, with their replacements.
// docs/glossary.md defines the words to use.
var phrases = []struct{ pattern, instead string }{
	{`doors?`, "listener"},
	{`flights?`, "batch"}, // an exception allows "in flight"
	{`riders?|rides? in`, "charges that share a call"},
	{`twins?`, "reference implementation"},
	{`kin`, "the name of what is meant"},
	{`crews?`, "worker pool"},
	{`trips?`, "call, or round trip"},
	{`loans?|lent|on loan`, "lease"},
	{`give-backs?|gives? back|given back|gave back`, "refund, or return"},
	{`under way`, "in flight"},
	{`believe[sd]?`, "trust"},
	{`(is|are|was|were) told`, "gets, receives, or is reported"},
	{`tells? apart`, "identify, or distinguish"},
	{`speaks? for`, "describes"},
	{`nobody's business`, "not exposed"},
	{`mended|mends?`, "fixed"},
	{`for want of`, "because … is missing"},
	{`what it came to`, "the result"},
	{`(less|further|more) ado`, "leave it out"},
	{`stands? against`, "causes a denial"},
	{`(is|are) a present`, "is free quota"},
	{`no telling`, "it is not known"},
	{`is not to be|are not to be`, "must not"},
	{`in a hurry`, "has a short deadline"},
	{`knocks?`, "connects"},
	{`tightest`, "most restrictive"},
	{`heeds?`, "observes, or uses"},
	{`peculiar to`, "specific to"},
	{`come what may`, "always"},
	{`who asks`, "the client, the caller, or the proxy"},
	{`as ever`, "as always"},
	{`nobody else'?s?`, "no other, or not that of others"},
	{`whoever comes first`, "the first one"},
	{`has not got`, "does not have"},
	{`mind the`, "note the"},
	{`it is there again`, "it is available again"},
	{`nothing of it is kept`, "it is deleted"},
	{`what became of`, "the outcome of"},
	{`what is given`, "the refund, or the grant"},
	{`what is asked for`, "the request"},
	{`is what it is worth`, "shows that it can fail"},
	{`(is|are|was|were) away`, "is unreachable, or does not answer"},
	{`me(et|ets|t) (a|no|the|other|several) limits?`, "matches"}, // readers could think that such a limit is reached
	{`somebody else'?s?`, "another user, or another program"},
	{`whoever`, "the caller that …, or whichever …"},
	{`(that|those) of before`, "the previous one"},
	{`brings? a lot`, "has many dependencies"},
	{`(is|are) asked`, "is called, or receives a request"},
	{`for ever`, "without end"},
}

// allowed are common terms that contain a banned phrase.
var allowed = regexp.MustCompile(`(?i)\bin[-\s]+flight\b|\bround[-\s]+trips?\b`)

var banned = func() *regexp.Regexp {
	var all []string
	for _, p := range phrases {
		all = append(all, strings.ReplaceAll(p.pattern, " ", `\s+`)) // also over the end of a line
	}
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(all, "|") + `)\b`)
}()

// unchecked are the pages that checkPages leaves out. The changelog contains the words of earlier versions.
var unchecked = []string{"CHANGELOG.md"}

func goFolders(t *testing.T) (folders []string) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && path != "../.." && (name == "testdata" || isForeign(name)):
			return filepath.SkipDir
		case strings.HasSuffix(name, ".go"):
			if folder := filepath.Dir(path); !slices.Contains(folders, folder) {
				folders = append(folders, folder)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(folders) < 60 {
		t.Errorf("only %d folders with Go files have been found, want at least 60", len(folders))
	}
	return folders
}

// isForeign reports whether the files of a folder are generated, or written by others.
func isForeign(name string) bool {
	return name == "dist" || name == "node_modules" || strings.HasPrefix(name, ".")
}

// instead returns the replacement of a banned phrase, or "something else" if phrases has none.
func instead(found string) string {
	found = strings.Join(strings.Fields(found), " ")
	for _, p := range phrases {
		if regexp.MustCompile(`(?i)^(?:` + p.pattern + `)$`).MatchString(found) {
			return p.instead
		}
	}
	return "something else"
}

// otherProse matches the names of text files that are neither pages nor Go files. The test checks their whole
// text.
var otherProse = regexp.MustCompile(`\.(?:lua|sh|ya?ml|py|ts|js|css|html|tmpl|conf|cfg|service|toml)$|^(?:Makefile|Dockerfile|Caddyfile)$`)

// TestLanguage finds phrases that readers outside of the project do not understand: in pages, in comments and
// string literals of Go files, and in scripts and configurations.
func TestLanguage(t *testing.T) {
	check := func(path string, line int, text string) {
		text = blank(text, notProse, allowed)
		for _, at := range banned.FindAllStringIndex(text, -1) {
			found := text[at[0]:at[1]]
			t.Errorf("%s:%d: write %q instead of %q", path, line+strings.Count(text[:at[0]], "\n"), instead(found), found)
		}
	}
	text := make(map[string]*strings.Builder)
	checkPages(t, func(path string, line int, content string) {
		if text[path] == nil {
			text[path] = &strings.Builder{}
		}
		text[path].WriteString(strings.Repeat("\n", line-1-strings.Count(text[path].String(), "\n")) + content)
	})
	for path, text := range text {
		check(path, 1, text.String())
	}
	others := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "../.." && isForeign(d.Name()):
			return filepath.SkipDir
		case !d.IsDir() && otherProse.MatchString(d.Name()):
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			others++
			check(path, 1, string(data))
		}
		return nil
	})
	if err != nil || others < 100 {
		t.Errorf("%d files other than pages and Go files have been found, want at least 100; %v", others, err)
	}
	for _, folder := range goFolders(t) {
		for path, groups := range proseOf(t, folder) {
			for line, text := range groups {
				check(path, line, text)
			}
		}
	}
}

func TestLanguageFindsPhrases(t *testing.T) {
	for text, want := range map[string]string{
		"the fast door answers": "door", "A batch in flight": "", "two flights": "flights", "one round trip": "",
		"a trip to Redis": "trip", "in\nflight": "", "the client is\ntold": "is\ntold", "`twin`": "", "the client is told": "is told", "a kind word": "", "Redis is away": "is away", "it throws them away": "", "it met no limit": "met no limit", "Nobody is in a hurry": "in a hurry",
	} {
		if got := banned.FindString(blank(text, notProse, allowed)); got != want {
			t.Errorf("%q: found %q, want %q", text, got, want)
		}
	}
}

// onlyLink matches a list item that consists of a link: it cannot be wrapped.
var onlyLink = regexp.MustCompile(`^(?:\d+\.|-) \[[^]]*\]\([^)]*\)$`)

// Tables, code and lines that cannot be wrapped are exempt.
func TestLines(t *testing.T) {
	const most = 100
	checkPages(t, func(path string, line int, text string) {
		trimmed := strings.TrimSpace(text)
		exempt := strings.HasPrefix(trimmed, "|") || strings.HasPrefix(trimmed, "#") || strings.HasPrefix(trimmed, "<!--") ||
			strings.HasPrefix(trimmed, "![") || !strings.Contains(strings.TrimLeft(trimmed, "-* "), " ") || onlyLink.MatchString(trimmed)
		if n := utf8.RuneCountInString(text); n > most && !exempt {
			t.Errorf("%s:%d: has %d characters; wrap lines at %d", path, line, n, most)
		}
	})
}

func TestTablesHaveHeads(t *testing.T) {
	before := ""
	rule := regexp.MustCompile(`^\|[-: |]+\|$`)
	checkPages(t, func(path string, line int, text string) {
		if rule.MatchString(text) && slices.ContainsFunc(strings.Split(strings.Trim(before, "|"), "|"),
			func(head string) bool { return strings.TrimSpace(head) == "" }) {
			t.Errorf("%s:%d: a column has no title: %s", path, line-1, before)
		}
		before = text
	})
}

// checkPages calls check with each line of the written pages that is not code.
func checkPages(t *testing.T, check func(path string, line int, text string)) {
	t.Helper()
	pages := 0
	eachPage(t, func(path, text string) {
		name := strings.TrimPrefix(path, "../../")
		if strings.HasPrefix(name, "docs/reference/") || slices.Contains(unchecked, name) {
			return
		}
		pages++
		fence := false
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fence = !fence
			} else if !fence {
				check(name, i+1, line)
			}
		}
	})
	if pages < 30 {
		t.Errorf("only %d pages have been found, want at least 30", pages)
	}
}

// notProse matches inline code, targets of links, HTML comments and URLs.
var notProse = regexp.MustCompile("`[^`]*`|\\]\\([^)]*\\)|<!--.*?-->|https?://\\S+")

// blank replaces each character that the expressions match by an x, so that line numbers stay the same.
func blank(text string, expressions ...*regexp.Regexp) string {
	for _, e := range expressions {
		text = e.ReplaceAllStringFunc(text, func(found string) string {
			return regexp.MustCompile(`[^\n]`).ReplaceAllString(found, "x")
		})
	}
	return text
}

// proseOf returns the comments and the texts with several words of a folder's Go files, by file and line.
func proseOf(t *testing.T, folder string) map[string]map[int]string {
	t.Helper()
	found := make(map[string]map[int]string)
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if filepath.Base(path) == "language_test.go" { // this file contains all the phrases
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		found[path] = make(map[int]string)
		for _, group := range file.Comments {
			var lines []string
			for _, c := range group.List {
				lines = append(lines, strings.TrimPrefix(c.Text, "//"))
			}
			found[path][set.Position(group.Pos()).Line] = strings.Join(lines, "\n")
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING && strings.Contains(text.Value, " ") {
				found[path][set.Position(text.Pos()).Line] += "\n" + text.Value
			}
			return true
		})
	}
	return found
}
