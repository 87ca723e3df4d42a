package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// The text that a command prints is a template beside the command. A line that consists of {{if}}, {{range}}, {{end}} or
// the like prints nothing. " | " begins the next column of a table, also at the end of a line. {{flush}} ends a table that
// another one follows. safe escapes the text of a client, which could otherwise control the operator's terminal.
var textFuncs = template.FuncMap{
	"safe": descriptors.Printable, "count": count, "when": when, "ago": ago, "micros": micros, "mebibytes": mebibytes, "cut": cutHash,
	"oneLine": oneLine, "bucket": whole, "nextIn": nextIn, "fullIn": fullIn, "debt": debt, "blockedFor": blockedFor,
	"deniedKey": deniedKey, "shared": shared, "share": share, "matched": matched, "buckets": buckets, "xml": escapeXML,
	"lines": func(list []string) string { return strings.Join(list, "\n") },
	"join":  func(list []string) string { return strings.Join(list, ", ") },
	"rate":  func(rate float64) string { return fmt.Sprintf("%.1f", rate) },
}

var (
	controlLine = regexp.MustCompile(`(?m)^ *(\{\{(?:- )?(?:if|else|end|range|with|define|template|flush)\b[^}\n]*\}\})\n`)
	column      = regexp.MustCompile(` \|( |\n *)`)
)

// writeText writes v as the template text describes it.
func writeText(w io.Writer, v any, text string) error {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	flush := func() string { table.Flush(); return "" }
	t := template.New("").Funcs(textFuncs).Funcs(template.FuncMap{"flush": flush})
	text = column.ReplaceAllString(controlLine.ReplaceAllString(text, "$1"), "\t")
	if err := template.Must(t.Parse(text)).Execute(table, v); err != nil {
		return err
	}
	flush()
	_, err := io.WriteString(w, out.String())
	return err
}

func count(n any, thing string) string {
	if fmt.Sprint(n) == "1" {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func ago(t time.Time) string { return max(0, time.Since(t)).Round(time.Second).String() }

// duration formats ms milliseconds. Times of 100 days and more become days, rounded up, because a time.Duration
// holds at most 292 years.
func duration(ms int64) string {
	const day, many = 24 * int64(time.Hour/time.Millisecond), 100
	if ms >= many*day {
		return fmt.Sprintf("%d days", (ms-1)/day+1)
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

func micros(n int64) string { return (time.Duration(n) * time.Microsecond).String() }

func cutHash(hash string) string { return descriptors.Printable(hash[:min(12, len(hash))]) }
