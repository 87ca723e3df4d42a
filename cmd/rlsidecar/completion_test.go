package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

func printed(t *testing.T, args ...string) (file string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), args, nil, &stdout, &stderr); code != exitDone {
		t.Fatalf("%v: exit code %d, want %d: %s", args, code, exitDone, stderr.String())
	}
	return write(t, stdout.String())
}

func outputOf(t *testing.T, program string, args ...string) []string {
	t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// completions are command lines, and words that each shell must offer for them.
var completions = []struct {
	line []string // the last is the part of a word that is typed so far
	want []string
}{
	{[]string{"rlsidecar", "se"}, []string{"serve"}},
	{[]string{"rlsidecar", "che"}, []string{"check"}},
	{[]string{"rlsidecar", "serve", "--log-le"}, []string{"--log-level"}},
	{[]string{"rlsidecar", "serve", "--log-level", ""}, []string{"debug", "info", "warn", "error"}},
	{[]string{"rlsidecar", "serve", "--http-listen", "x", "--log-f"}, []string{"--log-format"}},
	{[]string{"rlsidecar", "completion", "f"}, []string{"fish"}},
	{[]string{"rlsidecar", "adjust", "se"}, []string{"set"}},
	{[]string{"rlsidecar", "adjust", "set", "--prev"}, []string{"--preview"}},
}

func TestEveryCommandAndFlagIsOffered(t *testing.T) {
	parser, err := newParser(&commands{}, reference{}, io.Discard, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	offered := func(words ...string) (list []string) {
		for _, o := range offers(parser.Model.Node, words) {
			word, _, _ := strings.Cut(o, "\t")
			list = append(list, word)
		}
		return list
	}
	var visit func(node *kong.Node, words []string)
	visit = func(node *kong.Node, words []string) {
		flags := offered(append(slices.Clone(words), "--")...)
		for _, f := range node.Flags {
			if !f.Hidden && !slices.Contains(flags, "--"+f.Name) {
				t.Errorf("%v: --%s is not offered", words, f.Name)
			}
		}
		for _, c := range node.Children {
			if !slices.Contains(offered(append(slices.Clone(words), "")...), c.Name) {
				t.Errorf("%v: %s is not offered", words, c.Name)
			}
			visit(c, append(slices.Clone(words), c.Name))
		}
	}
	visit(parser.Model.Node, []string{"rlsidecar"})
}

func TestBashCompletes(t *testing.T) {
	bash, script := tooltest.Path(t, "bash"), printed(t, "completion", "bash")
	for _, c := range completions {
		words := []string{"-c", `source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _rlsidecar; printf '%s\n' "${COMPREPLY[@]}"`, script}
		if got := outputOf(t, bash, append(words, c.line...)...); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
	}
	// bash treats = as a word of its own.
	words := []string{"-c", `source "$0"; COMP_WORDS=(rlsidecar serve --log-level = w); COMP_CWORD=4; _rlsidecar; printf '%s\n' "${COMPREPLY[@]}"`, script}
	if got := outputOf(t, bash, words...); !slices.Equal(got, []string{"warn"}) {
		t.Errorf("--log-level=w: got %q, want [\"warn\"]", got)
	}
}

func TestFishCompletes(t *testing.T) {
	fish, script := tooltest.Path(t, "fish"), printed(t, "completion", "fish")
	for _, c := range completions {
		var got []string
		for _, line := range outputOf(t, fish, "--no-config", "-c", "source "+script+"; complete -C "+quote(strings.Join(c.line, " "))) {
			word, _, _ := strings.Cut(line, "\t")
			got = append(got, word)
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(c.want))
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", c.line, got, want)
		}
	}
}

// zsh shows the words only in a terminal, by its function _describe. Here _describe prints them.
func TestZshCompletes(t *testing.T) {
	zsh, script := tooltest.Path(t, "zsh"), printed(t, "completion", "zsh")
	const describe = `compdef() {}; _files() { print files }; _describe() { print -rl -- "${(@P)2}" }; source "$0"; words=("$@"); CURRENT=$#; `
	for _, c := range completions {
		var got []string
		for _, line := range outputOf(t, zsh, append([]string{"-fc", describe + "_rlsidecar", script}, c.line...)...) {
			word, help, found := strings.Cut(line, ":")
			if got = append(got, word); !found || strings.Contains(c.line[len(c.line)-1], "--") && help == "" {
				t.Errorf("%q: %q has no help", c.line, line)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
	}
	// In _describe a colon ends a word.
	if got := outputOf(t, zsh, "-fc", describe+`rlsidecar() { print "a:b\thelp: c" }; _rlsidecar`, script, "rlsidecar", "get", ""); !slices.Equal(got, []string{`a\:b:help\: c`}) {
		t.Errorf("a word with a colon: %q", got)
	}
	if got := outputOf(t, zsh, "-fc", describe+"_rlsidecar", script, "rlsidecar", "serve", "--config", ""); !slices.Equal(got, []string{"files"}) {
		t.Errorf("in place of a file: %q; want files", got)
	}
}

func TestZshLoadsItsCompletion(t *testing.T) {
	zsh, script := tooltest.Path(t, "zsh"), printed(t, "completion", "zsh")
	const setup = "autoload -U compinit; compinit -u -D; "
	if got := outputOf(t, zsh, "-fc", setup+"source "+script+"; print $_comps[rlsidecar]; whence -w _rlsidecar"); !slices.Equal(got, []string{"_rlsidecar", "_rlsidecar: function"}) {
		t.Errorf("sourced: got %q; want the function _rlsidecar, registered for rlsidecar", got)
	}
	folder := t.TempDir()
	if err := os.Rename(script, filepath.Join(folder, "_rlsidecar")); err != nil {
		t.Fatal(err)
	}
	if got := outputOf(t, zsh, "-fc", "fpath=("+folder+" $fpath); "+setup+"print $_comps[rlsidecar]; autoload +X _rlsidecar && print loaded"); !slices.Equal(got, []string{"_rlsidecar", "loaded"}) {
		t.Errorf("loaded from a folder: got %q; want the function _rlsidecar, registered for rlsidecar", got)
	}
}
