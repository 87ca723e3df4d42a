package admin

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/diff"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// Reload is the result of the last load of the configuration.
type Reload struct {
	// Paths are the files and folders of the configuration.
	Paths []string
	// Loaded is when the current configuration was loaded.
	Loaded time.Time
	// Failed is when the last load found mistakes, and Refused has them. It is zero if there were none.
	Failed  time.Time
	Refused []Refusal
	// Loads are the last configurations that were put in use, the newest first.
	Loads []Load
	// Again means that the configuration before the last load was put in use again, until the next load. Before is the
	// hash of the configuration that can be put in use again, or "".
	Again  bool
	Before string
}

// Load is a configuration that was put in use. Changes are the differences from the previous one.
type Load struct {
	At      time.Time
	Changes *Changes
}

// MaxLoads is the number of Loads that are kept.
const MaxLoads = 3

// Refusal is a mistake in a rejected configuration, with the lines of the file that surrounded it at that
// time.
type Refusal struct {
	Text  string
	Lines []sourceLine
}

type sourceLine struct {
	Number int
	Text   string
	Marked bool
}

const (
	maxRefusals = 50
	// maxLine bounds the bytes of a line in an excerpt of a file, and maxScanned the bytes that are read to find it.
	maxLine, maxScanned = 200, 16 << 20
)

// excerpt returns a line of a file with its neighbours. It returns none if the file cannot be read.
func excerpt(name string, line int) (lines []sourceLine) {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	scanner := bufio.NewScanner(io.LimitReader(f, maxScanned))
	scanner.Buffer(nil, maxScanned)
	for n := 1; n <= line+2 && scanner.Scan(); n++ {
		if n >= line-2 {
			lines = append(lines, sourceLine{n, cut(scanner.Text(), maxLine), n == line})
		}
	}
	return lines
}

// Refusals describes the mistakes in problems. It reads the files again to quote their lines.
func Refusals(problems config.Problems) (all []Refusal) {
	for _, p := range problems {
		if p.Warning {
			continue
		}
		if len(all) == maxRefusals {
			return append(all, Refusal{Text: "There are more. rlsidecar check finds all of them."})
		}
		r := Refusal{Text: p.String()}
		if p.Line > 0 {
			r.Lines = excerpt(p.File, p.Line)
		}
		all = append(all, r)
	}
	return all
}

// Changes are the differences between two configurations, limit by limit.
type Changes struct {
	Rows []diff.Change
	// Added, Removed and Edited are the numbers of limits that were added, removed and edited, including
	// limits that are not in Rows.
	Added, Removed, Edited int
}

const maxChangedRows = 50

// Compare returns the differences from before to after.
func Compare(before, after *limiter.Snapshot) *Changes {
	c := &Changes{}
	for _, change := range diff.Limits(before, after) {
		switch change.Kind {
		case diff.Added:
			c.Added++
		case diff.Removed:
			c.Removed++
		default:
			c.Edited++
		}
		if len(c.Rows) < maxChangedRows {
			c.Rows = append(c.Rows, change)
		}
	}
	return c
}

type configurationBody struct {
	Reload
	Hash            string
	Limits, Domains string
	Stays           string
	LoadedAt        string
	FailedAt        string
	Changed         []loadRow
	// InForce are the first limits, in words. More is how many others there are, or "".
	InForce []fact
	More    string
	Author  string
}

// inForceShown is the largest number of limits that fit on three screens of a phone beside what the loads changed.
const inForceShown = 25

type loadRow struct {
	At, Summary, More string
	Rows              []diff.Change
}

func (p *pages) configuration(w http.ResponseWriter, r *http.Request, v viewer) {
	b := configurationBody{Reload: p.Reload(), Author: or(p.access.sessions.author(v.session), defaultAuthor)}
	b.LoadedAt, b.FailedAt = at(b.Loaded), at(b.Failed)
	if s := p.Current(); s != nil {
		b.Hash = cut(s.Hash, 12)
		limits := s.Limits()
		b.Limits = plural(len(limits), "limit")
		b.Domains = plural(len(s.Domains), "domain")
		b.Stays = "The configuration before it stays in use."
		for _, l := range limits[:min(len(limits), inForceShown)] {
			b.InForce = append(b.InForce, fact{descriptors.Printable(l.Name), l.Words()})
		}
		if more := len(limits) - len(b.InForce); more > 0 {
			b.More = plural(more, "more limit")
		}
	}
	for _, load := range b.Loads {
		c := load.Changes
		row := loadRow{At: at(load.At), Rows: c.Rows, Summary: fmt.Sprintf("%s added, %s removed, %s changed", count(c.Added), count(c.Removed), count(c.Edited))}
		if more := c.Added + c.Removed + c.Edited - len(c.Rows); more > 0 {
			row.More = plural(more, "more limit") + " changed"
		}
		b.Changed = append(b.Changed, row)
	}
	p.show(w, r, v, http.StatusOK, configurationPage, frame{Title: "Configuration", Section: "/configuration", Body: b})
}

// useAgain puts the configuration before the last load in use again.
func (p *pages) useAgain(w http.ResponseWriter, r *http.Request, v viewer) {
	author := strings.TrimSpace(r.PostFormValue("author"))
	p.access.sessions.setAuthor(v.session, cut(author, 128))
	if err := p.UseAgain(or(author, defaultAuthor)); err != nil {
		p.problem(w, r, v, http.StatusConflict, "This was not done: "+err.Error()+".", "/configuration")
		return
	}
	http.Redirect(w, r, "/configuration?done=again", http.StatusSeeOther)
}
