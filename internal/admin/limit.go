package admin

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/duration"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const maxListRows = 20

type limitBody struct {
	Domain, Name, Words, Mode string
	// ID contains the domain and name as raw bytes, for the form.
	ID               history.Key
	Facts            []fact
	Source           source
	Chart            chart
	Total            history.Totals
	UsedSince        string
	Denied, Shadowed who
	Used             []usedRow
	// Values has the labels of the form's fields for the key: the names of the values that identify a bucket, or "key"
	// for a named limit. It is empty if the limit has only one bucket.
	Values      []string
	Unlimited   bool
	Adjustments []adjustedRow
	// Settling describes the reservations. It is empty for a limit without settle.
	Settling []fact
	// Raise and Block are links to forms that change all keys. They are "" if adjustments are not enabled, or if the
	// client may not make changes.
	Raise, Block string
}

type fact struct{ Name, Text string }

func (p *pages) limit(w http.ResponseWriter, r *http.Request, v viewer) {
	q := r.URL.Query()
	domain, name := q.Get("domain"), q.Get("name")
	l := p.catalogs.of(p.Current()).find(domain, name)
	if l == nil {
		p.problem(w, r, v, http.StatusNotFound, "There is no limit of this name in the configuration in use.", "")
		return
	}
	ofThis := func(d, l string) bool { return d == domain && l == name }
	b := limitBody{
		ID:     history.Key{Domain: domain, Limit: name},
		Domain: descriptors.Printable(domain), Name: descriptors.Printable(name), Words: l.Words(), Mode: modes(l),
		Facts: facts(l), Source: p.source(l), Chart: p.chartOf("/limit", q), Total: p.Totals(l), Unlimited: l.Unlimited, Settling: p.settling(l),
		Denied: p.who(p.Denied(maxDenied), "denied", whoKeys, ofThis), Shadowed: p.who(p.Shadowed(maxDenied), "would be denied", whoKeys, ofThis),
	}
	b.UsedSince, b.Used = p.used(domain, name)
	for _, key := range l.Extra().OpenKeys {
		b.Values = append(b.Values, descriptors.Printable(key))
	}
	if l.Extra().Named {
		b.Values = []string{"key"} // applications choose the values
	}
	if p.Adjust != nil {
		b.Adjustments = p.adjustmentsOf(domain, name)
		if v.mayWrite {
			all := subject{Domain: domain, Limit: name}
			b.Block, b.Raise = changeLink("block", &all, allKeys), changeLink("raise", &all, allKeys)
		}
	}
	p.show(w, r, v, http.StatusOK, limitPage, frame{Title: "Limit " + b.Name, Live: true, Body: b})
}

func (p *pages) adjustmentsOf(domain, name string) (rows []adjustedRow) {
	all, _ := p.Adjust.List()
	for i := range all {
		if t := &all[i].Target; t.Domain == domain && t.Limit == name && len(rows) < maxListRows {
			rows = append(rows, adjusted(&all[i]))
		}
	}
	return rows
}

func facts(l *limiter.Policy) (list []fact) {
	for _, f := range l.Facts() {
		if (!f.Default || f.Name == "on_backend_failure") && f.Name != "settle" && !l.Unlimited {
			list = append(list, fact{f.Name, f.Text})
		}
	}
	return list
}

type source struct {
	Place string
	Lines []sourceLine
	Note  string
}

type sourceLine struct {
	Number int
	Text   string
	Marked bool
}

const (
	// maxLines and maxLine bound the lines, and the bytes of a line, in an excerpt of a file.
	maxLines, maxLine = 40, 200
	// maxScanned bounds how many bytes of a file are read to find an excerpt.
	maxScanned = 16 << 20
)

// source reads the lines of the file that configure l. For a named limit these are the lines of its
// definition.
func (p *pages) source(l *limiter.Policy) source {
	if d := p.Current().Domains[l.Domain]; d != nil && d.Named[l.Name] != nil {
		l = d.Named[l.Name]
	}
	s := source{Place: l.Place.String()}
	info, err := os.Stat(l.Place.File)
	if err != nil || l.Place.Line == 0 {
		s.Note = "The configuration did not come from a file that can be read here. This is what it means:"
		s.Lines = asYAML(l)
		return s
	}
	if info.ModTime().After(p.Reload().Loaded) {
		s.Note = "The file has changed since it was loaded. These lines may not be what is in force."
	}
	s.Lines = block(l.Place.File, l.Place.Line)
	return s
}

// block returns the lines of a YAML file that configure a limit, at most maxLines. number is the number of the line
// in the limit's Place. In the block style, that is the line of the limit's first key. So the result starts at the
// nearest line above it with less indentation, which has the limit's name. If that is the line of rate_limit, the
// result starts at the descriptor above it.
func block(file string, number int) (lines []sourceLine) {
	var text []string
	readLines(file, func(n int, one string) bool {
		text = append(text, one)
		return n < number+maxLines
	})
	if number > len(text) {
		return nil
	}
	first := number - 1
	if !strings.Contains(text[first], "{") {
		first = above(text, first)
		if strings.HasPrefix(strings.TrimSpace(text[first]), "rate_limit:") {
			first = above(text, first)
		}
	}
	last := first + 1
	for last < len(text) && (strings.TrimSpace(text[last]) == "" || indent(text[last]) > indent(text[first])) {
		last++
	}
	for i := first; i < min(last, first+maxLines); i++ {
		lines = append(lines, sourceLine{i + 1, text[i], false})
	}
	for len(lines) > 0 && strings.TrimSpace(lines[len(lines)-1].Text) == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// above returns the index of the nearest line above line i with less indentation, or i if there is no such
// line.
func above(text []string, i int) int {
	for j := i - 1; j >= 0; j-- {
		if strings.TrimSpace(text[j]) != "" && indent(text[j]) < indent(text[i]) {
			return j
		}
	}
	return i
}

func indent(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// readLines calls visit with the lines of a file, counted from 1, until visit returns false. It truncates lines to
// maxLine bytes. If the file cannot be opened, it does not call visit.
func readLines(name string, visit func(n int, text string) bool) {
	f, err := os.Open(name)
	if err != nil {
		return
	}
	defer f.Close()
	scanner := bufio.NewScanner(io.LimitReader(f, maxScanned))
	scanner.Buffer(nil, maxScanned)
	for n := 1; scanner.Scan(); n++ {
		if !visit(n, cut(scanner.Text(), maxLine)) {
			return
		}
	}
}

func asYAML(l *limiter.Policy) (lines []sourceLine) {
	add := func(text string) { lines = append(lines, sourceLine{len(lines) + 1, text, false}) }
	add("rate_limit:")
	add("  name: " + strconv.Quote(l.Name))
	if l.Unlimited {
		add("  unlimited: true")
		return lines
	}
	period := duration.Format(l.Limit.Period())
	if c := l.Limit.Calendar; c != nil {
		period = c.Unit
	}
	add("  algorithm: " + l.Limit.Kind.String())
	add(fmt.Sprintf("  rate: %d", l.Limit.Rate))
	add("  period: " + period)
	add(fmt.Sprintf("  capacity: %d", l.Limit.Capacity))
	return lines
}

func excerptAround(name string, line int) (lines []sourceLine) {
	readLines(name, func(n int, text string) bool {
		if n >= line-2 {
			lines = append(lines, sourceLine{n, text, n == line})
		}
		return n < line+2
	})
	return slices.Clip(lines)
}

func moment(t algorithms.Micros) string { return at(time.UnixMicro(int64(t))) }
