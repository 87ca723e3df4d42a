package advise

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestGrid(t *testing.T) {
	h := NewMemory(0).New()
	requestsAt(h, "a", 0)
	requestsAt(h, "b", 0, 0, 59)
	requestsAt(h, "c", 30, 30, 30, 30)
	spec := algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 1, Period: minute, Start: new(algorithms.Micros)}
	a := adviceOn(t, h, policyOf(t, spec), 0.01)
	g, err := a.Grid(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sparse := func(list []int64) string {
		var text []string
		for i, n := range list {
			if n != 0 {
				text = append(text, fmt.Sprintf("%d:%d", i, n))
			}
		}
		return fmt.Sprintf("%d bins, %s", len(list), strings.Join(text, " "))
	}
	if got, want := sparse(g.Requests), "60 bins, 0:3 30:4 59:1"; got != want || g.From != start || g.To != start+59*second {
		t.Errorf("requests in %s from %d to %d; want %s from %d to %d", got, g.From, g.To, want, start, start+59*second)
	}
	var points []string
	for _, p := range g.Points {
		points = append(points, fmt.Sprintf("%d: %d clients, %d requests, %d need it, %s", p.N, p.Clients, p.Requests, p.Need, sparse(p.Denied)))
	}
	want := `1: 2 clients, 5 requests, 1 need it, 60 bins, 0:1 30:3 59:1
2: 2 clients, 3 requests, 0 need it, 60 bins, 30:2 59:1
3: 1 clients, 1 requests, 1 need it, 60 bins, 30:1
4: 0 clients, 0 requests, 1 need it, 60 bins, `
	if got := strings.Join(points, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
