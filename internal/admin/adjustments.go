package admin

import (
	"net/http"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const auditShown = 20

type adjustmentsBody struct {
	// Off means that adjustments are not enabled. Problem is the reason why they cannot be read or changed
	// now.
	Off        bool
	Problem    string
	Place      string
	Persistent bool
	Rows       []adjustedRow
	More       string
	Audit      []auditRow
}

type auditRow struct{ At, Author, Reason, What string }

func (p *pages) adjustments(w http.ResponseWriter, r *http.Request, v viewer) {
	b := adjustmentsBody{Off: p.Adjust == nil}
	if p.Adjust != nil {
		p.listAdjustments(&b)
		for _, e := range p.Adjust.Audit(auditShown) {
			b.Audit = append(b.Audit, auditRow{At: moment(algorithms.Micros(e.At.UnixMicro())), Author: e.Author, Reason: e.Reason, What: auditWords(e)})
		}
	}
	p.show(w, r, v, http.StatusOK, adjustmentsPage, frame{Title: "Adjustments", Section: "/adjustments", Body: b})
}

func (p *pages) listAdjustments(b *adjustmentsBody) {
	status := p.Adjust.Status()
	b.Place, b.Persistent = status.Place, status.Persistent
	if status.Err != nil {
		b.Problem = status.Err.Error()
	}
	all, _ := p.Adjust.List()
	for i := range all[:min(len(all), rowsShown)] {
		b.Rows = append(b.Rows, adjusted(all[i]))
	}
	if n := len(all) - len(b.Rows); n > 0 {
		b.More = plural(n, "more adjustment") + ": rlsidecar adjust list has them all."
	}
}

func auditWords(e *adjust.Entry) string {
	switch {
	case e.After != nil && e.Before != nil:
		return "replaced by " + adjustmentWords(e.After)
	case e.After != nil:
		return "set " + adjustmentWords(e.After)
	case e.Before != nil:
		return "ended " + adjustmentWords(e.Before)
	default:
		return "ended adjustment " + descriptors.Printable(e.Target)
	}
}

type limitAdjustments struct {
	forAll *adjust.Adjustment // nil if only single keys are adjusted
	// values counts adjustments of all keys with one value, and keys those of one key.
	values, keys int64
}

func (p *pages) adjustedLimits() map[history.Key]limitAdjustments {
	if p.Adjust == nil {
		return nil
	}
	limits := map[history.Key]limitAdjustments{}
	for _, a := range p.Adjust.InForce() {
		of := history.Key{Domain: a.Target.Domain, Limit: a.Target.Limit}
		l := limits[of]
		switch {
		case a.Target.AllKeys:
			l.forAll = a
		case a.Target.Entry != "":
			l.values++
		default:
			l.keys++
		}
		limits[of] = l
	}
	return limits
}

func (p *pages) limitAdjustmentWords(l limitAdjustments) string {
	var parts []string
	if l.forAll != nil {
		if shown, err := p.Adjust.Find(l.forAll.ID); err == nil && shown.Ignored == "" {
			parts = append(parts, "all keys: "+l.forAll.Change.String()+", until "+moment(l.forAll.Expires))
		}
	}
	if l.values > 0 {
		parts = append(parts, plural(l.values, "value"))
	}
	if l.keys > 0 {
		parts = append(parts, plural(l.keys, "single key"))
	}
	return strings.Join(parts, "; ")
}

// blocked reports whether an operator blocks requests to which the targets apply. The first of them that is adjusted has
// effect.
func (p *pages) blocked(targets ...adjust.Target) bool {
	for i := range targets {
		if shown, err := p.Adjust.Find(targets[i].ID()); err == nil {
			return shown.Change.Block
		}
	}
	return false
}

// adjustmentWords describes an adjustment. It does not use the configured limit, which may have changed since.
func adjustmentWords(a *adjust.Adjustment) string {
	return a.Target.String() + ": " + a.Change.String() + ", until " + moment(a.Expires)
}
