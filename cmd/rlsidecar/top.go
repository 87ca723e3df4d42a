package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/spelling"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type topCmd struct {
	Unmatched bool   `help:"List instead the requests that matched no limit, by the keys of their descriptors."`
	By        string `placeholder:"ENTRY" help:"Group the denied keys by a part: the key of an entry, such as tenant, or limit."`
	Shadow    bool   `help:"List instead the keys that limits in shadow mode would deny."`
	Limit     string `placeholder:"NAME" help:"Only keys of this limit."`
	Once      bool   `help:"Print the list once, also on a terminal."`
	Count     int    `short:"n" default:"20" help:"Number of keys to list, up to 1000 (${default})."`
	adminFlags
}

func (topCmd) Help() string {
	return `Lists the keys that a running sidecar denied most in the last five to ten minutes, and the
busiest keys, with their rates of about the last 10 s (/S). On a terminal it refreshes the list
every second until you press q. IN FLIGHT has the units in flight of those keys whose limit has
algorithm: concurrency, for all sidecars. The reasons are:

  limit               the limit was reached
  penalty             the penalty of the limit blocks the key; rlsidecar get shows until when
  blocked             an operator's adjustment blocks the key
  never               the cost is more than the limit can ever allow
  backend-failure     the store did not decide in time (one line for all keys of a limit)
  no-room             --memory-max-keys is reached (one line for all keys of a limit)
  missing-descriptor  the request lacks an entry that its domain requires (one line for the domain)
  no-config           the domain has no configuration yet (one line for the domain)
  no-route            no route of auth matched, or none of its descriptors could be made
  no-auth             the configuration has no auth section, and a proxy calls /v1/auth

With --by, each line is one value of a part of the keys, such as one tenant with all its keys.
With --unmatched, it lists the requests that matched no limit and were therefore allowed, such
as those with a typo in the domain or in the key of a descriptor. Values are not kept.

Each sidecar counts only its own decisions. Counts are exact, or marked "at least".

Example:

  rlsidecar top
  rlsidecar top --by tenant
  rlsidecar top --once -n 5 --limit per_key
  rlsidecar top --shadow --format json`
}

func (c *topCmd) Run(a *app) error {
	if c.Unmatched {
		return c.unmatched(a)
	}
	screen := terminalOf(a)
	if c.Once || c.Format != "text" || screen == nil {
		top, err := c.read(a)
		if err != nil {
			return err
		}
		return c.print(a.stdout, top, func(w io.Writer) error { return c.write(w, top) })
	}
	return screen.refresh(a, time.Second, func(w io.Writer) error {
		var now status.Status
		if _, err := c.call(a, http.MethodGet, "status", nil, &now); err != nil {
			return err
		}
		top, err := c.read(a)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s    (q ends)\n", now.State.Text)
		top.Denied = first(top.Denied, 12) // so that the busiest are on the screen, too
		return c.write(w, top)
	})
}

// read returns what is to be listed.
func (c *topCmd) read(a *app) (*httpapi.TopAnswer, error) {
	n := c.Count
	if n > 0 && n <= mostTop && (c.By != "" || c.Limit != "") {
		n = mostTop // what to list is chosen here
	}
	query := url.Values{"n": {strconv.Itoa(n)}}
	if c.Shadow {
		query.Set("shadow", "true")
	}
	top := &httpapi.TopAnswer{}
	if _, err := c.call(a, http.MethodGet, "top?"+query.Encode(), nil, top); err != nil {
		return nil, err
	}
	if c.Limit != "" {
		top.Denied = slices.DeleteFunc(top.Denied, func(k httpapi.DeniedKey) bool { return k.Name != c.Limit })
		top.Busiest = slices.DeleteFunc(top.Busiest, func(k httpapi.UsedKey) bool { return k.Name != c.Limit })
		top.InFlight = slices.DeleteFunc(top.InFlight, func(k httpapi.FlightKey) bool { return k.Name != c.Limit })
		top.Parts = slices.DeleteFunc(top.Parts, func(p httpapi.DeniedPart) bool { return p.Name != c.Limit })
		top.Limits = slices.DeleteFunc(top.Limits, func(p httpapi.DeniedPart) bool { return p.Name != c.Limit })
	}
	switch c.By {
	case "":
	case "limit":
		top.Parts = top.Limits
	default:
		var entries []string
		for _, p := range top.Parts {
			entries = append(entries, p.Entry)
		}
		top.Parts = slices.DeleteFunc(top.Parts, func(p httpapi.DeniedPart) bool { return p.Entry != c.By })
		slices.Sort(entries)
		if entries = slices.Compact(entries); len(top.Parts) == 0 && len(entries) > 0 {
			return nil, exitError{exitNo, fmt.Errorf("no denied key has the part %q; the parts are %s%s", c.By, strings.Join(entries, ", "), spelling.DidYouMean(c.By, entries))}
		}
	}
	if top.Denied, top.Parts = first(top.Denied, c.Count), first(top.Parts, c.Count); c.By != "" {
		top.Denied, top.Busiest, top.InFlight = nil, nil, nil
	}
	top.Busiest = first(top.Busiest, c.Count)
	return top, nil
}

// mostTop is the most keys that a sidecar lists.
const mostTop = 1000

func first[T any](list []T, n int) []T { return list[:min(n, len(list))] }

func (c *topCmd) write(w io.Writer, top *httpapi.TopAnswer) error {
	since := "since " + when(top.Since) + "\n"
	parts, keys := partRows(top.Parts, c.By, 5), deniedRows(top.Denied)
	if c.By != "" {
		parts = partRows(top.Parts, c.By, c.Count)
	}
	if max(len(parts), len(keys)) == 1 {
		what := "no request was denied "
		if c.Shadow {
			what = "no limit in shadow mode would have denied a request "
		}
		fmt.Fprint(w, what, since)
		if top.Unmatched > 0 {
			fmt.Fprintf(w, "at least %d requests matched no limit and were allowed: rlsidecar top --unmatched shows them\n", top.Unmatched)
		}
	} else {
		fmt.Fprint(w, since)
	}
	for _, rows := range [][][]string{parts, keys, busiestRows(top.Busiest), flightRows(top.InFlight)} {
		if len(rows) == 1 {
			continue
		}
		if err := writeTable(w, rows...); err != nil {
			return err
		}
	}
	return nil
}

func busiestRows(used []httpapi.UsedKey) [][]string {
	return rowsOf(first(used, 5), func(u httpapi.UsedKey) []string {
		return []string{
			strconv.FormatInt(u.Units, 10), perSecond(u.Rate), strconv.FormatInt(u.Remaining, 10), strconv.FormatInt(u.Capacity, 10),
			descriptors.Printable(u.Domain), descriptors.Printable(u.Name), shown(u.Key.String(), u.Cut),
		}
	}, "BUSIEST", "/S", "LEFT", "OF", "DOMAIN", "LIMIT", "KEY")
}

func flightRows(keys []httpapi.FlightKey) [][]string {
	return rowsOf(first(keys, 5), func(k httpapi.FlightKey) []string {
		return []string{
			strconv.FormatInt(k.InFlight, 10), strconv.FormatInt(k.Capacity, 10), descriptors.Printable(k.Domain), descriptors.Printable(k.Name), k.Key.String(),
		}
	}, "IN FLIGHT", "OF", "DOMAIN", "LIMIT", "KEY")
}

func shown(text string, cut bool) string {
	if cut {
		return text + "…"
	}
	return text
}

func perSecond(rate float64) string { return strconv.FormatFloat(rate, 'f', 1, 64) }

func atLeast(n int64, exact bool) string {
	if exact {
		return strconv.FormatInt(n, 10)
	}
	return "at least " + strconv.FormatInt(n, 10)
}

// partRows has up to n rows about what denied keys have in common. Without by, it leaves out parts with one key, which
// the list of keys has, too.
func partRows(parts []httpapi.DeniedPart, by string, n int) [][]string {
	if by == "" {
		parts = slices.DeleteFunc(slices.Clone(parts), func(p httpapi.DeniedPart) bool { return p.Keys < 2 })
	}
	return rowsOf(first(parts, n), func(p httpapi.DeniedPart) []string {
		part := ""
		if p.Position != nil {
			part = shown(descriptors.Printable(p.Entry)+"="+p.Value.String(), p.Cut)
		}
		return []string{
			atLeast(p.Denied, p.Exact), perSecond(p.Rate), fmt.Sprintf("%.0f %%", 100*p.Share), fmt.Sprint(p.Keys),
			descriptors.Printable(p.Domain), descriptors.Printable(p.Name), part,
		}
	}, "DENIED", "/S", "SHARE", "KEYS", "DOMAIN", "LIMIT", "PART")
}

func deniedRows(denied []httpapi.DeniedKey) [][]string {
	return rowsOf(denied, func(d httpapi.DeniedKey) []string {
		return []string{
			atLeast(d.Denied, d.Exact), perSecond(d.Rate), descriptors.Printable(d.Why), descriptors.Printable(d.Domain), descriptors.Printable(d.Name),
			shown(deniedKey(&d), d.Cut),
		}
	}, "DENIED", "/S", "WHY", "DOMAIN", "LIMIT", "KEY")
}

// deniedKey returns the key of d, as a descriptor if it came as one.
func deniedKey(d *httpapi.DeniedKey) string {
	if d.Descriptor == nil {
		return d.Key.String()
	}
	var entries []descriptors.Entry
	for _, e := range d.Descriptor {
		if len(e) == 2 {
			entries = append(entries, descriptors.Entry{Key: e[0], Value: e[1]})
		}
	}
	return descriptors.Format(entries)
}

func (c *topCmd) unmatched(a *app) error {
	var answer struct {
		Since     time.Time
		Unmatched []httpapi.UnmatchedShape
	}
	query := url.Values{"n": {strconv.Itoa(c.Count)}}
	return c.send(a, http.MethodGet, "unmatched?"+query.Encode(), nil, &answer, func(w io.Writer) error {
		if len(answer.Unmatched) == 0 {
			_, err := fmt.Fprintf(w, "every request matched a limit since %s\n", when(answer.Since))
			return err
		}
		fmt.Fprintf(w, "since %s\n", when(answer.Since))
		return writeTable(w, unmatchedRows(answer.Unmatched)...)
	})
}

func unmatchedRows(shapes []httpapi.UnmatchedShape) [][]string {
	return rowsOf(shapes, func(u httpapi.UnmatchedShape) []string {
		why := "no limit matches"
		if !u.Configured {
			why = "no such domain"
		}
		var texts []string
		for _, keys := range u.Descriptors {
			texts = append(texts, keys.String())
		}
		return []string{atLeast(u.Requests, false), why, descriptors.Printable(u.Domain), shown(strings.Join(texts, " | "), u.Cut)}
	}, "REQUESTS", "WHY", "DOMAIN", "KEYS OF THE DESCRIPTORS")
}
