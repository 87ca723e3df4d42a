package docgen

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// picture shows the decisions of a limit: the level of its bucket over time, and below it the requests.
type picture struct {
	name     string // the name of the picture's file, without .svg
	title    string
	spec     algorithms.Spec
	until    algorithms.Micros
	requests []request
}

type request struct {
	at      algorithms.Micros
	cost    int64
	reserve bool
}

const second = algorithms.Second

// every returns requests for 1 unit, one each step from the time start to the time end. A request at end is included.
func every(step, start, end algorithms.Micros) (requests []request) {
	for at := start; at <= end; at += step {
		requests = append(requests, request{at: at, cost: 1})
	}
	return requests
}

// pictures returns all pictures. The three kinds of window show the same requests, 11 of them around the edge
// of the window at 30 s.
func pictures() []picture {
	epoch := algorithms.Micros(0)
	around := append(every(4*second, 4*second, 12*second), append(every(second, 25*second, 35*second), every(5*second, 45*second, 85*second)...)...)
	window := func(kind algorithms.Kind) algorithms.Spec {
		s := algorithms.Spec{Kind: kind, Rate: 6, Period: 30 * second}
		if kind == algorithms.FixedWindow {
			s.Start = &epoch
		}
		return s
	}
	return []picture{
		{"token-bucket", "token_bucket, 10 a minute, capacity 5", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 60 * second, Capacity: new(int64(5))},
			60 * second, append(every(second, 5*second, 14*second), every(7*second, 25*second, 60*second)...)},
		{"fixed-window", "fixed_window, 6 in 30 s: nine are allowed within 11 s around the edge of a window", window(algorithms.FixedWindow), 90 * second, around},
		{"sliding-window", "sliding_window, 6 in 30 s, the same requests", window(algorithms.SlidingWindow), 90 * second, around},
		{"sliding-log", "sliding_log, 6 in 30 s, the same requests", window(algorithms.SlidingLog), 90 * second, around},
		{"leaky-bucket", "leaky_bucket, 1 in 5 s, a queue of 3", algorithms.Spec{Kind: algorithms.LeakyBucket, Rate: 1, Period: 5 * second, Capacity: new(int64(3))},
			60 * second, append(every(second, 4*second, 11*second), every(10*second, 35*second, 55*second)...)},
		{"reserving", "token_bucket, 10 a minute, reserving", algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: 60 * second, MaxReserved: new(int64(10))},
			120 * second, []request{{10 * second, 6, true}, {20 * second, 9, true}, {30 * second, 4, true}, {40 * second, 8, true}, {90 * second, 2, false}, {110 * second, 2, false}}},
	}
}

// Positions and sizes in pixels, and colors.
const (
	width, height    = 760, 260
	left, right      = 40, 740
	top, bottom      = 40, 170 // the top and the bottom of the level
	requestsHeight   = 200     // the y coordinate of the requests
	white, ink, grey = "#ffffff", "#24292f", "#8c959f"
	green, red, blue = "#1a7f37", "#cf222e", "#0969da"
)

// SVG draws p. Package algorithms decides the requests.
func (p picture) SVG() (string, error) {
	limit, err := algorithms.Compile(p.spec)
	if err != nil {
		return "", err
	}
	levelAt := func(s algorithms.State, at algorithms.Micros) float64 {
		_, now := limit.Take(s, at, algorithms.Charge{DryRun: true})
		_, fresh := limit.Take(algorithms.State{}, at, algorithms.Charge{DryRun: true})
		return float64(limit.Capacity) * float64(now.Value) / float64(fresh.Value)
	}
	type mark struct {
		request
		algorithms.Decision
	}
	var levels []float64
	var marks []mark
	var state algorithms.State
	const step = second / 10
	next, most, least := 0, float64(limit.Capacity), 0.0
	for at := algorithms.Micros(0); at <= p.until; at += step {
		levels = append(levels, levelAt(state, at))
		for ; next < len(p.requests) && p.requests[next].at <= at; next++ {
			a := p.requests[next]
			var d algorithms.Decision
			state, d = limit.Take(state, a.at, algorithms.Charge{Cost: a.cost, Reserve: a.reserve})
			marks = append(marks, mark{a, d})
			levels = append(levels[:len(levels)-1], levelAt(state, at))
		}
		least = min(least, levels[len(levels)-1])
	}
	x := func(at algorithms.Micros) float64 {
		return left + float64(right-left)*float64(at)/float64(p.until)
	}
	y := func(level float64) float64 { return bottom - float64(bottom-top)*(level-least)/(most-least) }

	var b strings.Builder
	draw := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	draw(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="%s" role="img">`, width, height, ink)
	draw(`<title>%s</title>`, p.title)
	draw(`<rect width="%d" height="%d" fill="%s"/>`, width, height, white)
	draw(`<text x="%d" y="20" font-size="14" font-weight="bold">%s</text>`, left, p.title)
	for _, level := range slices.Compact([]float64{least, 0, most}) {
		draw(`<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="%s" stroke-width="0.5"/>`, left, right, y(level), y(level), grey)
		draw(`<text x="%d" y="%.1f" text-anchor="end">%.0f</text>`, left-6, y(level)+4, level)
	}
	for at := algorithms.Micros(0); at <= p.until; at += p.until / 6 {
		draw(`<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s" stroke-width="0.5"/>`, x(at), x(at), top, requestsHeight+14, grey)
		draw(`<text x="%.1f" y="%d" text-anchor="middle">%d s</text>`, x(at), requestsHeight+30, at/second)
	}
	b.WriteString(`<polyline fill="none" stroke="` + blue + `" stroke-width="2" points="`)
	for i, level := range levels {
		if i > 0 && (level-levels[i-1] < -0.5 || level-levels[i-1] > 0.5) { // a charge or a new window changes the level at once
			fmt.Fprintf(&b, "%.1f,%.1f ", x(algorithms.Micros(i)*step), y(levels[i-1]))
		}
		fmt.Fprintf(&b, "%.1f,%.1f ", x(algorithms.Micros(i)*step), y(level))
	}
	b.WriteString("\"/>\n")
	for _, m := range marks {
		at := x(m.at)
		switch {
		case !m.Allowed:
			draw(`<path d="M%.1f %d l8 8 m0 -8 l-8 8" stroke="%s" stroke-width="2"/>`, at-4, requestsHeight-4, red)
		case m.Wait > 0: // a line from the request to the time at which its turn comes
			draw(`<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s" stroke-width="1.5" stroke-dasharray="3 2"/>`, at, x(m.at+m.Wait), requestsHeight, requestsHeight+10, green)
			draw(`<circle cx="%.1f" cy="%d" r="4" fill="%s" stroke="%s" stroke-width="1.5"/>`, at, requestsHeight, white, green)
			draw(`<circle cx="%.1f" cy="%d" r="4" fill="%s"/>`, x(m.at+m.Wait), requestsHeight+10, green)
		default:
			draw(`<circle cx="%.1f" cy="%d" r="4" fill="%s"/>`, at, requestsHeight, green)
		}
		if m.cost != 1 {
			draw(`<text x="%.1f" y="%d" text-anchor="middle" font-size="10">%d</text>`, at, requestsHeight-10, m.cost)
		}
	}
	draw(`<circle cx="%d" cy="%d" r="4" fill="%s"/><text x="%d" y="%d">allowed</text>`, left+4, height-12, green, left+12, height-8)
	draw(`<path d="M%d %d l8 8 m0 -8 l-8 8" stroke="%s" stroke-width="2"/><text x="%d" y="%d">denied</text>`, left+80, height-16, red, left+92, height-8)
	draw(`<circle cx="%d" cy="%d" r="4" fill="%s" stroke="%s" stroke-width="1.5"/><text x="%d" y="%d">allowed after a wait, which the dashes show</text>`, left+164, height-12, white, green, left+172, height-8)
	draw(`<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="%s" stroke-width="2"/><text x="%d" y="%d">units left</text>`, left+440, left+460, height-12, height-12, blue, left+466, height-8)
	b.WriteString("</svg>\n")
	return b.String(), nil
}

// Pictures returns the files of docs/pictures, by name.
func Pictures() (map[string]string, error) {
	files := make(map[string]string)
	for _, p := range pictures() {
		text, err := p.SVG()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		files[p.name+".svg"] = text
	}
	return files, nil
}
