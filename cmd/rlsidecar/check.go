package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

type checkCmd struct {
	Paths     []string `arg:"" optional:"" name:"path" help:"File, folder of *.yaml and *.yml files, or folder/**."`
	Reference bool     `help:"Instead, report what differs from the reference server, envoyproxy/ratelimit: in the files or, without PATH, in the environment."`
	format
	RedisURL string `name:"redis-url" placeholder:"URL" setting:"flag" help:"The URL that serve will use. check does not connect to it. With redis+cluster://, check warns about descriptors whose limits a cluster charges in several steps."`
	configSettings
}

func (checkCmd) Help() string {
	return `Prints one line for each mistake to standard output, as file:line:column: message, and
exits with 1 if there is one. Lines with "warning:" do not change the exit code. All
paths together are one configuration.

With --reference, the files are those of envoyproxy/ratelimit. check prints a line for
each setting that rlsidecar refuses or that has another effect in rlsidecar, with the
remedy: file:line:column: refused|differs: text. Without PATH, it prints the environment
variables of envoyproxy/ratelimit, with their values and effects. Secrets are not shown.

Example:

  rlsidecar check limits.yaml
  rlsidecar check --format json /etc/rlsidecar/
  rlsidecar check --reference ratelimit/config/*.yaml
  rlsidecar check --reference`
}

func (c *checkCmd) Run(a *app, parsed *kong.Context) error {
	switch {
	case c.Reference:
		return c.checkReference(a, parsed)
	case len(c.Paths) == 0:
		return exitError{exitUsage, errors.New("no configuration: name a file or a folder")}
	}
	if err := readable(c.Paths); err != nil {
		return err
	}
	options := c.options(a.reference)
	scheme, _, _ := strings.Cut(c.RedisURL, "://")
	options.Cluster = strings.HasSuffix(scheme, "+cluster")
	snapshot, problems := config.Load(c.Paths, options)
	err := c.print(a.stdout, append(config.Problems{}, problems...), "{{range .}}\n{{.}}\n{{end}}\n") // [] and not null in JSON
	if err == nil && snapshot != nil && c.Format == "text" {
		owners := map[string]bool{}
		for _, p := range snapshot.Policies {
			owners[p.Owner] = true
		}
		_, err = fmt.Fprintf(a.stdout, "ok: %s, %s\n", count(len(snapshot.Domains), "domain"), count(len(owners), "limit"))
	}
	switch {
	case err != nil:
		return err
	case problems.Bad():
		return exitError{code: exitNo}
	default:
		return nil
	}
}

// writeJSON writes v with all characters escaped that are not printable. Package json leaves most of them as they are,
// and with U+009B, for example, the text of a client could control the operator's terminal.
func writeJSON(w io.Writer, v any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	var safe strings.Builder
	for _, r := range text.String() {
		if unicode.IsPrint(r) || r == '\n' {
			safe.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&safe, `\u%04x`, unit)
		}
	}
	_, err := io.WriteString(w, safe.String())
	return err
}
