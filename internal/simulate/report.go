package simulate

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// topKeys is how many keys the report names.
const topKeys = 10

// Report sums up a replay.
type Report struct {
	Requests, Denied int64
	// Unread counts lines of an access log that could not be read.
	Unread int64

	tally *tally
}

func (t *tally) report() *Report {
	return &Report{Requests: t.requests, Denied: t.denied, Unread: t.unread, tally: t}
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	t := r.tally
	out := &strings.Builder{}
	fmt.Fprintf(out, "requests  %d", t.requests)
	if t.requests > 0 {
		fmt.Fprintf(out, ", from %s to %s", moment(t.first), moment(t.last))
	}
	fmt.Fprintf(out, "\ndenied    %d%s\n", t.denied, percent(t.denied, t.requests))
	t.notes(out)
	if len(t.rows) > 0 {
		out.WriteString("\n")
		t.limits(out)
	}
	t.keys(out)
	_, err := io.WriteString(w, out.String())
	return err
}

// notes says what is not as one would expect.
func (t *tally) notes(w io.Writer) {
	if t.unlimited > 0 {
		fmt.Fprintf(w, "no limit  %d requests met none\n", t.unlimited)
	}
	if t.unread > 0 {
		fmt.Fprintf(w, "not read  %d lines: %s\n", t.unread, t.unreadLines())
	}
	if t.steppedBack > 0 {
		fmt.Fprintf(w, "order     %d lines were earlier than one before, and taken to be of that time\n", t.steppedBack)
	}
	if t.full > 0 {
		fmt.Fprintf(w, "no room   %d requests needed a new bucket beyond --memory-max-keys\n", t.full)
	}
	if t.untracked > 0 {
		fmt.Fprintf(w, "cut       %d asks were of keys beyond --memory-max-keys, and are not in the last two columns\n", t.untracked)
	}
}

func (t *tally) unreadLines() string {
	text := "line"
	for i, n := range t.unreadAt {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(" %d", n)
	}
	if t.unread > int64(len(t.unreadAt)) {
		text += ", …"
	}
	return fmt.Sprintf("%s (%v)", text, t.unreadErr)
}

// limits writes a line for each limit.
func (t *tally) limits(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "LIMIT\tASKED\tDENIED\tMOST OF ONE KEY IN A PERIOD\tNONE DENIED AT\n")
	for _, r := range t.rows {
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\n", r.title(), r.asked, r.denied, r.peakText(), r.needText())
	}
	_ = table.Flush() // into memory
}

func (r *row) title() string {
	p, marks := r.policy, ""
	if p.Shadow {
		marks += " (shadow)"
	}
	if p.Quota {
		marks += " (quota)"
	}
	return descriptors.Printable(p.Domain) + "/" + descriptors.Printable(p.Name) + marks
}

func (r *row) peakText() string {
	if r.peak == 0 {
		return "-"
	}
	l := &r.policy.Limit
	text := fmt.Sprintf("%d per %s", r.peak, descriptors.Span(algorithms.Micros(l.Period)*l.Tick))
	if len(r.peakBy) > 0 {
		text += ", " + descriptors.Printable(string(r.peakBy))
	}
	return text + ", from " + moment(r.peakAt)
}

// needText says at which number none would have been denied, the others staying as they are.
func (r *row) needText() string {
	l := &r.policy.Limit
	tokens := l.Kind == algorithms.TokenBucket || l.Kind == algorithms.FixedWindow
	switch {
	case r.need == 0, tokens && l.Initial < l.Capacity: // a bucket that starts below full denies at any capacity
		return "-"
	case r.need > maxNeed:
		return "no number"
	case l.Kind == algorithms.SlidingWindow:
		return fmt.Sprintf("rate %d", r.need)
	case l.Kind == algorithms.LeakyBucket: // one place is that of the request whose turn it is
		return fmt.Sprintf("capacity %d", r.need-1)
	case r.policy.Reference:
		return fmt.Sprintf("requests_per_unit %d", r.need)
	default:
		return fmt.Sprintf("capacity %d", r.need)
	}
}

// maxNeed is the largest number a limit can have.
const maxNeed = 1 << 53

// keys writes the keys denied most.
func (t *tally) keys(w io.Writer) {
	top := t.heavy.top(topKeys)
	if len(top) == 0 {
		return
	}
	fmt.Fprint(w, "\nKEYS DENIED MOST\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range top {
		times := fmt.Sprint(c.count)
		if c.over > 0 {
			times = fmt.Sprintf("at least %d", c.count-c.over)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", times, c.row.title(), descriptors.Printable(c.shown))
	}
	_ = table.Flush() // into memory
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
