package simulate

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/rlsidecar/rlsidecar/internal/offline/advise"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

func writeAdvice(w io.Writer, a *advise.Advice) {
	fmt.Fprintf(w, "\n%s\n", titleOf(a.Policy))
	if a.Every > 1 {
		fmt.Fprintf(w, "  Memory was short. These figures are of a sample of %s, each drawn with the same probability.\n", clients(a.Clients))
		fmt.Fprintf(w, "  At %s of the clients they are off by at most %s, with a probability of 95 %%.\n", share(a.Share), share(a.Error))
	}
	if a.Missed > 0 {
		fmt.Fprintf(w, "  %d requests are left out of these figures: their clients sent more than memory holds for one client.\n", a.Missed)
	}
	b := &a.Busiest
	fmt.Fprintf(w, "  Units per client in its busiest %s (percentiles of %s):\n", a.Period, clients(a.Clients))
	fmt.Fprintf(w, "    p50 %d, p90 %d, p95 %d, p99 %d, most %d%s from %s\n", b.P50, b.P90, b.P95, b.P99, b.Most, by(b.By), moment(b.At))
	fmt.Fprintf(w, "  Replayed with other numbers, this limit alone:\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "    LIMIT\tCLIENTS DENIED\tREQUESTS DENIED\n")
	outcome := func(numbers string, o advise.Outcome, mark string) {
		fmt.Fprintf(table, "    %s\t%d%s\t%d%s%s\n", numbers, o.Clients, percent(o.Clients, a.Clients), o.Requests, percent(o.Requests, a.Requests), mark)
	}
	outcome(a.Numbers()+" (configured)", a.Configured, "")
	for i := range a.Candidates {
		c := &a.Candidates[i]
		mark := ""
		if c == a.Suggested {
			mark = "\t<- suggested"
		}
		outcome(a.Candidate(c.N), c.Outcome, mark)
	}
	_ = table.Flush() // w is a strings.Builder in every call, and returns no error
	suggest(w, a)
}

func suggest(w io.Writer, a *advise.Advice) {
	if a.Suggested == nil {
		fmt.Fprintf(w, "  With this algorithm, every limit denies requests of more than %s of the clients.\n", share(a.Share))
		return
	}
	fmt.Fprintf(w, "  Suggestion: %s\n", a.Of(a.Suggested.N))
	whole := int64(float64(a.Clients) * a.Share)
	switch {
	case a.OneBucket():
		fmt.Fprint(w, "    All requests share one bucket. A replay with this limit denies none of them.\n")
	case whole == 0:
		fmt.Fprintf(w, "    %s of %s is less than one client, so a replay with this limit denies no request.\n", share(a.Share), clients(a.Clients))
	default:
		fmt.Fprintf(w, "    A replay with this limit denies requests of %d of %s (%s). The maximum was %s.\n",
			a.Suggested.Clients, clients(a.Clients), share(float64(a.Suggested.Clients)/float64(a.Clients)), share(a.Share))
	}
	if more := a.Smallest.Clients - a.Suggested.Clients; a.Smallest.N < a.Suggested.N {
		fmt.Fprintf(w, "    It has the widest gap to the next client. %s would deny %s more.\n", a.Candidate(a.Smallest.N), clients(more))
	}
	if o := a.Outlier(); o != nil {
		fmt.Fprintf(w, "    %s\n", outlierWords(a, o))
	}
}

func outlierWords(a *advise.Advice, o *advise.Outlier) string {
	needs := fmt.Sprintf("a %s of %d", a.Field, o.Need)
	if o.Need == 0 {
		needs = "more than any number"
	}
	return fmt.Sprintf("%s stands out: it needs %s, the next client %d.", descriptors.Printable(o.Client.Shown), needs, o.Next)
}

func by(client string) string {
	if client == "" {
		return ""
	}
	return " by " + descriptors.Printable(client)
}

func clients(n int64) string {
	if n == 1 {
		return "1 client"
	}
	return fmt.Sprintf("%d clients", n)
}

// share formats a share as a percentage with at most two decimals: 1 %, 0.25 %.
func share(s float64) string {
	return fmt.Sprintf("%g %%", math.Round(s*1e4)/100)
}

// about formats n, a number of clients. If a is based on a sample, it formats the estimated number for all clients
// instead.
func about(a *advise.Advice, n int64) string {
	if a.Every > 1 {
		return fmt.Sprintf("about %d", n*a.Every)
	}
	return fmt.Sprint(n)
}
