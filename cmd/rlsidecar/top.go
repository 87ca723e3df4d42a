package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type topCmd struct {
	Unmatched bool `help:"List the requests that met no limit instead, by the keys of their descriptors."`
	Count     int  `short:"n" default:"20" help:"How many keys, up to 1000 (${default})."`
	adminFlags
}

// Help is shown by top --help.
func (topCmd) Help() string {
	return `Asks the admin port of a running sidecar which keys it denied most in the last five
to ten minutes, each with the reason:

  limit               the limit was reached
  penalty             the penalty of the limit blocks the key; rlsidecar get says until when
  blocked             an operator's adjustment blocks the key
  never               it asked for more than the limit can ever give
  backend-failure     the store could not decide (all keys of a limit are one line)
  no-room             there was no room for another bucket in memory (the same)
  missing-descriptor  the request has no entry that its domain requires (all of a domain as one)
  no-config           there is no configuration of the domain yet (the same)
  no-route            no route of auth matched, or none of its descriptors could be made
  no-auth             the configuration has no auth section, and a proxy calls /v1/auth

With --unmatched: the requests that met no limit and were therefore allowed, such as those with a typo
in the domain or in the key of a descriptor. Values are not kept.

Others of the fleet count for themselves. Counts are exact, or say "at least".

Example:

  rlsidecar top -n 5
  rlsidecar top --unmatched
  rlsidecar top --admin-listen unix:///run/rlsidecar/admin.sock --format json`
}

// Run lists.
func (c *topCmd) Run(a *app) error {
	if c.Unmatched {
		return c.unmatched(a)
	}
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
		Unmatched int64 `json:"unmatched"`
	}
	if err := c.ask(a, http.MethodGet, "top", url.Values{"n": {strconv.Itoa(c.Count)}}, &answer); err != nil || c.Format != "text" {
		return err
	}
	since := answer.Since.UTC().Format("2006-01-02 15:04:05 UTC")
	if len(answer.Denied) == 0 {
		fmt.Fprintf(a.stdout, "nobody was denied since %s\n", since)
		if answer.Unmatched > 0 {
			fmt.Fprintf(a.stdout, "at least %d requests met no limit and were allowed: rlsidecar top --unmatched shows them\n", answer.Unmatched)
		}
		return nil
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

// unmatched lists the requests that met no limit.
func (c *topCmd) unmatched(a *app) error {
	var answer struct {
		Since     time.Time `json:"since"`
		Unmatched []struct {
			Domain      string     `json:"domain"`
			Configured  bool       `json:"configured"`
			Descriptors []shownKey `json:"descriptors"`
			Cut         bool       `json:"cut"`
			Requests    int64      `json:"requests"`
		} `json:"unmatched"`
	}
	if err := c.ask(a, http.MethodGet, "unmatched", url.Values{"n": {strconv.Itoa(c.Count)}}, &answer); err != nil || c.Format != "text" {
		return err
	}
	since := answer.Since.UTC().Format("2006-01-02 15:04:05 UTC")
	if len(answer.Unmatched) == 0 {
		_, err := fmt.Fprintf(a.stdout, "every request met a limit since %s\n", since)
		return err
	}
	fmt.Fprintf(a.stdout, "since %s\n", since)
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "REQUESTS\tWHY\tDOMAIN\tKEYS OF THE DESCRIPTORS\n")
	for _, u := range answer.Unmatched {
		why := "no limit matches"
		if !u.Configured {
			why = "no such domain"
		}
		texts := make([]string, len(u.Descriptors))
		for i, keys := range u.Descriptors {
			texts[i] = keys.String()
		}
		text := strings.Join(texts, " | ")
		if u.Cut {
			text += "…"
		}
		fmt.Fprintf(table, "at least %d\t%s\t%s\t%s\n", u.Requests, why, descriptors.Printable(u.Domain), text)
	}
	return table.Flush()
}
