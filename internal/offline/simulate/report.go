package simulate

import (
	"fmt"
	"io"
	"strconv"
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
	tally *tally
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
	note := func(n int64, title, format string, args ...any) {
		if n > 0 {
			fmt.Fprintf(w, "%-8s  %d%s\n", title, n, fmt.Sprintf(format, args...))
		}
	}
	note(t.unrouted, "no route", " had none, or none of its descriptors could be made: the answer is auth's default")
	note(t.leftOut, "left out", " descriptors for which the log has no value")
	note(t.unlimited-t.unrouted, "no limit", " met none")
	note(t.unread, "not read", ", first at line %s: %v", t.unreadLines(), t.unreadErr)
	note(t.steppedBack, "order", " earlier than a line before, taken to be of its time")
	note(t.full, "no room", " needed a bucket more than --memory-max-keys")
	note(t.untracked, "cut", " asked for keys beyond --memory-max-keys, which the last two columns leave out")
}

func (t *tally) unreadLines() string {
	var numbers []string
	for _, n := range t.unreadAt {
		numbers = append(numbers, strconv.FormatInt(n, 10))
	}
	return strings.Join(numbers, ", ")
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
	if r.shadow {
		marks += " (shadow)"
	}
	if r.quota {
		marks += " (quota)"
	}
	return descriptors.Printable(p.Domain) + "/" + descriptors.Printable(p.Name) + marks
}

func (r *row) peakText() string {
	if r.peak == 0 {
		return "-"
	}
	l := &r.policy.Limit
	period := descriptors.Span(algorithms.Micros(l.Period) * l.Tick)
	if l.Calendar != nil {
		period = l.Calendar.Unit
	}
	text := fmt.Sprintf("%d per %s", r.peak, period)
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
	top := t.heavy.Top(topKeys)
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
