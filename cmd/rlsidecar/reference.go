package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/reference/migrate"
	"github.com/rlsidecar/rlsidecar/internal/reference/refenv"
)

// reference holds the settings that result from the reference server's environment variables.
type reference struct {
	refenv.Settings
	err error
}

// readEnvironment reads the reference server's variables. Empty variables count as not set. It removes empty
// variables of rlsidecar from the environment, because the command line parser would use them.
func readEnvironment(asServer bool) reference {
	env := map[string]string{}
	for _, word := range os.Environ() {
		name, value, _ := strings.Cut(word, "=")
		if env[name] = value; value == "" && strings.HasPrefix(name, ownPrefix) {
			_ = os.Unsetenv(name) // cannot fail, because the variable exists
		}
	}
	settings, err := refenv.Read(env, asServer)
	return reference{settings, err}
}

// likeServe lists the commands whose settings the reference server's variables can set.
var likeServe = []string{"serve", "doctor", "healthcheck"}

// resolve returns the value that the reference server's variables set for a flag. The command line and
// rlsidecar's own variables take precedence. If they name the source of the configuration, the reference server's
// variables about that source have no effect.
func (r reference) resolve(parsed *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	value, ok := r.Values[flag.Name]
	switch {
	case !ok || r.err != nil || parent.Command == nil || !slices.Contains(likeServe, parent.Command.Name) || isSet(parsed, flag.Name):
		return nil, nil
	case flag.Name != "config" && flag.Name != "start-without-config" && !strings.HasPrefix(flag.Name, "xds-"):
		return value, nil
	case isSet(parsed, "config") || isSet(parsed, "xds-server"):
		return nil, nil
	default:
		return value, nil
	}
}

// isSet reports whether the command line or rlsidecar's own variable has a value for a setting.
func isSet(parsed *kong.Context, setting string) bool {
	return os.Getenv(variableName(setting)) != "" ||
		slices.ContainsFunc(parsed.Path, func(p *kong.Path) bool { return p.Flag != nil && p.Flag.Name == setting })
}

// variable is the effect of a variable of the reference server.
type variable struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"` // "environment" or "default"
	Effect string `json:"effect"`
}

// variables lists all variables of the reference server.
func variables(model *kong.Node) (list []variable) {
	hidden := onlyVariables(model)
	for _, known := range refenv.Variables() {
		v := variable{known.Name, known.Default, "default", known.Effect}
		if set := os.Getenv(known.Name); set != "" {
			v.Value, v.Source = known.Shown(set), "environment"
		}
		if known.Sets != "" {
			v.Effect = "--" + known.Sets
			if hidden[known.Sets] {
				v.Effect = variableName(known.Sets)
			}
			if known.Effect != "" {
				v.Effect += "; " + known.Effect
			}
		}
		list = append(list, v)
	}
	return list
}

// checkReference reports what differs from the reference server: for files, or for the environment if there are none.
func (c *checkCmd) checkReference(a *app, parsed *kong.Context) error {
	if len(c.Paths) == 0 {
		list := variables(parsed.Model.Node)
		err := c.print(a.stdout, list, "{{range .}}\n{{.Name}} | {{.Value}} | {{.Source}} | {{.Effect}}\n{{end}}\n")
		if err == nil && a.reference.err != nil {
			return exitError{exitNo, a.reference.err}
		}
		return err
	}
	if err := readable(c.Paths); err != nil {
		return err
	}
	files, unread := config.Read(c.Paths)
	notes := append([]migrate.Note{}, migrate.Review(files)...) // not nil, so that JSON has [] and not null
	refused := unread.Bad()
	for _, n := range notes {
		refused = refused || n.Kind == migrate.Refused
	}
	for _, p := range unread {
		fmt.Fprintln(a.stderr, p)
	}
	if err := c.print(a.stdout, notes, "{{range .}}\n{{.String}}\n{{end}}\n"); err != nil || !refused {
		return err
	}
	return exitError{code: exitNo}
}
