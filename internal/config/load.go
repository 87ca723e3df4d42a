package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// below, as the last element of a path, means all files below a folder that are not hidden, with any extension.
const below = "**"

// Root returns the file or folder that path names, without "/**".
func Root(path string) string {
	if filepath.Base(path) == below {
		return filepath.Dir(path)
	}
	return path
}

// Read reads the files of paths, sorted by name within each folder. A path is a file, a folder of *.yaml and
// *.yml files, or folder/** for all files below the folder that are not hidden. A file that is named twice is read
// once.
func Read(paths []string) (files []File, problems Problems) {
	var whole bytes.Buffer // used for all files, so that each file is copied only once
	problems = eachFile(paths, func(name string, content io.Reader) error {
		whole.Reset()
		_, err := whole.ReadFrom(content)
		if err == nil {
			files = append(files, File{Name: name, Data: bytes.Clone(whole.Bytes())})
		}
		return err
	})
	return files, problems
}

// eachFile calls visit with the content of each file that Read returns, in the same order. It returns a problem for
// each path or file that cannot be read, and for each error of visit.
func eachFile(paths []string, visit func(name string, content io.Reader) error) (problems Problems) {
	seen := map[string]bool{}
	report := func(name, message string) {
		problems = append(problems, Problem{File: name, Message: message})
	}
	if len(paths) == 0 {
		report("(no path)", "no configuration file or folder is given; name at least one")
	}
	for _, path := range paths {
		names, err := list(path)
		if err != nil {
			report(path, err.Error())
		}
		for _, name := range names {
			if seen[filepath.Clean(name)] {
				continue
			}
			seen[filepath.Clean(name)] = true
			if err := withFile(name, visit); err != nil {
				report(name, "cannot be read: "+cause(err).Error())
			}
		}
	}
	return problems
}

func list(path string) ([]string, error) {
	if root := Root(path); root != path {
		names, err := walk(root)
		if err == nil && len(names) == 0 {
			err = errors.New("there is no file in the folder or below it")
		}
		return names, err
	}
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

// maxFolders bounds the depth of the folders that walk reads, including the first one. walk ignores deeper folders.
const maxFolders = 16

// walk returns the files below folder that are not hidden, sorted by name within each folder. above lists the
// folders that contain folder. walk ignores a symbolic link that leads back to one of them, because following
// such links could produce any number of names.
func walk(folder string, above ...os.FileInfo) (names []string, err error) {
	here, err := os.Stat(folder)
	if err != nil {
		return nil, fmt.Errorf("the folder cannot be listed: %w", cause(err))
	}
	if slices.ContainsFunc(above, func(one os.FileInfo) bool { return os.SameFile(one, here) }) {
		return nil, nil
	}
	above = append(slices.Clip(above), here)
	entries, err := os.ReadDir(folder) // sorted by name
	if err != nil {
		return nil, fmt.Errorf("the folder cannot be listed: %w", cause(err))
	}
	for _, e := range entries {
		name := filepath.Join(folder, e.Name())
		info, err := os.Stat(name)
		switch {
		case hidden(e.Name()):
		case err == nil && info.IsDir() && len(above) < maxFolders:
			inside, err := walk(name, above...)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			names = append(names, inside...)
		case err != nil || info.Mode().IsRegular(): // reading a broken link later returns a Problem
			names = append(names, name)
		}
	}
	return names, nil
}

// hidden reports whether base is the name of a file that editors or Kubernetes create beside the
// configuration.
func hidden(base string) bool {
	return strings.HasPrefix(base, ".") || strings.HasPrefix(base, "#") || strings.HasSuffix(base, "~")
}

// isConfig reports whether a file in a folder contains configuration. Temporary files of editors
// (.x.yaml.swp, x.yaml~, #x.yaml#) and the "..data" folder of a Kubernetes ConfigMap do not. The links to the
// files of a ConfigMap do.
func isConfig(name string) bool {
	base := filepath.Base(name)
	if hidden(base) || !hasExtension(base) {
		return false
	}
	info, err := os.Stat(name)
	return err != nil || info.Mode().IsRegular() // reading a broken link later returns a Problem
}

func hasExtension(base string) bool {
	extension := filepath.Ext(base)
	return extension == ".yaml" || extension == ".yml"
}

// withFile calls visit with the content of a file. Of a file with more than maxFileSize bytes, visit receives one
// byte more than maxFileSize, so that parse rejects it.
func withFile(name string, visit func(name string, content io.Reader) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return visit(name, io.LimitReader(f, maxFileSize+1))
}

// cause returns err without the path, because the Problem already has the path.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
