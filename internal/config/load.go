package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// read reads the files that paths name: files as they are, of folders the *.yaml and *.yml files,
// by name. A file named twice is read once.
func read(paths []string) (files []File, problems Problems) {
	seen := map[string]bool{}
	trouble := func(name, message string) {
		problems = append(problems, Problem{File: name, Message: message})
	}
	if len(paths) == 0 {
		trouble("(no path)", "no configuration file or folder is given; name at least one")
	}
	for _, path := range paths {
		names, err := list(path)
		if err != nil {
			trouble(path, err.Error())
		}
		for _, name := range names {
			if seen[filepath.Clean(name)] {
				continue
			}
			seen[filepath.Clean(name)] = true
			data, err := readFile(name)
			if err != nil {
				trouble(name, err.Error())
				continue
			}
			files = append(files, File{Name: name, Data: data})
		}
	}
	return files, problems
}

// list names the files that path stands for.
func list(path string) ([]string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot be read: %w", cause(err))
	case !info.IsDir():
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path) // sorted by name
	if err != nil {
		return nil, fmt.Errorf("the folder cannot be listed: %w", cause(err))
	}
	var names []string
	for _, e := range entries {
		if name := filepath.Join(path, e.Name()); isConfig(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the folder has no *.yaml or *.yml file")
	}
	return names, nil
}

// isConfig tells whether a file in a folder is meant as configuration. What editors leave behind
// while they save (.x.yaml.swp, x.yaml~, #x.yaml#) is not, nor are the "..data" folders of a
// Kubernetes ConfigMap; the links to the files in there are.
func isConfig(name string) bool {
	base := filepath.Base(name)
	if strings.HasPrefix(base, ".") || !hasExtension(base) {
		return false
	}
	info, err := os.Stat(name)
	return err != nil || info.Mode().IsRegular() // a link to nowhere is a Problem when it is read
}

func hasExtension(base string) bool {
	extension := filepath.Ext(base)
	return extension == ".yaml" || extension == ".yml"
}

// readFile reads a file of at most maxFileSize bytes; of a larger one, one byte more, which parse
// refuses.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", cause(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", cause(err))
	}
	return data, nil
}

// cause is err without the path, which the Problem names already.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
