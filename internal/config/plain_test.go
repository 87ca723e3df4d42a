package config

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// FuzzPlain compares plainReader with the YAML library: what plainReader can read, the library reads into equal nodes.
func FuzzPlain(f *testing.F) {
	for _, file := range plainSeeds(f) {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, done := decodePlain(data, &slabs{})
		defer done()
		if got != nil {
			requireSameNodes(t, data, got)
		}
	})
}

func TestPlainReaderReadsWhatTheLibraryReads(t *testing.T) {
	plain := 0
	for _, file := range plainSeeds(t) {
		got, done := decodePlain(file, &slabs{})
		defer done()
		if got != nil {
			plain++
			requireSameNodes(t, file, got)
		}
	}
	if plain < 60 {
		t.Errorf("only %d of the files are plain", plain)
	}
}

// plainSeeds returns the files of the tests and examples, and short ones at the edge of what is plain.
func plainSeeds(t testing.TB) (files [][]byte) {
	for _, pattern := range []string{"testdata/*.yaml", "../../examples/*/*.yaml", "../../examples/*/*/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, data)
		}
	}
	for _, text := range []string{
		"a: b", "a: b\nc: d\n", "a:\n- b: c\n  d: e\n- f: g\nh: i\n", "a:\n  - - b: c\n    - d: e\n", "- a\n- b\n", "a: b # c\n", "a: b#c\n",
		"# a\n\n  # b\na: 1\n # c\n", "a: {b: 1, c: [d, 'e', \"f\"]}\n", "a: {}\nb: []\n", "a: 'b'\n", "a: \"b\"\n", "a: '''b'\n", "a: \"\\n\"\n",
		"a: b: c\n", "a: b\n c\n", "a:\n", "a: {b}\n", "a: [b: c]\n", "a: {b: c,}\n", "a: {b:c}\n", "a: b c  d  # e\n", "a:b\n", "a: \"b\"#c\n",
		"true: 1\nnull: 2\n1: 3\n", "a: 0x1f\nb: 1_000\nc: 2026-01-01\nd: 01\ne: 1e3\nf: .5\n", "---\na: b\n", "a: b\n---\nc: d\n", "a: &b c\nd: *b\n",
		"a: |\n  b\n", "a: !!str 1\n", "a: -1\n", "a: - b\n", "a:  -\n", "- \n", "-\n", "a: ..\n", "...\n", "a: b\n...\n", "  a: b\n  c: d\n", "  a: b\n c: d\n",
		"a: b\n- c\n", "- a: b\n c: d\n", "a:\n  b: c\n d: e\n", "a: {b: {c: {d: e}}}  \n", "a: [b, [c, d]]\n", "<<: a\n", "a: <<\n", "a: %b\n", "a:\t b\n",
		"a: ä\n", "a: b\r\n", "- a: b\n- \n", "a: b\n\n\n", "a.b-c: d\n", "a: {b: c} # d\n", "a: {b: c}# d\n", "a: b:c\n", "a: b:\n", "a: [1,2]\n", "a: [ 1 , 2 ]\n",
		"-- : a\n", "--- a\n", "a: ---\n", "a: yes\nb: on\nc: ~\nd: null\n", "a:\n# b\n- c # d\n# e\n- f\n", "a: #b\n  c: d\n", "a: 1:2\n", "y: n\n",
		"a:\n  - b\n  -\n", "- - - a\n", "-  a: b\n   c: d\n", "a: b\n # c\nd: e", "a: ''\nb: \"\"\n", "a: '# b'\n", "a: b'c\n", "a: /v1/*\n", "_: _\n",
	} {
		files = append(files, []byte(text))
	}
	return files
}

func requireSameNodes(t rapid.TB, data []byte, got *yaml.Node) {
	t.Helper()
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var want, more yaml.Node
	if err := decoder.Decode(&want); err != nil {
		t.Fatalf("the library: %v\n%s", err, data)
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		t.Fatalf("the library reads a second document (%v)\n%s", err, data)
	}
	if diff := cmp.Diff(shapeOf(want.Content[0]), shapeOf(got)); diff != "" {
		t.Fatalf("- library, + plainReader: %s\n%s", diff, data)
	}
}

// shape has what the parser reads of a node.
type shape struct {
	Kind         yaml.Kind
	Style        yaml.Style
	Tag, Value   string
	Line, Column int
	Content      []shape
}

func shapeOf(n *yaml.Node) shape {
	s := shape{n.Kind, n.Style, n.ShortTag(), n.Value, n.Line, n.Column, nil}
	for _, one := range n.Content {
		s.Content = append(s.Content, shapeOf(one))
	}
	return s
}

// TestPlainReaderOnRandomLines composes files from parts of YAML, in columns that mostly belong together.
func TestPlainReaderOnRandomLines(t *testing.T) {
	plain := 0
	rapid.Check(t, func(t *rapid.T) {
		var b strings.Builder
		for range rapid.IntRange(1, 8).Draw(t, "lines") {
			b.WriteString(strings.Repeat(" ", rapid.SampledFrom([]int{0, 0, 0, 2, 2, 2, 4, 4, 1, 3}).Draw(t, "column")))
			b.WriteString(rapid.SampledFrom([]string{"", "", "- ", "- ", "- - ", "-  ", "-", "? "}).Draw(t, "dash"))
			b.WriteString(rapid.SampledFrom([]string{"a:", "b:", "c: ", "d: ", "e: ", "f: ", "true: ", "10: ", "", "", "a b: ", "\"q\": ", "# ", "g:"}).Draw(t, "key"))
			b.WriteString(rapid.SampledFrom([]string{
				"", "", "x", "x y", "1", "-1", "1.5", "yes", "no", "null", "~", "x: y", "x:", "x:y", "x # z", "x# z", "'x'", "\"x\"", "'x", "'it''s'", "\"\\x\"",
				"{}", "[]", "{a: 1}", "{a: 1, b: {c: [x, 'y']}}", "[a, b]", "[a: b]", "{a}", "{a:1}", "{a: 1", "[a,]", "{a: 'b'c}", "{'a': b}", "{a: b c}",
				"*a", "&a x", "|", ">", "!!str x", "%x", "@x", "`x", "---", "...", "/v1/*", "x/*", "(x)", "=", "<<", ".", "..", "_", "0x10", "012", "1_0", "2026-01-02",
			}).Draw(t, "value"))
			b.WriteString(rapid.SampledFrom([]string{"\n", "\n", "\n", "\n", " \n", "\n\n", " # z\n", "#z\n", "", "\r\n", "\t\n"}).Draw(t, "end"))
		}
		data := []byte(b.String())
		got, done := decodePlain(data, &slabs{})
		defer done()
		if got != nil {
			plain++
			requireSameNodes(t, data, got)
		}
	})
	if plain == 0 {
		t.Error("none of the files is plain")
	}
}
