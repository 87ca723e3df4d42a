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

// writeTable writes the rows of results to the table in a page. It keeps the rows of other faults of all, and drops
// those of faults that are not there any more.
func writeTable(page string, all []fault, results []result, now time.Time) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := bytes.Cut(text, []byte(tableStart))
	was, behind, ended := bytes.Cut(rest, []byte(tableEnd))
	if !found || !ended {
		return fmt.Errorf("%s: the lines %q and %q are missing", page, tableStart, tableEnd)
	}
	rows := map[string]string{} // the rows, by their starts
	for row := range strings.Lines(string(was)) {
		for _, f := range all {
			if strings.HasPrefix(row, rowOf(f)) {
				rows[rowOf(f)] = row
			}
		}
	}
	for _, r := range results {
		rows[rowOf(r.fault)] = fmt.Sprintf("%s `%s` | %.0f s |\n", rowOf(r.fault), r.by, r.after.Seconds())
	}
	var b bytes.Buffer
	b.Write(before)
	b.WriteString(tableStart)
	b.WriteString(table(all, rows, now))
	b.WriteString(tableEnd)
	b.Write(behind)
	return os.WriteFile(page, b.Bytes(), 0o644)
}

// rowOf is the start of the row of a fault.
func rowOf(f fault) string { return fmt.Sprintf("| %s | %s | `%s` |", f.Area, f.Fault, f.File) }

func table(all []fault, rows map[string]string, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d faults planted, all noticed; the newest rows are of %s.\n\n", len(rows), now.UTC().Format(time.DateOnly))
	b.WriteString("| area | fault | file | noticed first by | after |\n|---|---|---|---|---|\n")
	for _, f := range all {
		b.WriteString(rows[rowOf(f)])
	}
	return b.String()
}
