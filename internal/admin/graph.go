package admin

import (
	"fmt"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/telemetry/history"
)

// graph is an image of the last fifteen minutes. It consists of columns: denied requests on top of allowed
// requests.
type graph struct {
	Width, Height   int
	Allowed, Denied string // SVG paths
	Text            string
	// Most is the value of the highest column, in requests per second.
	Most float64
}

const graphHeight = 24

// sparkline draws one column for each group of width steps. width must divide their number. denied is the word for
// denied requests in the text.
func sparkline(p []history.Point, width int, denied string) graph {
	columns := make([]history.Totals, 0, len(p)/width)
	most := uint64(0)
	for i := 0; i < len(p); i += width {
		sum := history.Sum(p[i : i+width])
		sum.Denied += sum.Shadowed
		columns = append(columns, sum)
		most = max(most, sum.Allowed+sum.Denied)
	}
	sum := history.Sum(p)
	sum.Denied += sum.Shadowed
	g := graph{Width: len(columns), Height: graphHeight, Most: float64(most) / (float64(width) * history.Step.Seconds())}
	g.Text = fmt.Sprintf("Last 15 minutes: %s allowed, %s %s, at most %s.", count(sum.Allowed), count(sum.Denied), denied, rate(g.Most))
	if most == 0 {
		g.Text = "No requests in the last 15 minutes."
		return g
	}
	var allowed, deny strings.Builder
	for i, c := range columns {
		low := height(c.Allowed, most)
		high := height(c.Allowed+c.Denied, most)
		if c.Denied > 0 { // at least one pixel, so that denials are visible
			high = max(high, 1)
			low = min(low, high-1)
		}
		if low > 0 {
			fmt.Fprintf(&allowed, "M%d %dv-%dh1v%dz", i, graphHeight, low, low)
		}
		if high > low {
			fmt.Fprintf(&deny, "M%d %dv-%dh1v%dz", i, graphHeight-low, high-low, high-low)
		}
	}
	g.Allowed, g.Denied = allowed.String(), deny.String()
	return g
}

// height returns the height, in pixels, of a column of n requests. largest is the number of requests in the highest
// column, and must not be 0. height rounds up, so that a single request is visible.
func height(n, largest uint64) int {
	return int((float64(n)*graphHeight + float64(largest) - 1) / float64(largest))
}
