package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (completionCmd) Help() string {
	return `The script completes commands, flags, their values, and file names.

Example:

  rlsidecar completion bash > /etc/bash_completion.d/rlsidecar
  rlsidecar completion zsh > /usr/local/share/zsh/site-functions/_rlsidecar
  rlsidecar completion fish > /etc/fish/completions/rlsidecar.fish`
}

func (c *completionCmd) Run(a *app, parsed *kong.Context) error {
	write := map[string]func(*bytes.Buffer, []*kong.Node){"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Shell]
	var b bytes.Buffer
	write(&b, parsed.Model.Children)
	_, err := b.WriteTo(a.stdout)
	return err
}

// choices returns nil if v accepts any word.
func choices(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return strings.Split(v.Enum, ",")
}

func argument(command *kong.Node) *kong.Value {
	if len(command.Positional) == 0 {
		return nil
	}
	return command.Positional[0]
}

func bashCompletion(b *bytes.Buffer, commands []*kong.Node) {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name)
	}
	b.WriteString("# bash completion of rlsidecar. Where it has no words, bash completes files.\n" +
		"_rlsidecar() {\n  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n" +
		"  [ \"$prev\" != = ] || prev=${COMP_WORDS[COMP_CWORD-2]}\n  [ \"$cur\" != = ] || { cur=; prev=${COMP_WORDS[COMP_CWORD-1]}; }\n" +
		"  case $COMP_CWORD:${COMP_WORDS[1]}:$prev:$cur in\n")
	fmt.Fprintf(b, "    1:*) words=%s ;;\n", quote(strings.Join(names, " ")))
	for _, c := range commands {
		var flags []string
		for _, f := range c.Flags {
			flags = append(flags, "--"+f.Name)
			if words := choices(f.Value); words != nil {
				fmt.Fprintf(b, "    *:%s:--%s:*) words=%s ;;\n", c.Name, f.Name, quote(strings.Join(words, " ")))
			}
		}
		fmt.Fprintf(b, "    *:%s:*:-*) words=%s ;;\n", c.Name, quote(strings.Join(append(flags, "--help"), " ")))
		if arg := argument(c); arg != nil && choices(arg) != nil {
			fmt.Fprintf(b, "    2:%s:*) words=%s ;;\n", c.Name, quote(strings.Join(choices(arg), " ")))
		}
	}
	b.WriteString("  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -o default -F _rlsidecar rlsidecar\n")
}

func zshCompletion(b *bytes.Buffer, commands []*kong.Node) {
	b.WriteString("#compdef rlsidecar\n# zsh completion of rlsidecar.\n_rlsidecar() {\n  if (( CURRENT == 2 )); then\n    local -a commands=(\n")
	for _, c := range commands {
		fmt.Fprintf(b, "      %s\n", quote(c.Name+":"+c.Help))
	}
	b.WriteString("    )\n    _describe command commands\n    return\n  fi\n  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n")
	inBrackets := strings.NewReplacer(`\`, `\\`, `[`, `\[`, `]`, `\]`, `:`, `\:`)
	for _, c := range commands {
		fmt.Fprintf(b, "    %s)\n      _arguments '--help[Show what it does.]'", c.Name)
		for _, f := range c.Flags {
			if f.Name == "help" {
				continue
			}
			spec := "--" + f.Name + "[" + inBrackets.Replace(f.Help) + "]"
			if words := choices(f.Value); words != nil {
				spec += ":word:(" + strings.Join(words, " ") + ")"
			} else if !f.IsBool() {
				spec += ":" + inBrackets.Replace(strings.ToLower(f.FormatPlaceHolder())) + ":_files"
			}
			if f.IsSlice() {
				spec = "*" + spec
			}
			fmt.Fprintf(b, " \\\n        %s", quote(spec))
		}
		if arg := argument(c); arg != nil && choices(arg) != nil {
			fmt.Fprintf(b, " \\\n        %s", quote("1:"+arg.Name+":("+strings.Join(choices(arg), " ")+")"))
		} else {
			fmt.Fprintf(b, " \\\n        '*:file:_files'")
		}
		b.WriteString(" ;;\n")
	}
	// When zsh loads the function from a file of the same name, the script calls the function at once. When
	// sourced, the script only registers the function.
	b.WriteString("  esac\n}\nif [[ $funcstack[1] == _rlsidecar ]]; then _rlsidecar \"$@\"; else compdef _rlsidecar rlsidecar; fi\n")
}

func fishCompletion(b *bytes.Buffer, commands []*kong.Node) {
	b.WriteString("# fish completion of rlsidecar.\n")
	for _, c := range commands {
		fmt.Fprintf(b, "complete -c rlsidecar -n __fish_use_subcommand -f -a %s -d %s\n", c.Name, fishQuote(c.Help))
	}
	for _, c := range commands {
		line := fmt.Sprintf("complete -c rlsidecar -n '__fish_seen_subcommand_from %s'", c.Name)
		for _, f := range c.Flags {
			takes := " -r" // the flag takes a value; fish offers file names, unless there are choices
			switch {
			case f.IsBool():
				takes = ""
			case choices(f.Value) != nil:
				takes = " -x -a " + fishQuote(strings.Join(choices(f.Value), " "))
			}
			fmt.Fprintf(b, "%s -l %s%s -d %s\n", line, f.Name, takes, fishQuote(f.Help))
		}
		if !slices.ContainsFunc(c.Flags, func(f *kong.Flag) bool { return f.Name == "help" }) {
			fmt.Fprintf(b, "%s -l help -d 'Show what it does.'\n", line)
		}
		if arg := argument(c); arg != nil && choices(arg) != nil {
			fmt.Fprintf(b, "%s -f -a %s\n", line, fishQuote(strings.Join(choices(arg), " ")))
		}
	}
}

func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
