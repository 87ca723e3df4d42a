package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/reference/migrate"
)

type migrateCmd struct {
	Files  []string `arg:"" name:"file" help:"Configuration of the reference server."`
	Write  bool     `help:"Print the file as it is in effect here, all defaults spelled out."`
	Format string   `enum:"text,json" default:"text" help:"Of the notes: text or json."`
}

// Help is shown by migrate --help.
func (migrateCmd) Help() string {
	return `Reads a configuration of envoyproxy/ratelimit and says what will be different
here, a line for each: file:line:column: refused|differs: what, and what to do.
Exits 1 if something is refused. Nothing is changed: --write prints the file,
with the defaults that differ stated, and without what had no effect there.

Example:

  rlsidecar migrate ratelimit/config/*.yaml
  rlsidecar migrate --write limits.yaml >new.yaml`
}

// Run prints the notes, or the file.
func (c *migrateCmd) Run(a *app) error {
	var files []config.File
	for _, name := range c.Files {
		data, err := os.ReadFile(name)
		if err != nil {
			return exitError{exitFailed, err}
		}
		files = append(files, config.File{Name: name, Data: data})
	}
	if c.Write {
		if len(files) > 1 {
			return exitError{exitUsage, errors.New("--write takes one file at a time")}
		}
		text, err := migrate.Write(files[0])
		if err != nil {
			return exitError{exitNo, err}
		}
		_, err = a.stdout.Write(text)
		return err
	}
	notes := migrate.Review(files)
	var err error
	if c.Format == "json" {
		err = writeJSON(a.stdout, append([]migrate.Note{}, notes...)) // no note is [], not null
	} else {
		for _, n := range notes {
			if _, err = fmt.Fprintln(a.stdout, n); err != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	for _, n := range notes {
		if n.Kind == migrate.Refused {
			return exitError{code: exitNo}
		}
	}
	return nil
}
