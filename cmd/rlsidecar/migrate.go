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
	Files  []string `arg:"" name:"file" help:"Configuration file of the reference server."`
	Write  bool     `help:"Rewrite the files so that rlsidecar accepts them. Defaults that differ are written out, with the reference server's values in comments."`
	Print  bool     `help:"Print the file that --write would write, and change nothing."`
	Format string   `enum:"text,json" default:"text" help:"Format of the notes: text or json."`
}

func (migrateCmd) Help() string {
	return `Reads configuration files of envoyproxy/ratelimit. It prints one line for each setting
that rlsidecar refuses or that has another effect in rlsidecar, with the remedy:
file:line:column: refused|differs: text. Exits with 1 if a setting is refused.

With --write, it rewrites the files: it writes out defaults that differ, and removes keys
that have no effect in the reference server. With --print, it prints the new file instead.

Example:

  rlsidecar migrate ratelimit/config/*.yaml
  rlsidecar migrate --print limits.yaml >new.yaml
  rlsidecar migrate --write ratelimit/config/*.yaml`
}

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
		err = writeJSON(a.stdout, append([]migrate.Note{}, notes...)) // prints [] and not null if there are no notes
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

// rewrite writes the migrated files in place, or prints one. If one file cannot be migrated, rewrite changes
// no file.
func (c *migrateCmd) rewrite(a *app, files []config.File) error {
	if c.Write && c.Print {
		return exitError{exitUsage, errors.New("--write and --print cannot be combined; give one of them")}
	}
	if c.Print && len(files) > 1 {
		return exitError{exitUsage, errors.New("--print needs exactly one file")}
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

// replaceFile replaces the content of a file in one step, because a sidecar may be reading it. The file keeps
// its permissions.
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
	defer os.Remove(next.Name()) // fails after the rename, which does no harm
	_, err = next.Write(data)
	if err := errors.Join(err, next.Chmod(info.Mode().Perm()), next.Close()); err != nil {
		return err
	}
	return os.Rename(next.Name(), name)
}
