package admin

import (
	"net/http"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/diff"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
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
	// Changes are the differences from the previous configuration. It is nil if there was no previous one.
	Changes *Changes
}

// Refusal is a mistake in a rejected configuration, with the lines of the file that surrounded it at that
// time.
type Refusal struct {
	Text  string
	Lines []sourceLine
}

const maxRefusals = 50

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
			r.Lines = excerptAround(p.File, p.Line)
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

const maxChangedRows = 200

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
	More            string
}

func (p *pages) configuration(w http.ResponseWriter, r *http.Request, v viewer) {
	b := configurationBody{Reload: p.Reload()}
	b.LoadedAt, b.FailedAt = at(b.Loaded), at(b.Failed)
	if s := p.Current(); s != nil {
		b.Hash = cut(s.Hash, 12)
		b.Limits = plural(int64(len(p.catalogs.of(s).limits)), "limit")
		b.Domains = plural(int64(len(s.Domains)), "domain")
		b.Stays = "The configuration before it stays in use."
	}
	if c := b.Changes; c != nil && c.Added+c.Removed+c.Edited > len(c.Rows) {
		b.More = plural(int64(c.Added+c.Removed+c.Edited-len(c.Rows)), "more limit")
	}
	p.show(w, r, v, http.StatusOK, configurationPage, frame{Title: "Configuration", Section: "/configuration", Body: b})
}
