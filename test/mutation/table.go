package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// These lines of docs/trust.md enclose the table.
const (
	tableStart = "<!-- written by make catalogue -->\n"
	tableEnd   = "<!-- end of what make catalogue writes -->\n"
)

// writeTable writes the rows of results to the table in a page. If a fault is in faults but not in results, its row
// stays. Rows of faults that no longer exist, or that were not noticed, are removed.
func writeTable(page string, faults []fault, results []result, now time.Time) error {
	rows, err := rowsOf(page, faults)
	if err != nil {
		return err
	}
	before, _, behind, err := divide(page)
	if err != nil {
		return err
	}
	for _, r := range results {
		delete(rows, rowOf(r.fault))
		if r.noticed() {
			rows[rowOf(r.fault)] = fmt.Sprintf("%s `%s` | %.0f s |\n", rowOf(r.fault), r.by, r.after.Seconds())
		}
	}
	return os.WriteFile(page, []byte(before+tableStart+table(faults, rows, now)+tableEnd+behind), 0o644)
}

// divide returns the part of a page before the table, the table, and the part after it.
func divide(page string) (before, in, behind string, err error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return "", "", "", err
	}
	before, rest, found := strings.Cut(string(text), tableStart)
	in, behind, ended := strings.Cut(rest, tableEnd)
	if !found || !ended {
		return "", "", "", fmt.Errorf("%s: the lines %q and %q are missing", page, tableStart, tableEnd)
	}
	return before, in, behind, nil
}

// rowsOf returns the rows in the table of a page that belong to one of faults, by their first cells (see rowOf).
func rowsOf(page string, faults []fault) (map[string]string, error) {
	_, in, _, err := divide(page)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, f := range faults {
		known[rowOf(f)] = true
	}
	rows := map[string]string{}
	for row := range strings.Lines(in) {
		if cells := strings.SplitAfterN(row, " | ", 4); len(cells) == 4 {
			start := strings.TrimSuffix(strings.Join(cells[:3], ""), " ")
			if known[start] {
				rows[start] = row
			}
		}
	}
	return rows, nil
}

// rowOf returns the first three cells of a fault's row, which identify the fault.
func rowOf(f fault) string { return fmt.Sprintf("| %s | %s | `%s` |", f.Area, f.Fault, f.File) }

func table(all []fault, rows map[string]string, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d faults have a row: planted, and noticed. The newest rows are of %s.\n\n", len(rows), len(all), now.UTC().Format(time.DateOnly))
	b.WriteString("| area | fault | file | noticed first by | after |\n|---|---|---|---|---|\n")
	for _, f := range all {
		b.WriteString(rows[rowOf(f)])
	}
	return b.String()
}
