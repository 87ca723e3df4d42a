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

func TestTheNumbersOfAGridAreFew(t *testing.T) {
	for _, most := range []int64{1, 2, 7, 1_000_000} {
		h := NewMemory(0).New()
		c := requestsAt(h, "a", 0)
		if most > 1 {
			h.Add(c, start, most-1)
		}
		a := adviceOn(t, h, policyOf(t, perMinute), 0.01)
		numbers := a.numbers()
		if numbers[0] != 1 || numbers[len(numbers)-1] != most || len(numbers) > ladder+len(a.Candidates)+1 || len(numbers) < min(int(most), ladder) {
			t.Errorf("up to %d: got %v; want at most %d numbers from 1", most, numbers, ladder+len(a.Candidates)+1)
		}
		for i := 1; i < len(numbers); i++ {
			if numbers[i] <= numbers[i-1] || float64(numbers[i]) > 2*float64(numbers[i-1]) {
				t.Errorf("up to %d: %d follows %d; want a larger number, at most twice as large", most, numbers[i], numbers[i-1])
			}
		}
	}
}
