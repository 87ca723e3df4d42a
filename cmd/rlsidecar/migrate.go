package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/reference/migrate"
)

type migrateCmd struct {
	Files  []string `arg:"" name:"file" help:"Configuration of the reference server."`
	Write  bool     `help:"Rewrite the files as they are in effect here, the defaults that differ spelled out."`
	Print  bool     `help:"Print the file as --write would write it, and change nothing."`
	Format string   `enum:"text,json" default:"text" help:"Of the notes: text or json."`
}

// Help is shown by migrate --help.
func (migrateCmd) Help() string {
	return `Reads a configuration of envoyproxy/ratelimit and says what will be different
here, a line for each: file:line:column: refused|differs: what, and what to do.
Exits 1 if something is refused. Nothing is changed, except by --write: it rewrites
each file with the defaults that differ stated, and without what had no effect there.
--print prints that instead.

Example:

  rlsidecar migrate ratelimit/config/*.yaml
  rlsidecar migrate --print limits.yaml >new.yaml
  rlsidecar migrate --write ratelimit/config/*.yaml`
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
	if c.Write || c.Print {
		return c.rewrite(a, files)
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

// rewrite writes files as they are in effect here: in their place, or one to standard output. A file that cannot be
// rewritten leaves all files as they are.
func (c *migrateCmd) rewrite(a *app, files []config.File) error {
	if c.Write && c.Print {
		return exitError{exitUsage, errors.New("--write changes the files, --print prints one: give one of them")}
	}
	if c.Print && len(files) > 1 {
		return exitError{exitUsage, errors.New("--print takes one file at a time")}
	}
	texts := make([][]byte, len(files))
	for i, f := range files {
		var err error
		if texts[i], err = migrate.Write(f); err != nil {
			return exitError{exitNo, err}
		}
	}
	if c.Print {
		_, err := a.stdout.Write(texts[0])
		return err
	}
	for i, f := range files {
		if err := replaceFile(f.Name, texts[i]); err != nil {
			return exitError{exitFailed, err}
		}
		if _, err := fmt.Fprintf(a.stdout, "wrote %s\n", f.Name); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile replaces the content of a file in one step, and keeps its permissions: a sidecar may be reading it.
func replaceFile(name string, data []byte) error {
	name, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(next.Name()) // gone if it was renamed
	_, err = next.Write(data)
	if err := errors.Join(err, next.Chmod(info.Mode().Perm()), next.Close()); err != nil {
		return err
	}
	return os.Rename(next.Name(), name)
}
