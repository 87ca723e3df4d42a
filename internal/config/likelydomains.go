package config

import (
	"bytes"
	"strings"
)

// likelyDomains returns the domains that probably have documents in a file: the text after "domain:" at the start of
// each line. It can miss a domain of an unusually written file. That costs only time or memory: such a domain is
// compiled too early and therefore twice, or only after all files are parsed.
func likelyDomains(data []byte) (names []string) {
	const key = "domain:"
	for rest := data; ; {
		at := bytes.Index(rest, []byte(key))
		if at < 0 {
			return names
		}
		start := at == 0 || rest[at-1] == '\n'
		rest = rest[at+len(key):]
		if !start {
			continue
		}
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		name, _, _ := strings.Cut(string(line), " #")
		names = append(names, strings.Trim(strings.TrimSpace(name), `"'`))
	}
}
