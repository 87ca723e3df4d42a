package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

type manCmd struct{}

func (manCmd) Help() string {
	return `The page is in the format of man(1).

Example:

  rlsidecar man > /usr/local/share/man/man1/rlsidecar.1`
}

func (manCmd) Run(a *app, parsed *kong.Context) error {
	var b bytes.Buffer
	version, _ := build()
	fmt.Fprintf(&b, ".TH RLSIDECAR 1 \"\" %s\n.SH NAME\nrlsidecar \\- %s\n", roffQuote("rlsidecar "+version), roff(strings.ToLower(parsed.Model.Help[:1])+strings.TrimSuffix(parsed.Model.Help[1:], ".")))
	b.WriteString(".SH SYNOPSIS\n.B rlsidecar\n.I command\n[\\fIflags\\fR] [\\fIarguments\\fR]\n.SH COMMANDS\n")
	for _, c := range parsed.Model.Children {
		manCommand(&b, c)
	}
	b.WriteString(`.SH ENVIRONMENT
If a flag is not given, its environment variable sets it. If neither is given, the variable of envoyproxy/ratelimit does.
.B rlsidecar env
lists all variables.
.SH EXIT STATUS
.TP
.B 0
Success.
.TP
.B 1
A negative result: a mistake in a configuration, a failed scenario, a server that is not ready.
.TP
.B 2
Wrong usage.
.TP
.B 3
Failure: a file that cannot be read, a port that is in use, a network error.
`)
	_, err := b.WriteTo(a.stdout)
	return err
}

func manCommand(b *bytes.Buffer, c *kong.Node) {
	fmt.Fprintf(b, ".SS %s\n%s\n", roff(c.Summary()), roff(c.Help))
	// The text already has the layout for --help, with indented examples.
	fmt.Fprintf(b, ".PP\n.nf\n%s\n.fi\n", roff(c.Detail))
	for _, f := range c.Flags {
		if f.Name == "help" {
			continue
		}
		name := "--" + f.Name
		if !f.IsBool() {
			name += "=" + f.FormatPlaceHolder()
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(name), roff(f.Help))
		if len(f.Envs) > 0 {
			fmt.Fprintf(b, "Variable: %s.\n", roff(f.Envs[0]))
		}
	}
}

func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

// roffQuote quotes s as one argument of a roff request.
func roffQuote(s string) string { return `"` + strings.ReplaceAll(roff(s), `"`, `""`) + `"` }
