package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// The table is between these lines of docs/trust.md.
const (
	tableStart = "<!-- written by make mutate -->\n"
	tableEnd   = "<!-- end of what make mutate writes -->\n"
)

// writeTable replaces the table in a page.
func writeTable(page string, results []result, now time.Time) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := bytes.Cut(text, []byte(tableStart))
	_, behind, ended := bytes.Cut(rest, []byte(tableEnd))
	if !found || !ended {
		return fmt.Errorf("%s: the lines %q and %q are missing", page, tableStart, tableEnd)
	}
	var b bytes.Buffer
	b.Write(before)
	b.WriteString(tableStart)
	b.WriteString(table(results, now))
	b.WriteString(tableEnd)
	b.Write(behind)
	return os.WriteFile(page, b.Bytes(), 0o644)
}

func table(results []result, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d faults planted, all noticed (%s).\n\n", len(results), now.UTC().Format(time.DateOnly))
	b.WriteString("| area | fault | file | noticed by | after |\n|---|---|---|---|---|\n")
	area := ""
	for _, r := range results {
		first := ""
		if r.Area != area {
			first, area = r.Area, r.Area
		}
		fmt.Fprintf(&b, "| %s | %s | `%s` | `%s` | %.0f s |\n", first, r.Fault, r.File, r.by, r.after.Seconds())
	}
	return b.String()
}
