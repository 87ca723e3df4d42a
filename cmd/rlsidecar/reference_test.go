package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/test/docgen"
)

func TestReference(t *testing.T) {
	parser, err := kong.New(&commands{})
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.WriteString("# The command line\n\n`make docs` generates this page from the output of `--help`.\n\nAfter the `=` of a flag, a word in capital letters stands for your value. Other text after the `=`,\nand a value in parentheses at the end of the description, is the default. A name that starts with\n`$` is the environment variable of the flag. [Operations](../operations.md#flags) has the flags of\n`serve` in groups.\n\nThe exit codes are:\n\n- 0: success\n- 1: a negative result, such as a mistake, a failed test, or a limit that does not exist\n- 2: wrong usage\n- 3: failure, such as a file that cannot be read, or a sidecar that does not answer\n")
	section := func(args ...string) {
		var out bytes.Buffer
		if code := run(t.Context(), append(args, "--help"), nil, &out, &out); code != exitDone {
			t.Fatalf("%q --help: exit code %d, want %d\n%s", args, code, exitDone, out.String())
		}
		page.WriteString("\n## `" + strings.TrimSpace("rlsidecar "+strings.Join(args, " ")) + "`\n\n```\n" + strings.TrimSpace(out.String()) + "\n```\n")
	}
	section()
	for _, leaf := range parser.Model.Leaves(true) {
		section(strings.Fields(leaf.Path())...)
	}
	docgen.Check(t, "../..", "reference/cli.md", page.String())
}
