package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
)

// chart is a chart of all requests, or of one limit. The script draws it from the answer of Source. Without a script the
// numbers stand in a table.
type chart struct {
	Source string
	Ranges []choice
	Rows   []chartRow
	Marks  []markRow
	// Missing means that the limit is not among the busiest, which alone have points.
	Missing bool
}

type chartRow struct{ From, Allowed, Denied, Would string }

type markRow struct{ At, Text string }

// chartQuery returns the limit and the range that q names. The zero Key means all requests.
func chartQuery(q url.Values) (key history.Key, of history.Range) {
	if key, of = (history.Key{Domain: q.Get("domain"), Limit: q.Get("name")}), history.Recent; q.Get("range") == "day" {
		of = history.Day
	}
	return key, of
}

// chartOf describes the chart for the query of a page at path.
func (p *pages) chartOf(path string, q url.Values) chart {
	key, of := chartQuery(q)
	link := func(of string) string {
		q := url.Values{}
		if key.Limit != "" {
			q = url.Values{"domain": {key.Domain}, "name": {key.Limit}}
		}
		if of != "" {
			q.Set("range", of)
		}
		return "?" + q.Encode()
	}
	c := chart{Source: "/chart" + link(q.Get("range"))}
	rows := 15
	if of == history.Day {
		rows = 24
	}
	c.Ranges = []choice{{"15 minutes", path + link(""), of != history.Day}, {"24 hours", path + link("day"), of == history.Day}}
	end, points := p.History.Points(key, of)
	c.Missing = points == nil
	width := len(points) / rows
	for i := len(points) - width; i >= 0 && width > 0; i -= width {
		sum := history.Sum(points[i : i+width])
		c.Rows = append(c.Rows, chartRow{clock(end.Add(-time.Duration(len(points)-i) * of.Step)), count(sum.Allowed), count(sum.Denied), count(sum.Shadowed)})
	}
	marks := p.History.Marks()
	for i := len(marks) - 1; i >= max(0, len(marks)-maxMarksShown); i-- {
		if m := marks[i]; m.At.After(end.Add(-time.Duration(of.Steps) * of.Step)) {
			c.Marks = append(c.Marks, markRow{clock(m.At), m.Text})
		}
	}
	return c
}

const maxMarksShown = 5

// chartData answers with the points of a chart, in columns.
func (p *pages) chartData(w http.ResponseWriter, r *http.Request) {
	key, of := chartQuery(r.URL.Query())
	end, points := p.History.Points(key, of)
	var data struct {
		Time    []int64   `json:"time"`
		Allowed []float64 `json:"allowed"`
		Denied  []float64 `json:"denied"`
		Would   []float64 `json:"would"`
		Marks   []any     `json:"marks"`
	}
	seconds := of.Step.Seconds()
	for i, point := range points {
		data.Time = append(data.Time, end.Add(-time.Duration(len(points)-i)*of.Step).Unix())
		data.Allowed = append(data.Allowed, float64(point.Allowed)/seconds)
		data.Denied = append(data.Denied, float64(point.Denied)/seconds)
		data.Would = append(data.Would, float64(point.Shadowed)/seconds)
	}
	for _, m := range p.History.Marks() {
		data.Marks = append(data.Marks, [2]any{m.At.Unix(), m.Text})
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(data) // an error here means that the client has disconnected
}

// spark is an image of the last fifteen minutes in columns: denied requests on top of allowed ones.
type spark struct {
	Width, Height   int
	Allowed, Denied string // SVG paths
	Text            string
}

const (
	sparkHeight  = 24
	sparkColumns = 30
)

// columns adds up points, for a spark.
func columns(points []history.Point) (list []history.Totals, most uint64) {
	width := max(1, len(points)/sparkColumns)
	for i := 0; i+width <= len(points); i += width {
		sum := history.Sum(points[i : i+width])
		list = append(list, sum)
		most = max(most, sum.Allowed+sum.Denied+sum.Shadowed)
	}
	return list, most
}

// sparkOf draws columns. most is the highest column of all sparks that are compared. denied is the word for denials.
func sparkOf(list []history.Totals, most uint64, denied string) spark {
	s := spark{Width: sparkColumns, Height: sparkHeight, Text: "no points: no requests lately, or other limits are busier"}
	var all history.Totals
	var allowed, deny strings.Builder
	for i, c := range list {
		refused := c.Denied + c.Shadowed
		all.Allowed, all.Denied = all.Allowed+c.Allowed, all.Denied+refused
		if most == 0 {
			continue
		}
		low, high := height(c.Allowed, most), height(c.Allowed+refused, most)
		if refused > 0 { // at least one pixel, so that denials are visible
			high = max(high, 1)
			low = min(low, high-1)
		}
		if low > 0 {
			fmt.Fprintf(&allowed, "M%d %dv-%dh1v%dz", i, sparkHeight, low, low)
		}
		if high > low {
			fmt.Fprintf(&deny, "M%d %dv-%dh1v%dz", i, sparkHeight-low, high-low, high-low)
		}
	}
	if list != nil {
		s.Text = fmt.Sprintf("Last 15 minutes: %s allowed, %s %s.", count(all.Allowed), count(all.Denied), denied)
	}
	s.Allowed, s.Denied = allowed.String(), deny.String()
	return s
}

// height returns the height, in pixels, of a column of n requests. largest is the number of requests in the highest
// column, and must not be 0. height rounds up, so that a single request is visible.
func height(n, largest uint64) int {
	return int((float64(n)*sparkHeight + float64(largest) - 1) / float64(largest))
}
