package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type topCmd struct {
	Count int `short:"n" default:"20" help:"How many keys, up to 1000 (${default})."`
	adminFlags
}

// Help is shown by top --help.
func (topCmd) Help() string {
	return `Asks the admin port of a running sidecar which keys it denied most in the last five
to ten minutes, each with the reason:

  limit            the limit was reached
  never            it asked for more than the limit can ever give
  backend-failure  the store could not decide (all keys of a limit are one line)
  no-room          there was no room for another bucket in memory (the same)
  no-config        there is no configuration of the domain yet (the same)
  no-route         no route of auth matched, or none of its descriptors could be made

Others of the fleet count for themselves. Counts are exact, or say "at least".

Example:

  rlsidecar top -n 5
  rlsidecar top --admin-listen unix:///run/rlsidecar/admin.sock --format json`
}

// Run lists.
func (c *topCmd) Run(a *app) error {
	var answer struct {
		Since  time.Time `json:"since"`
		Denied []struct {
			Domain     string     `json:"domain"`
			Name       string     `json:"name"`
			Why        string     `json:"why"`
			Key        shownKey   `json:"key"`
			Descriptor []shownKey `json:"descriptor"`
			Cut        bool       `json:"cut"`
			Denied     int64      `json:"denied"`
			Exact      bool       `json:"exact"`
		} `json:"denied"`
	}
	if err := c.ask(a, http.MethodGet, "top", url.Values{"n": {strconv.Itoa(c.Count)}}, &answer); err != nil || c.Format != "text" {
		return err
	}
	since := answer.Since.UTC().Format("2006-01-02 15:04:05 UTC")
	if len(answer.Denied) == 0 {
		_, err := fmt.Fprintf(a.stdout, "nobody was denied since %s\n", since)
		return err
	}
	fmt.Fprintf(a.stdout, "since %s\n", since)
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "DENIED\tWHY\tDOMAIN\tLIMIT\tKEY\n")
	for _, d := range answer.Denied {
		times := strconv.FormatInt(d.Denied, 10)
		if !d.Exact {
			times = "at least " + times
		}
		key := d.Key.String()
		if d.Descriptor != nil {
			var entries []descriptors.Entry
			for _, e := range d.Descriptor {
				if len(e) == 2 {
					entries = append(entries, descriptors.Entry{Key: e[0], Value: e[1]})
				}
			}
			key = descriptors.Format(entries)
		}
		if d.Cut {
			key += "…"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", times, descriptors.Printable(d.Why), descriptors.Printable(d.Domain), descriptors.Printable(d.Name), key)
	}
	return table.Flush()
}
