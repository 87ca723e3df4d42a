package docgen

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Command is a command of the command line.
type Command struct {
	// Path has the names of the command and its parents, such as "rlsidecar serve". Usage follows Path in its summary.
	Path, Usage string
	// Help says what the command does. Detail, which has its layout already, says more.
	Help, Detail string
	// Flags are the arguments and flags of this command, and settings that have only a variable.
	Flags []Flag
}

// Flag is a flag of a command, or a setting without a flag.
type Flag struct {
	// Name is "--name", "--name=VALUE" or the name of an argument. "" means that there is only a variable.
	Name string
	// Variable is the environment variable, or "". References are variables of the reference server that set the same.
	Variable   string
	References []string
	// Default is the default of a setting that has only a variable; the Help of a flag names its default.
	Default string
	Help    string
}

// CommandLine returns docs/reference/cli.md. A flag that several commands have is described where it comes first.
func CommandLine(commands []Command) string {
	var p page
	p.begin("The command line", "the declarations of the commands")
	p.line(`A value in parentheses at the end of a description is the default. The name in capital letters after
a flag is its environment variable. A flag takes precedence over its variable, which takes
precedence over a variable of envoyproxy/ratelimit (after ` + "`=`" + `). Empty variables count as not set.
Every user of the machine can see the command line, so give passwords and tokens in files or in
variables.

The exit codes are:

- 0: success
- 1: a negative result, such as a mistake, a failed test, or a limit that does not exist
- 2: wrong usage
- 3: failure, such as a file that cannot be read, or a sidecar that does not answer
`)
	described := map[string]string{} // the commands that describe flags, by name and description
	for _, c := range commands {
		p.line("## ", code(c.Path))
		p.line()
		p.prose("", c.Help+" Usage: "+code(c.Path+" "+c.Usage))
		p.line()
		p.line("```")
		p.line(strings.TrimSpace(c.Detail))
		p.line("```")
		p.line()
		p.flags(c, described)
	}
	return strings.TrimSpace(p.String()) + "\n"
}

func (p *page) flags(c Command, described map[string]string) {
	var variables []Flag
	shared := map[string][]string{}
	begun := false
	for _, f := range c.Flags {
		key := f.Name + f.Variable + f.Help
		switch at, ok := described[key]; {
		case ok && f.Name != "":
			name, _, _ := strings.Cut(f.Name, "=")
			shared[at] = append(shared[at], code(name))
		case ok:
			shared[at] = append(shared[at], code(f.Variable))
		case f.Name == "" && c.Path == "rlsidecar serve":
			variables = append(variables, f)
			described[key] = c.Path
		default:
			described[key] = c.Path
			p.row("setting | variables | meaning", code(cmp.Or(f.Name, f.Variable)), plain(f.Help), f.facts()...)
			begun = true
		}
	}
	if begun && len(shared) > 0 {
		p.line()
	}
	for _, at := range slices.Sorted(maps.Keys(shared)) {
		p.prose("- ", "as for ["+code(at)+"](#"+strings.ReplaceAll(at, " ", "-")+"): "+strings.Join(shared[at], ", "))
		begun = true
	}
	if begun {
		p.line()
	}
	if len(variables) > 0 {
		p.line("### Settings by variable only")
		p.line()
		for _, f := range variables {
			facts := f.facts()
			if f.Default != "" {
				facts = append(facts, "default "+code(f.Default))
			}
			p.row("variable | of the reference server, default | meaning", code(f.Variable), plain(f.Help), facts...)
		}
		p.line()
	}
}

// plain escapes the characters of text that Markdown would interpret.
func plain(text string) string { return strings.NewReplacer("*", `\*`, "<", `\<`).Replace(text) }

func (f Flag) facts() (facts []string) {
	if f.Name != "" && f.Variable != "" {
		facts = append(facts, code(f.Variable))
	}
	for _, name := range f.References {
		facts = append(facts, "= "+code(name))
	}
	return facts
}
