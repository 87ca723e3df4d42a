package advise

import (
	"context"
	"math"
	"slices"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// ladder bounds the numbers that a Grid has in addition to the candidates and the largest need.
	ladder = 32
	// Bins is the number of parts into which a Grid divides the time of the log.
	Bins = 60
)

// Grid has the outcome of each number that was tried, from 1 to the largest need of a client, and the denials
// over time.
type Grid struct {
	From algorithms.Micros `json:"from_us"`
	To   algorithms.Micros `json:"to_us"`
	// Requests is the number of requests in each part of the time between From and To.
	Requests []int64 `json:"requests"`
	// Points are in ascending order of their numbers. There are none if no number is large enough for any client.
	Points []Point `json:"points"`
}

// Point is one number of a Grid.
type Point struct {
	Candidate
	// Limit is the limit with this number, as a line of a configuration.
	Limit string `json:"limit"`
	// Denied is the number of denied requests in each part of the time.
	Denied []int64 `json:"denied"`
	// Need is the number of clients whose need (ClientNeed.Need) is at most N, and more than the N of the previous
	// Point.
	Need int64 `json:"need"`
}

// Grid replays the clients with each candidate, and with more numbers between 1 and the largest need.
func (a *Advice) Grid(ctx context.Context) (*Grid, error) {
	g := &Grid{From: a.first, To: a.last, Requests: make([]int64, Bins), Points: []Point{}}
	for _, c := range a.clients {
		for r := c.cursor(); ; {
			at, _, more := r.next()
			if !more {
				break
			}
			g.Requests[a.bin(at)]++
		}
	}
	for _, n := range a.numbers() {
		p := Point{Candidate: Candidate{N: n}, Limit: a.Of(n), Denied: make([]int64, Bins)}
		above := a.above(n)
		// A client that needs at most n has no denied request, so only the others are replayed.
		for _, c := range a.clients[above:] {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			denied := replay(a.shape.at(n), a.Policy.Extra().MaxDelay, c.Client, func(at algorithms.Micros, denied bool) {
				if denied {
					p.Denied[a.bin(at)]++
				}
			}, false)
			if p.Requests += denied; denied > 0 {
				p.Clients++
			}
		}
		p.Need = int64(above)
		if len(g.Points) > 0 {
			p.Need -= int64(a.above(g.Points[len(g.Points)-1].N))
		}
		g.Points = append(g.Points, p)
	}
	return g, ctx.Err()
}

// above returns the index of the first client that needs more than n, or the number of clients if there is none.
func (a *Advice) above(n int64) int {
	i, _ := slices.BinarySearchFunc(a.clients, n, func(c ClientNeed, n int64) int {
		if c.Need > n {
			return 1
		}
		return -1
	})
	return i
}

func (a *Advice) bin(at algorithms.Micros) int {
	return int(float64(at-a.first) / float64(a.last-a.first+1) * Bins)
}

// numbers returns the numbers of a Grid in ascending order: the candidates, the largest need of a client, and numbers
// below it in geometric steps.
func (a *Advice) numbers() []int64 {
	most := a.clients[max(0, a.above(none-1)-1)].Need
	if most == none {
		return nil
	}
	numbers := []int64{most}
	for _, c := range a.Candidates {
		numbers = append(numbers, c.N)
	}
	step := max(1.2, math.Pow(float64(most), 1.0/ladder))
	for n := 1.0; n < float64(most); n = max(n+1, n*step) {
		if a.shape.at(int64(n)) != nil {
			numbers = append(numbers, int64(n))
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}
