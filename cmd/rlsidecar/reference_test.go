package main

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/internal/reference/refenv"
	"github.com/rlsidecar/rlsidecar/test/docgen"
)

func TestReference(t *testing.T) {
	parser, err := kong.New(&commands{}, kong.Name("rlsidecar"), kong.PostBuild(nameVariables))
	if err != nil {
		t.Fatal(err)
	}
	references := map[string][]string{}
	for _, v := range refenv.Variables() {
		references[v.Sets] = append(references[v.Sets], v.Name)
	}
	var all []docgen.Command
	for _, leaf := range parser.Model.Leaves(true) {
		c := docgen.Command{Path: leaf.FullPath(), Help: leaf.Help, Detail: leaf.Detail}
		c.Usage = strings.TrimPrefix(leaf.Summary(), leaf.Path()+" ")
		for _, arg := range leaf.Positional {
			if !arg.Tag.Hidden {
				c.Flags = append(c.Flags, docgen.Flag{Name: arg.Name, Help: arg.Help})
			}
		}
		for _, f := range leaf.Flags {
			g := docgen.Flag{Help: f.Help}
			if len(f.Envs) > 0 {
				g.Variable = f.Envs[0]
			}
			if f.Hidden {
				g.Default = f.Default
			} else {
				g.Name = "--" + f.Name
				switch {
				case f.Enum != "":
					g.Name += "=" + strings.ReplaceAll(f.Enum, ",", "|")
				case !f.IsBool():
					g.Name += "=" + f.FormatPlaceHolder()
				}
			}
			if leaf.Name == "serve" {
				g.References = references[f.Name]
			}
			c.Flags = append(c.Flags, g)
		}
		all = append(all, c)
	}
	docgen.Check(t, "../..", "reference/cli.md", docgen.CommandLine(all))
}
