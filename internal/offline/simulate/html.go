package simulate

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	htmltemplate "html/template"
	"io"
	"slices"

	"github.com/rlsidecar/rlsidecar/internal/offline/advise"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// maxDrawn bounds the limits in an HTML report. The report has the limits with the most requests.
const maxDrawn = 10

var (
	//go:embed report.html
	reportHTML string
	//go:embed report.css
	reportCSS string
	//go:embed report.js
	reportJS string

	page = htmltemplate.Must(htmltemplate.New("report").Funcs(htmltemplate.FuncMap{
		"printable": descriptors.Printable, "moment": moment, "percent": percent, "share": share, "title": titleOf, "outlier": outlierWords,
	}).Parse(reportHTML))
)

// document has the values for the template. The template escapes keys and names with the function printable.
type document struct {
	*Report
	Name                  string
	Drawn                 []drawn
	Others                int
	Style                 htmltemplate.CSS
	Script                htmltemplate.JS
	StyleHash, ScriptHash string
	Data                  drawing
}

// drawn is a limit with its Grid.
type drawn struct {
	*advise.Advice `json:"advice"`
	Grid           *advise.Grid `json:"grid"`
}

// drawing has the values that the script draws.
type drawing struct {
	Requests []int64           `json:"requests"`
	Denied   []int64           `json:"denied"`
	From     algorithms.Micros `json:"from_us"`
	To       algorithms.Micros `json:"to_us"`
	Limits   []drawn           `json:"limits"`
}

// WriteHTML writes the report as a single HTML file. name is the name of the input.
func (r *Report) WriteHTML(ctx context.Context, w io.Writer, name string) error {
	shown := r.advised()
	slices.SortStableFunc(shown, func(x, y *advise.Advice) int { return cmp.Compare(y.Requests, x.Requests) })
	limits := []drawn{}
	for _, a := range shown[:min(maxDrawn, len(shown))] {
		grid, err := a.Grid(ctx)
		if err != nil {
			return err
		}
		limits = append(limits, drawn{a, grid})
	}
	line := &r.timeline
	return page.Execute(w, document{
		Report: r, Name: name, Drawn: limits, Others: r.NotAdvised + len(shown) - len(limits), Style: htmltemplate.CSS(reportCSS), Script: htmltemplate.JS(reportJS),
		StyleHash: sourceHash(reportCSS), ScriptHash: sourceHash(reportJS),
		Data: drawing{line.requests, line.denied, line.from, line.from + algorithms.Micros(len(line.requests))*line.width, limits},
	})
}

// sourceHash returns the hash by which a Content-Security-Policy names a style or a script.
func sourceHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
