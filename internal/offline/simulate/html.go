package simulate

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
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

	page = htmltemplate.Must(htmltemplate.New("report").Parse(reportHTML))
)

// document has the values for the template. Keys and names in it are printable ASCII.
type document struct {
	Name                  string
	From, To              string
	Requests, Denied      int64
	DeniedShare           string
	Limits                []drawn
	InFlight              []drawnPeaks
	Others                int
	Style                 htmltemplate.CSS
	Script                htmltemplate.JS
	StyleHash, ScriptHash string
	Data                  drawing
}

type drawn struct {
	Title, Period, Field  string
	Words                 string
	Clients, Requests     int64
	Sample                string
	Busiest               *advise.Busiest
	BusiestBy, BusiestAt  string
	Configured            advise.Outcome
	Points                []drawnPoint
	Suggested, Share, Out string
	LargestNeeds          []drawnClient
}

// drawnPeaks describes a concurrency limit.
type drawnPeaks struct {
	Title, Words, Note string
	Requests, Denied   int64
	Keys               []drawnPeak
}

type drawnPeak struct {
	Key  string
	Peak int64
	At   string
}

type drawnPoint struct {
	advise.Point
	Limit                       string
	ClientsShare, RequestsShare string
	Suggested                   bool
}

type drawnClient struct {
	Key      string
	Need     string
	Requests int64
	Allowed  bool
}

// drawing has the values that the script draws.
type drawing struct {
	Requests []int64        `json:"requests"`
	Denied   []int64        `json:"denied"`
	From     int64          `json:"from"` // ms since 1970
	To       int64          `json:"to"`
	Limits   []drawingLimit `json:"limits"`
}

type drawingLimit struct {
	Field         string         `json:"field"`
	From          int64          `json:"from"`
	To            int64          `json:"to"`
	Clients       int64          `json:"clients"`
	Requests      int64          `json:"requests"`
	RequestsByBin []int64        `json:"requestsByBin"`
	Points        []drawingPoint `json:"points"`
	Suggested     int            `json:"suggested"` // index in Points; -1: none
}

type drawingPoint struct {
	N        int64   `json:"n"`
	Need     int64   `json:"need"`
	Clients  int64   `json:"clients"`
	Requests int64   `json:"requests"`
	Denied   []int64 `json:"denied"`
	Limit    string  `json:"limit"`
}

// WriteHTML writes the report as a single HTML file. name is the name of the input.
func (r *Report) WriteHTML(ctx context.Context, w io.Writer, name string) error {
	t := r.tally
	line := &t.timeline
	d := document{
		Name: descriptors.Printable(name), From: moment(t.first), To: moment(t.last), Requests: t.requests, Denied: t.denied,
		DeniedShare: percent(t.denied, t.requests), Style: htmltemplate.CSS(reportCSS), Script: htmltemplate.JS(reportJS),
		StyleHash: sourceHash(reportCSS), ScriptHash: sourceHash(reportJS),
		Data: drawing{
			Requests: line.requests, Denied: line.denied, Limits: []drawingLimit{},
			From: millis(line.from), To: millis(line.from + algorithms.Micros(len(line.requests))*line.width),
		},
	}
	shown := slices.Clone(r.Advice)
	slices.SortStableFunc(shown, func(x, y *advise.Advice) int { return cmp.Compare(y.Requests, x.Requests) })
	d.Others = r.others + max(0, len(shown)-maxDrawn)
	for _, a := range shown[:min(maxDrawn, len(shown))] {
		grid, err := a.Grid(ctx)
		if err != nil {
			return err
		}
		text, numbers := draw(a, grid)
		d.Limits, d.Data.Limits = append(d.Limits, text), append(d.Data.Limits, numbers)
	}
	for _, r := range t.inFlightLimits() {
		p := drawnPeaks{Title: r.title(), Words: r.policy.Words(), Note: r.outlivedNote(), Requests: r.requests, Denied: r.denied}
		for _, f := range r.busiest {
			p.Keys = append(p.Keys, drawnPeak{descriptors.Printable(f.shown), f.peak, moment(f.at)})
		}
		d.InFlight = append(d.InFlight, p)
	}
	return page.Execute(w, d)
}

// sourceHash returns the hash by which a Content-Security-Policy names a style or a script.
func sourceHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func millis(t algorithms.Micros) int64 { return int64(t / 1000) }

func draw(a *advise.Advice, grid *advise.Grid) (drawn, drawingLimit) {
	b := &a.Busiest
	text := drawn{
		Title: titleOf(a.Policy), Period: a.Period(), Field: a.Field(), Words: a.Policy.Words(),
		Clients: a.Clients, Requests: a.Requests - a.Missed, Busiest: b, BusiestBy: descriptors.Printable(b.By.Shown), BusiestAt: moment(b.At),
		Configured: a.Configured, Share: share(a.Share),
	}
	if a.Every > 1 {
		text.Sample = fmt.Sprintf("This is of a sample of %d of about %d clients, each with the same probability. At %s of the clients it is off by %s at most (95 %%).",
			a.Clients, a.About, share(a.Share), share(a.Error))
	}
	numbers := drawingLimit{
		Field: a.Field(), From: millis(grid.From), To: millis(grid.To), Clients: a.Clients, Requests: text.Requests,
		RequestsByBin: grid.Requests, Points: []drawingPoint{}, Suggested: -1,
	}
	for i, p := range grid.Points {
		is := a.Suggested != nil && p.N == a.Suggested.N
		if is {
			numbers.Suggested, text.Suggested = i, a.Of(p.N)
		}
		text.Points = append(text.Points, drawnPoint{p, a.Candidate(p.N), percent(p.Clients, a.Clients), percent(p.Requests, text.Requests), is})
		numbers.Points = append(numbers.Points, drawingPoint{p.N, p.Need, p.Clients, p.Requests, p.Denied, a.Of(p.N)})
	}
	if o := a.Outlier(); o != nil {
		text.Out = outlierWords(a, o)
	}
	for _, c := range a.LargestNeeds {
		allowed := a.Suggested != nil && c.Need > 0 && c.Need <= a.Suggested.N
		needs := fmt.Sprint(c.Need)
		if c.Need == 0 {
			needs = "more than any number"
		}
		text.LargestNeeds = append(text.LargestNeeds, drawnClient{descriptors.Printable(c.Shown), needs, c.Requests + c.Missed, allowed})
	}
	return text, numbers
}
