// Command bom lists the modules of a Go program as CycloneDX, and writes the texts of their licences, which must be
// distributed with the program. It fails if it does not know a licence, so that no new licence goes unnoticed. Its
// output is reproducible.
//
//	go run ./scripts/bom PROGRAM SBOM.json LICENSES.txt
package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: bom PROGRAM SBOM.json LICENSES.txt")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "bom:", err)
		os.Exit(1)
	}
}

// part is a module of the program, the Go standard library, or a library that the program embeds.
type part struct {
	path, version, sum string
	folder             string
	npm                bool   // a package of npm, not a module
	license            string // its identifier in SPDX
	texts              []text
}

type text struct {
	file string
	data []byte
}

func run(program, sbom, licenses string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	parts := []part{{path: "std", version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps { // info.Deps is sorted
		if m.Replace != nil {
			return fmt.Errorf("%s has %s in place of %s: a release must not contain replaced modules", program, m.Replace.Path, m.Path)
		}
		parts = append(parts, part{path: m.Path, version: m.Version, sum: m.Sum})
	}
	for i := range parts {
		if err := parts[i].find(); err != nil {
			return err
		}
	}
	parts = append(parts, embedded...)
	for i := range parts {
		if err := parts[i].read(); err != nil {
			return err
		}
	}
	data, err := json.MarshalIndent(describe(info, parts), "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(sbom, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(licenses, together(parts), 0o644)
}

// embedded are the parts that the program embeds as files of this repository.
var embedded = []part{{path: "uplot", version: "1.6.32", folder: "internal/admin/assets/uplot", npm: true}}

// find sets the folder of a module.
func (p *part) find() error {
	command := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", p.path+"@"+p.version)
	if p.path == "std" {
		command = exec.Command("go", "env", "GOROOT")
	}
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	p.folder = strings.TrimSpace(string(out))
	if err != nil {
		return fmt.Errorf("find %s %s: %w: %s", p.path, p.version, err, stderr.String())
	}
	if p.folder == "" {
		return fmt.Errorf("%s %s is not in the module cache: go mod download", p.path, p.version)
	}
	return nil
}

// read reads the licences in the folder.
func (p *part) read() error {
	entries, err := os.ReadDir(p.folder)
	if err != nil {
		return err
	}
	for _, e := range entries { // entries is sorted by name
		if e.IsDir() || !regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)`).MatchString(e.Name()) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(p.folder, e.Name()))
		if err != nil {
			return err
		}
		p.texts = append(p.texts, text{e.Name(), data})
		if license := identify(data); license != "" && p.license == "" {
			p.license = license
		}
	}
	if p.license == "" {
		return fmt.Errorf("%s %s: none of its %d licence files has a known licence; examine them, and add the licence to known", p.path, p.version, len(p.texts))
	}
	return nil
}

// known lists licences that permit use in a program under the Apache License if their text is distributed
// with the program. words are characteristic of the licence. The first licence whose words all occur in a
// text is the licence of that text.
var known = []struct {
	id    string
	words []string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0", "TERMS AND CONDITIONS FOR USE"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "endorse or promote"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}},
	{"MIT", []string{"Permission is hereby granted, free of charge, to any person", "THE SOFTWARE IS PROVIDED"}},
}

func identify(data []byte) string {
	words := strings.Join(strings.Fields(string(data)), " ")
	for _, k := range known {
		if !slices.ContainsFunc(k.words, func(w string) bool { return !strings.Contains(words, w) }) {
			return k.id
		}
	}
	return ""
}

// together joins the licences of all modules into one text. If several modules have the same licence, the
// text repeats it, because each copy names another copyright holder.
func together(parts []part) []byte {
	var b bytes.Buffer
	b.WriteString("rlsidecar is under the Apache License 2.0. It contains the work of others, under these licences.\n")
	for _, p := range parts {
		for _, t := range p.texts {
			fmt.Fprintf(&b, "\n%s\n%s %s: %s\n\n%s\n", strings.Repeat("=", 80), p.path, p.version, t.file, bytes.TrimSpace(t.data))
		}
	}
	return b.Bytes()
}

// These types are the part of CycloneDX 1.6 that is used here.

type document struct {
	Schema       string       `json:"$schema"`
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Ref      string     `json:"bom-ref"`
	Type     string     `json:"type"`
	Name     string     `json:"name"`
	Version  string     `json:"version"`
	Hashes   []hash     `json:"hashes,omitempty"`
	Licenses []license  `json:"licenses"`
	PURL     string     `json:"purl"`
	Props    []property `json:"properties,omitempty"`
}

type hash struct {
	Alg     string `json:"alg"`
	Content string `json:"content"`
}

type license struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn,omitempty"`
}

func purl(path, version string) string { return "pkg:golang/" + strings.ToLower(path) + "@" + version }

func (p part) purl() string {
	if p.npm {
		return "pkg:npm/" + p.path + "@" + p.version
	}
	return purl(p.path, p.version)
}

func licensed(id string) []license {
	var l license
	l.License.ID = id
	return []license{l}
}

func describe(info *debug.BuildInfo, parts []part) document {
	version := os.Getenv("VERSION")
	if version == "" {
		version = info.Main.Version
	}
	main := component{
		Ref: purl(info.Main.Path, version), Type: "application", Name: info.Main.Path, Version: version,
		Licenses: licensed("Apache-2.0"), PURL: purl(info.Main.Path, version),
	}
	for _, s := range info.Settings {
		if slices.Contains([]string{"GOOS", "GOARCH", "CGO_ENABLED", "-tags"}, s.Key) {
			main.Props = append(main.Props, property{"go:" + s.Key, s.Value})
		}
	}
	d := document{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", Spec: "1.6", Version: 1,
		Metadata: metadata{main},
	}
	on := dependency{Ref: main.Ref}
	for _, p := range parts {
		c := component{
			Ref: p.purl(), Type: "library", Name: p.path, Version: p.version,
			Licenses: licensed(p.license), PURL: p.purl(),
		}
		// Go's sum of a module is the SHA-256 of a list that contains the SHA-256 of each of its files.
		if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(p.sum, "h1:")); err == nil && len(sum) == 32 {
			c.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum)}}
		}
		d.Components = append(d.Components, c)
		on.On = append(on.On, c.Ref)
	}
	d.Dependencies = []dependency{on}
	return d
}
