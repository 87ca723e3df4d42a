package simulate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/offline/advise"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const topKeys = 10

// maxAdvised bounds the limits that get suggestions. These are the limits with the most requests.
const maxAdvised = 20

// Report is the result of a replay, also as JSON. WriteText writes the same, except that keys are escaped.
type Report struct {
	Requests int64 `json:"requests"`
	Denied   int64 `json:"denied"`
	// From and To are the times of the first and the last request.
	From   algorithms.Micros `json:"from_us"`
	To     algorithms.Micros `json:"to_us"`
	Notes  []Note            `json:"notes"`
	Limits []*Limit          `json:"limits"`
	// NotAdvised is the number of limits with fewer requests than those with Advice.
	NotAdvised int         `json:"not_advised"`
	Keys       []DeniedKey `json:"denied_most"`

	timeline timeline
}

// Note counts requests that are no ordinary ones, such as those that match no limit.
type Note struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
	Text  string `json:"text"`
}

// Limit counts the requests that match a limit. Denied is the number of requests that it alone would have denied.
type Limit struct {
	Domain   string `json:"domain"`
	Name     string `json:"name"`
	Shadow   bool   `json:"shadow,omitempty"` // a policy of this limit that a request matched has this mode, as for Quota
	Quota    bool   `json:"quota,omitempty"`
	Requests int64  `json:"requests"`
	Denied   int64  `json:"denied"`
	// PaidBy is the limit that paid for Paid requests that this limit did not allow (then).
	PaidBy   string         `json:"paid_by,omitempty"`
	Paid     int64          `json:"paid,omitempty"`
	Settled  *SettledCosts  `json:"settled,omitempty"`
	InFlight []*Peak        `json:"in_flight,omitempty"` // of the keys with the highest peaks
	Outlived int64          `json:"outlived,omitempty"`  // requests that lasted longer than the ttl of a concurrency limit
	Advice   *advise.Advice `json:"advice,omitempty"`

	policy  *limiter.Policy
	over    overdrafts
	history *advise.History
}

// DeniedKey is a key that a limit denied. Denied is a lower bound unless Exact is true.
type DeniedKey struct {
	Domain string `json:"domain"`
	Limit  string `json:"limit"`
	Key    string `json:"key"`
	Denied int64  `json:"denied"`
	Exact  bool   `json:"exact"`

	limit *Limit
}

// report completes the Report. Only the maxAdvised limits with the most requests get Advice.
func (t *tally) report(ctx context.Context, share float64) (*Report, error) {
	t.peaks.until(math.MaxInt64)
	used := slices.DeleteFunc(slices.Clone(t.Limits), func(l *Limit) bool { return l.Requests == 0 })
	slices.SortStableFunc(used, func(x, y *Limit) int { return cmp.Compare(y.Requests, x.Requests) })
	t.NotAdvised = max(0, len(used)-maxAdvised)
	for _, l := range used[:len(used)-t.NotAdvised] {
		var err error
		if l.Advice, err = l.history.Advise(ctx, l.policy, share); err != nil {
			return nil, err
		}
	}
	for _, l := range t.Limits {
		if l.Settled != nil {
			l.Settled.finish(&l.over)
		}
	}
	t.addNotes()
	for _, c := range t.topDenied.Top(topKeys) {
		key := c.Value
		key.Denied, key.Exact = c.Least(), c.Over == 0
		t.Keys = append(t.Keys, key)
	}
	return t.Report, nil
}

// advised returns the Advice about limits, in the order of the configuration.
func (r *Report) advised() (list []*advise.Advice) {
	for _, l := range r.Limits {
		if l.Advice != nil {
			list = append(list, l.Advice)
		}
	}
	return list
}

func (r *Report) WriteText(w io.Writer) error {
	out := &strings.Builder{}
	fmt.Fprintf(out, "requests  %d", r.Requests)
	if r.Requests > 0 {
		fmt.Fprintf(out, ", from %s to %s", moment(r.From), moment(r.To))
	}
	fmt.Fprintf(out, "\ndenied    %d%s\n", r.Denied, percent(r.Denied, r.Requests))
	for _, n := range r.Notes {
		fmt.Fprintf(out, "%-8s  %d %s\n", n.Name, n.Count, n.Text)
	}
	if len(r.Limits) > 0 {
		out.WriteString("\n")
		r.writeLimits(out)
	}
	for _, l := range r.Limits {
		if l.Paid > 0 {
			fmt.Fprintf(out, "%s/%s paid for %d requests that %s did not allow\n",
				descriptors.Printable(l.Domain), descriptors.Printable(l.PaidBy), l.Paid, titleOf(l.policy))
		}
	}
	for _, write := range []func(*Limit, io.Writer){(*Limit).writeSettled, (*Limit).writePeaks} {
		for _, l := range r.Limits {
			write(l, out)
		}
	}
	for _, a := range r.advised() {
		writeAdvice(out, a)
	}
	if r.NotAdvised > 0 {
		fmt.Fprintf(out, "\n%d other limits had fewer requests; no number is suggested for them.\n", r.NotAdvised)
	}
	r.writeKeys(out)
	_, err := io.WriteString(w, out.String())
	return err
}

// addNotes adds the Notes whose Count is not 0.
func (t *tally) addNotes() {
	note := func(n int64, name, format string, args ...any) {
		if n > 0 {
			t.Notes = append(t.Notes, Note{name, n, fmt.Sprintf(format, args...)})
		}
	}
	note(t.unrouted, "no route", "had none, or none of its descriptors could be made: the answer is auth's default")
	note(t.leftOut, "left out", "descriptors for which the log has no value")
	note(t.repeated, "repeated", "had a target with \"#\" or an ambiguous path, or a repeated header, cookie or parameter that affects the limits, and were denied")
	note(t.unlimited-t.unrouted-t.repeated, "no limit", "matched none")
	note(t.missing, "missing", "had no entry that their domain requires, and were denied")
	note(t.unread, "not read", "of the lines, first at line %s: %v", t.unreadLines(), t.unreadErr)
	note(t.steppedBack, "order", "earlier than a line before, and replayed at the time of that line")
	note(t.early, "early", "calls were settled too early, because more than %d were open", maxOpen)
	note(t.peaks.endless, "no end", "took a slot and have no duration, and count as ended at once")
	note(t.peaks.early, "cut off", "were counted as ended too early, because more than %d were in flight", maxOpen)
	note(t.expired, "too late", "reservations by name were too old to settle, and stay charged")
	note(t.full, "no room", "needed a new bucket, but --memory-max-keys were in use")
}

func (t *tally) unreadLines() string {
	var numbers []string
	for _, n := range t.unreadAt {
		numbers = append(numbers, strconv.FormatInt(n, 10))
	}
	return strings.Join(numbers, ", ")
}

func (r *Report) writeLimits(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "LIMIT\tREQUESTS\tDENIED\tCLIENTS\tCLIENTS DENIED\n")
	for _, l := range r.Limits {
		clients, denied := "-", "-"
		if a := l.Advice; a != nil {
			clients, denied = about(a, a.Clients), about(a, a.Denied)+percent(a.Denied, a.Clients)
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\n", l.Title(), l.Requests, l.Denied, clients, denied)
	}
	_ = table.Flush() // w is a strings.Builder in every call, and returns no error
}

func titleOf(p *limiter.Policy) string {
	return descriptors.Printable(p.Domain) + "/" + descriptors.Printable(p.Name)
}

// Title returns the name of l as printable text, with its modes.
func (l *Limit) Title() string {
	marks := ""
	if l.Shadow {
		marks += " (shadow)"
	}
	if l.Quota {
		marks += " (quota)"
	}
	return titleOf(l.policy) + marks
}

// Words describes the configuration of l.
func (l *Limit) Words() string { return l.policy.Words() }

func (r *Report) writeKeys(w io.Writer) {
	if len(r.Keys) == 0 {
		return
	}
	fmt.Fprint(w, "\nKEYS DENIED MOST\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, k := range r.Keys {
		least := ""
		if !k.Exact {
			least = "at least "
		}
		fmt.Fprintf(table, "%s%d\t%s\t%s\n", least, k.Denied, k.limit.Title(), descriptors.Printable(k.Key))
	}
	_ = table.Flush() // w is a strings.Builder in every call, and returns no error
}

func percent(part, whole int64) string {
	if whole == 0 {
		return ""
	}
	return fmt.Sprintf(" (%.2f %%)", 100*float64(part)/float64(whole))
}

func moment(at algorithms.Micros) string {
	return time.UnixMicro(int64(at)).UTC().Format(time.RFC3339Nano)
}
