package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"
)

// fault is one change of one file that at least one test must notice.
type fault struct {
	Area  string `yaml:"-"`
	Fault string `yaml:"fault"` // the effect of the fault
	File  string `yaml:"file"`
	Old   string `yaml:"old"` // the text to replace, which occurs exactly once in File
	New   string `yaml:"new"`
	// Tests are packages, and Run is the pattern of the tests that run in them. If Tests is empty, the Tests of the
	// area apply. If Run is empty too, the Run of the area applies.
	Tests []string `yaml:"tests"`
	Run   string   `yaml:"run"`
	// Timeout bounds the tests of a fault that makes a test hang. 0 means the value of the command line.
	Timeout time.Duration `yaml:"timeout"`
}

func (f fault) String() string { return f.Area + ": " + f.Fault }

// area is the content of one file of faults.
type area struct {
	Area   string   `yaml:"area"`
	Tests  []string `yaml:"tests"`
	Run    string   `yaml:"run"`
	Faults []fault  `yaml:"faults"`
}

func load(folder string) (all []fault, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no files of faults in %s: %w", folder, err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var a area
		decoder := yaml.NewDecoder(bytes.NewReader(data))
		decoder.KnownFields(true)
		if err := decoder.Decode(&a); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, f := range a.Faults {
			f.Area = a.Area
			if len(f.Tests) == 0 {
				f.Tests = a.Tests
				if f.Run == "" {
					f.Run = a.Run
				}
			}
			switch {
			case f.Area == "" || f.Fault == "" || f.File == "" || f.Old == "" || len(f.Tests) == 0:
				return nil, fmt.Errorf("%s: the fault %q needs an area, a description, file, old and tests", file, f.Fault)
			case f.Old == f.New:
				return nil, fmt.Errorf("%s: the fault %q changes nothing", file, f.Fault)
			case seen[f.String()]:
				return nil, fmt.Errorf("%s: there are two faults %q", file, f.Fault)
			}
			seen[f.String()] = true
			all = append(all, f)
		}
	}
	return all, nil
}

var errNotFound = errors.New("the text to replace is not there, or more than once: adapt the fault to the code")

func (f *fault) apply(data []byte) ([]byte, error) {
	if bytes.Count(data, []byte(f.Old)) != 1 {
		return nil, fmt.Errorf("%s: %w", f.File, errNotFound)
	}
	return bytes.Replace(data, []byte(f.Old), []byte(f.New), 1), nil
}
