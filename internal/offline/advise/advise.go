package advise

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// otherShares are examined in addition to the share that the caller requests.
var otherShares = []float64{0.1, 0.05, 0.001}

// Outcome counts the clients that a limit denied at least once, and the requests that it denied.
type Outcome struct {
	Clients  int64 `json:"clients"`
	Requests int64 `json:"requests"`
}

// Candidate is a number for a limit, and the outcome of a replay with it.
type Candidate struct {
	N int64 `json:"n"`
	Outcome
}

// Busiest summarizes the units that each client requested in its busiest period. P90 is the smallest number that at
// least 90 % of the clients did not exceed (nearest rank). P50, P95 and P99 are defined likewise.
type Busiest struct {
	P50  int64 `json:"p50"`
	P90  int64 `json:"p90"`
	P95  int64 `json:"p95"`
	P99  int64 `json:"p99"`
	Most int64 `json:"most"`
	// By is the key of the client of Most as printable text, and At the start of its busiest period.
	By string            `json:"by,omitempty"`
	At algorithms.Micros `json:"at_us"`
}

// ClientNeed is a client, and the smallest number of a limit that denies none of its requests. A Need of 0 means
// that no number is large enough.
type ClientNeed struct {
	*Client
	Need int64
}

// Advice describes one limit: its clients, the candidates, and the suggestion.
type Advice struct {
	Policy *limiter.Policy `json:"-"`
	// Clients is the number of clients kept: 1 of each Every. About is the estimated number of all clients.
	Clients int64 `json:"clients"`
	About   int64 `json:"-"`
	Every   int64 `json:"every"`
	// Denied is the number of kept clients that the limit denied at least once, in the replay of the whole
	// configuration.
	Denied int64 `json:"clients_denied"`
	// Requests counts all requests of the kept clients. For Missed of these requests, the memory had no room.
	Requests int64 `json:"-"`
	Missed   int64 `json:"missed"`
	// Period is the period of the limit as a configuration states it, such as 1h30m, day or month.
	Period  string  `json:"period"`
	Busiest Busiest `json:"busiest"`
	// Field is the configuration key whose number differs between candidates.
	Field string `json:"field"`
	// Configured is the outcome of a replay of this limit alone, as it is configured.
	Configured Outcome `json:"configured"`
	// Candidates are in ascending order of their numbers.
	Candidates []Candidate `json:"candidates"`
	// Share is the share that the caller requested. Error is the largest difference, with a probability of 95 %, between
	// the share of all clients and the share in the sample. It is 0 if all clients are kept.
	Share float64 `json:"-"`
	Error float64 `json:"-"`
	// Suggested is the Candidate with the widest gap between the clients that it denies and the rest, and Smallest the one
	// with the smallest number. Both deny requests of at most Share of the clients. They are nil if no number is enough.
	Suggested *Candidate `json:"suggested,omitempty"`
	Smallest  *Candidate `json:"smallest,omitempty"`
	// LargestNeeds are the clients with the largest needs, in descending order.
	LargestNeeds []ClientNeed `json:"-"`

	shape   *shape
	clients []ClientNeed // in ascending order of Need; here it is the constant none, not 0, if no number is large enough
	first   algorithms.Micros
	last    algorithms.Micros
}

const maxLargestNeeds = 10

// Advise searches the history of p for limits that deny requests of at most share of the clients. It returns nil if
// the history is empty, or if p has the rate 0.
func (h *History) Advise(ctx context.Context, p *limiter.Policy, share float64) (*Advice, error) {
	a := newAdvice(p)
	a.Share, a.Clients, a.Every = share, int64(len(h.clients)), 1<<h.level
	if a.Clients == 0 || p.Limit.Rate == 0 {
		return nil, ctx.Err()
	}
	a.About = a.Clients * a.Every
	for _, key := range slices.Sorted(maps.Keys(h.clients)) {
		c := h.clients[key]
		a.add(c)
		a.clients = append(a.clients, ClientNeed{c, a.shape.need(c)})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	slices.SortStableFunc(a.clients, func(x, y ClientNeed) int { return cmp.Compare(x.Need, y.Need) })
	a.percentiles()
	for i := range min(maxLargestNeeds, len(a.clients)) {
		client := a.clients[len(a.clients)-1-i]
		if client.Need == none {
			client.Need = 0
		}
		a.LargestNeeds = append(a.LargestNeeds, client)
	}
	a.Configured = a.outcome(ctx, p.Limit, a.clients)
	a.candidates(ctx)
	return a, ctx.Err()
}

func (a *Advice) add(c *Client) {
	if a.first == 0 || c.first < a.first {
		a.first = c.first
	}
	a.last = max(a.last, c.last)
	a.Requests += c.Sent()
	a.Missed += c.Missed
	if c.Denied {
		a.Denied++
	}
}

// Kept returns the number of requests that the Advice is about.
func (a *Advice) Kept() int64 { return a.Requests - a.Missed }

func (a *Advice) percentiles() {
	most, b := make([]int64, 0, len(a.clients)), &a.Busiest
	for i, c := range a.clients {
		units, at := busiest(a.Policy.Limit, c.Client)
		if most = append(most, units); i == 0 || units > b.Most {
			b.Most, b.At, b.By = units, at, c.Shown
		}
	}
	slices.Sort(most)
	b.P50, b.P90, b.P95, b.P99 = percentile(most, 0.50), percentile(most, 0.90), percentile(most, 0.95), percentile(most, 0.99)
}

// percentile returns the smallest number in sorted that at least a share (0 to 1) of the numbers do not exceed (nearest
// rank).
func percentile(sorted []int64, share float64) int64 {
	return sorted[int64(len(sorted))-1-allowed(int64(len(sorted)), 1-share)]
}

// allowed returns the number of clients in a share of n clients, rounded down, but at most n-1. 1 % of 300 is 3, even
// if 0.01*300 is slightly less than 3.
func allowed(n int64, share float64) int64 {
	const grain = 1e-9
	return min(n-1, int64(math.Floor(float64(n)*(share+grain))))
}

// busiest returns the most units that c requested in one period of l, and the time at which that period began. Both are
// 0 if c requested no units.
func busiest(l *algorithms.Limit, c *Client) (most int64, at algorithms.Micros) {
	in := l.Numbers()
	phase := in.PhaseOf(c.Hash)
	const far = math.MaxInt64 / 4 // bounds the cost, so that sums do not overflow
	window, units := int64(math.MinInt64), int64(0)
	for r := c.cursor(); ; {
		now, cost, more := r.next()
		if !more {
			return most, at
		}
		n := floorDiv(in.Ticks(int64(now))-phase, in.Period)
		if l.Calendar != nil {
			n = l.Calendar.Window(now)
		}
		if n != window {
			window, units = n, 0
		}
		units = max(0, min(far, units+max(-far, min(far, cost))))
		if units > most {
			most = units
			if at = algorithms.Micros((n*in.Period + phase) * in.Tick); l.Calendar != nil {
				at = l.Calendar.Start(n)
			}
		}
	}
}

func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a-1)/b + 1)
	}
	return a / b
}

func (a *Advice) candidates(ctx context.Context) {
	numbers := []int64{a.smallest(0), a.smallest(min(1, a.Clients-1))}
	for _, share := range otherShares {
		numbers = append(numbers, a.smallest(a.room(share)))
	}
	suggested := a.suggest(ctx)
	if a.Smallest != nil {
		numbers = append(numbers, a.Smallest.N)
	}
	for _, n := range numbers {
		if n != none && (suggested == nil || n != suggested.N) && !slices.ContainsFunc(a.Candidates, func(c Candidate) bool { return c.N == n }) {
			a.Candidates = append(a.Candidates, a.try(ctx, n))
		}
	}
	if suggested != nil {
		a.Candidates = append(a.Candidates, *suggested)
	}
	slices.SortFunc(a.Candidates, func(x, y Candidate) int { return cmp.Compare(x.N, y.N) })
	for i := range a.Candidates {
		if suggested != nil && a.Candidates[i].N == suggested.N {
			a.Suggested = &a.Candidates[i]
		}
	}
}

// suggest returns the number with the widest gap between the clients that it denies and the rest, among the numbers with
// which a replay of all clients denies requests of no more clients than the share allows. The gap is the need of the
// first denied client divided by the number. Without a gap of at least widest, it returns the smallest of these
// numbers, and nil if there is none.
func (a *Advice) suggest(ctx context.Context) *Candidate {
	const widest = 1.5
	room := a.room(a.Share)
	var best *Candidate
	gap := widest
	for i := a.Clients - 1 - room; i < a.Clients && ctx.Err() == nil; i++ {
		n := a.clients[i].Need
		if n == none {
			break
		}
		wider := float64(0)
		if i+1 < a.Clients {
			wider = float64(a.clients[i+1].Need) / float64(n) // very large if no number is enough for the next client
		}
		if best != nil && wider <= gap {
			continue
		}
		if c := a.try(ctx, n); c.Clients <= room {
			if best == nil {
				a.Smallest = &c
			}
			best, gap = &c, max(gap, wider)
		}
	}
	return best
}

// room returns the number of clients in the history that a limit may deny. For a sample it is a smaller share
// than the requested one, so that in at most one sample of 40 the limit denies more than that share of all
// clients.
func (a *Advice) room(share float64) int64 {
	if a.Every == 1 {
		return allowed(a.Clients, share)
	}
	e := 2 * math.Sqrt(share*(1-share)/float64(a.Clients))
	if share == a.Share {
		a.Error = e
	}
	return allowed(a.Clients, max(0, share-e))
}

// smallest returns the smallest number that denies requests of at most n clients, or the constant none.
func (a *Advice) smallest(n int64) int64 { return a.clients[a.Clients-1-n].Need }

func (a *Advice) try(ctx context.Context, n int64) Candidate {
	return Candidate{n, a.outcome(ctx, a.shape.at(n), a.clients)}
}

func (a *Advice) outcome(ctx context.Context, l *algorithms.Limit, clients []ClientNeed) (o Outcome) {
	for _, c := range clients {
		if ctx.Err() != nil {
			return o
		}
		if denied := replay(l, a.Policy.Extra().MaxDelay, c.Client, func(algorithms.Micros, bool) {}, false); denied > 0 {
			o.Clients++
			o.Requests += denied
		}
	}
	return o
}
