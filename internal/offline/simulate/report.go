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

type Report struct {
	tally *tally
	// Advice is about the limits with the most requests, in the order of the configuration.
	Advice []*advise.Advice
	// others is the number of limits with requests beyond the first maxAdvised.
	others int
}

func (t *tally) report(ctx context.Context, share float64) (*Report, error) {
	t.peaks.until(math.MaxInt64)
	var used []*row
	for _, r := range t.rows {
		if r.requests > 0 {
			used = append(used, r)
		}
	}
	slices.SortStableFunc(used, func(x, y *row) int { return cmp.Compare(y.requests, x.requests) })
	r := &Report{tally: t, others: max(0, len(used)-maxAdvised)}
	used = used[:len(used)-r.others]
	for _, row := range t.rows {
		if !slices.Contains(used, row) {
			continue
		}
		advice, err := row.history.Advise(ctx, row.policy, share)
		if err != nil {
			return nil, err
		}
		if row.advice = advice; advice != nil {
			r.Advice = append(r.Advice, advice)
		}
	}
	return r, nil
}

func (r *Report) WriteText(w io.Writer) error {
	t := r.tally
	out := &strings.Builder{}
	fmt.Fprintf(out, "requests  %d", t.requests)
	if t.requests > 0 {
		fmt.Fprintf(out, ", from %s to %s", moment(t.first), moment(t.last))
	}
	fmt.Fprintf(out, "\ndenied    %d%s\n", t.denied, percent(t.denied, t.requests))
	for _, n := range t.notes() {
		fmt.Fprintf(out, "%-8s  %d %s\n", n.Name, n.Count, n.Text)
	}
	if len(t.rows) > 0 {
		out.WriteString("\n")
		t.limits(out)
	}
	t.writePayers(out)
	t.settlements(out)
	t.writePeaks(out)
	for _, a := range r.Advice {
		writeAdvice(out, a)
	}
	if r.others > 0 {
		fmt.Fprintf(out, "\n%d other limits had fewer requests; no number is suggested for them.\n", r.others)
	}
	t.keys(out)
	_, err := io.WriteString(w, out.String())
	return err
}

// notes returns the Notes whose Count is not 0.
func (t *tally) notes() []Note {
	list := []Note{}
	note := func(n int64, name, format string, args ...any) {
		if n > 0 {
			list = append(list, Note{name, n, fmt.Sprintf(format, args...)})
		}
	}
	note(t.unrouted, "no route", "had none, or none of its descriptors could be made: the answer is auth's default")
	note(t.leftOut, "left out", "descriptors for which the log has no value")
	note(t.unlimited-t.unrouted, "no limit", "matched none")
	note(t.missing, "missing", "had no entry that their domain requires, and were denied")
	note(t.unread, "not read", "of the lines, first at line %s: %v", t.unreadLines(), t.unreadErr)
	note(t.steppedBack, "order", "earlier than a line before, and replayed at the time of that line")
	note(t.early, "early", "calls were settled too early, because more than %d were open", maxOpen)
	note(t.peaks.endless, "no end", "took a slot and have no duration, and count as ended at once")
	note(t.peaks.early, "cut off", "were counted as ended too early, because more than %d were in flight", maxOpen)
	note(t.expired, "too late", "reservations by name were too old to settle, and stay charged")
	note(t.full, "no room", "needed a new bucket, but --memory-max-keys were in use")
	return list
}

func (t *tally) unreadLines() string {
	var numbers []string
	for _, n := range t.unreadAt {
		numbers = append(numbers, strconv.FormatInt(n, 10))
	}
	return strings.Join(numbers, ", ")
}

func (t *tally) limits(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "LIMIT\tREQUESTS\tDENIED\tCLIENTS\tCLIENTS DENIED\n")
	for _, r := range t.rows {
		clients, denied := "-", "-"
		if a := r.advice; a != nil {
			clients, denied = about(a, a.Clients), about(a, a.Denied)+percent(a.Denied, a.Clients)
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\n", r.title(), r.requests, r.denied, clients, denied)
	}
	_ = table.Flush() // w is a strings.Builder in every call, and returns no error
}

func titleOf(p *limiter.Policy) string {
	return descriptors.Printable(p.Domain) + "/" + descriptors.Printable(p.Name)
}

func (r *row) title() string {
	marks := ""
	if r.shadow {
		marks += " (shadow)"
	}
	if r.quota {
		marks += " (quota)"
	}
	return titleOf(r.policy) + marks
}

func (t *tally) keys(w io.Writer) {
	top := t.topDenied.Top(topKeys)
	if len(top) == 0 {
		return
	}
	fmt.Fprint(w, "\nKEYS DENIED MOST\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range top {
		times := fmt.Sprint(c.Count)
		if c.Over > 0 {
			times = fmt.Sprintf("at least %d", c.Least())
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", times, c.Value.row.title(), descriptors.Printable(c.Value.shown))
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
