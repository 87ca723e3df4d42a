package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/internal/reference/refenv"
)

// reference holds the settings that result from the reference server's environment variables.
type reference struct {
	refenv.Settings
	err error
}

const ownPrefix = "RLSIDECAR_"

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

// likeServe lists the commands whose flags the reference server's variables can set.
var likeServe = []string{"serve", "doctor", "healthcheck"}

// resolve returns the value that the reference server's variables set for a flag. The command line and
// rlsidecar's own variables take precedence.
func (r reference) resolve(_ *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	from, ok := r.Flags[flag.Name]
	if !ok || r.err != nil || parent.Command == nil || !slices.Contains(likeServe, parent.Command.Name) {
		return nil, nil
	}
	if _, own := ownValue(flag); own {
		return nil, nil
	}
	return from.Value, nil
}

func ownValue(flag *kong.Flag) (string, bool) {
	for _, name := range flag.Tag.Envs {
		if value := os.Getenv(name); value != "" {
			return value, true
		}
	}
	return "", false
}

type envCmd struct {
	Format string `enum:"text,json" default:"text" help:"Format of the output: text or json."`
}

func (envCmd) Help() string {
	return `Lists the variables of rlsidecar, each of which sets a flag of serve, and then those of
the reference server (envoyproxy/ratelimit). A flag takes precedence over rlsidecar's
variable, which takes precedence over the reference server's. The defaults of the
reference server apply only if the program is started as "ratelimit". Secrets are not
shown.

Example:

  rlsidecar env`
}

type variable struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"` // "environment", "default", or the name of the variable that sets the value
	Effect string `json:"effect"`
}

func (c *envCmd) Run(a *app, parsed *kong.Context) error {
	list := append(a.reference.own(parsed.Model), referenceVariables()...)
	if c.Format == "json" {
		if err := writeJSON(a.stdout, list); err != nil {
			return err
		}
	} else {
		w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
		for _, v := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", v.Name, v.Value, v.Source, v.Effect)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if a.reference.err != nil {
		return exitError{exitNo, a.reference.err}
	}
	return nil
}

func (r reference) own(model *kong.Application) (list []variable) {
	for _, command := range model.Children {
		if command.Name != "serve" {
			continue
		}
		for _, flag := range command.Flags {
			if len(flag.Tag.Envs) == 0 {
				continue
			}
			v := variable{Name: flag.Tag.Envs[0], Value: flag.Default, Source: "default", Effect: "--" + flag.Name + ": " + flag.Help}
			if own, ok := ownValue(flag); ok {
				v.Value, v.Source = own, "environment"
			} else if from, ok := r.Flags[flag.Name]; ok {
				v.Value, v.Source = from.Value, from.From
			}
			secret := strings.HasSuffix(v.Name, "_TOKEN") || flag.Name == "xds-header"
			if v.Value = refenv.Masked(v.Value); v.Value != "" && secret {
				v.Value = "***"
			}
			list = append(list, v)
		}
	}
	return list
}

func referenceVariables() (list []variable) {
	for _, known := range refenv.Variables() {
		v := variable{Name: known.Name, Value: known.Default, Source: "default", Effect: known.Effect}
		if set := os.Getenv(known.Name); set != "" {
			v.Value, v.Source = known.Shown(set), "environment"
		}
		list = append(list, v)
	}
	return list
}
