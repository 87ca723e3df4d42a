package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string   `arg:"" enum:"bash,zsh,fish,words" help:"bash, zsh or fish. The scripts themselves use words."`
	Words []string `arg:"" optional:"" passthrough:"" hidden:"" help:"For words: the words typed so far; the last is incomplete."`
}

func (completionCmd) Help() string {
	return `The script completes commands, flags, their values, the named limits of a running sidecar
(RLSIDECAR_HTTP_LISTEN), and file names.

Example:

  rlsidecar completion bash > /etc/bash_completion.d/rlsidecar
  rlsidecar completion zsh > /usr/local/share/zsh/site-functions/_rlsidecar
  rlsidecar completion fish > /etc/fish/completions/rlsidecar.fish`
}

// completionScripts ask this program for the words that may follow, as lines of a word, a tab and its help. Without
// words, they complete file names. zsh calls the function at once when it loads it from a file of the same name.
var completionScripts = map[string]string{
	"bash": `_rlsidecar() {
  local IFS=$'\n'
  COMPREPLY=($(rlsidecar completion words -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" | cut -f1))
}
complete -o default -F _rlsidecar rlsidecar
`,
	"zsh": `#compdef rlsidecar
_rlsidecar() {
  local -a offers=("${(@f)$(rlsidecar completion words -- "${(@)words[1,CURRENT]}")}")
  offers=("${offers[@]//:/\\:}")
  offers=("${offers[@]/$'\t'/:}")
  [[ -z $offers ]] && _files || _describe word offers
}
if [[ $funcstack[1] == _rlsidecar ]]; then _rlsidecar "$@"; else compdef _rlsidecar rlsidecar; fi
`,
	"fish": `function __rlsidecar
  set -l offers (rlsidecar completion words -- (commandline -opc) (commandline -ct))
  test -n "$offers"; and printf '%s\n' $offers; or __fish_complete_path (commandline -ct)
end
complete -c rlsidecar -f -a '(__rlsidecar)'
`,
}

func (c *completionCmd) Run(a *app, parsed *kong.Context) error {
	if c.Shell != "words" {
		_, err := fmt.Fprint(a.stdout, completionScripts[c.Shell])
		return err
	}
	for _, o := range offers(parsed.Model.Node, slices.DeleteFunc(c.Words, func(w string) bool { return w == "--" })) {
		if _, err := fmt.Fprintln(a.stdout, o); err != nil {
			return err
		}
	}
	return nil
}

// offers returns the words that may stand in place of the last of words, each with a tab and its help. It returns none
// where only a file name or free text may stand. bash splits --flag=value into three words, other shells do not.
func offers(node *kong.Node, words []string) (list []string) {
	if n := len(words); n > 1 && words[n-1] == "=" {
		words = append(words, "")
	}
	words = slices.DeleteFunc(words, func(w string) bool { return w == "=" })
	if len(words) < 2 {
		return nil
	}
	typed, previous, before := words[len(words)-1], words[len(words)-2], ""
	if name, value, ok := strings.Cut(typed, "="); ok && strings.HasPrefix(name, "--") {
		typed, previous, before = value, name, name+"="
	}
	offer := func(word, help string) {
		if word != "" && strings.HasPrefix(word, typed) {
			list = append(list, before+word+"\t"+help)
		}
	}
	for _, word := range words[1 : len(words)-1] {
		if i := slices.IndexFunc(node.Children, func(c *kong.Node) bool { return c.Name == word }); i >= 0 {
			node = node.Children[i]
		}
	}
	flag, ofFlag := strings.CutPrefix(previous, "--")
	i := slices.IndexFunc(node.Flags, func(f *kong.Flag) bool { return f.Name == flag })
	switch {
	case ofFlag && flag == "limit" && i >= 0, len(node.Positional) > 0 && node.Positional[0].Name == "limit" && !strings.HasPrefix(typed, "-"):
		for _, name := range limitNames() {
			offer(name, "")
		}
	case ofFlag && i >= 0 && !node.Flags[i].IsBool():
		for _, choice := range node.Flags[i].EnumSlice() {
			offer(choice, "")
		}
	case strings.HasPrefix(typed, "-"):
		for _, f := range node.Flags {
			if !f.Hidden && f.Name != "help" {
				offer("--"+f.Name, f.Help)
			}
		}
		offer("--help", "Show what it does.")
	case len(node.Children) > 0:
		for _, c := range node.Children {
			offer(c.Name, c.Help)
		}
	case len(node.Positional) > 0:
		for _, choice := range node.Positional[0].EnumSlice() {
			offer(choice, "")
		}
	}
	return list
}
