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
	Unmatched bool `help:"List instead the requests that matched no limit, by the keys of their descriptors."`
	Count     int  `short:"n" default:"20" help:"Number of keys to list, up to 1000 (${default})."`
	adminFlags
}

func (topCmd) Help() string {
	return `Lists the keys that a running sidecar denied most in the last five to ten minutes. The
reasons are:

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

With --unmatched, it lists the requests that matched no limit and were therefore allowed, such
as those with a typo in the domain or in the key of a descriptor. Values are not kept.

Each sidecar counts only its own decisions. Counts are exact, or marked "at least".

Example:

  rlsidecar top -n 5
  rlsidecar top --unmatched
  rlsidecar top --admin-listen unix:///run/rlsidecar/admin.sock --format json`
}

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
	if err := c.request(a, http.MethodGet, "top", url.Values{"n": {strconv.Itoa(c.Count)}}, &answer); err != nil || c.Format != "text" {
		return err
	}
	since := answer.Since.UTC().Format("2006-01-02 15:04:05 UTC")
	if len(answer.Denied) == 0 {
		fmt.Fprintf(a.stdout, "no request was denied since %s\n", since)
		if answer.Unmatched > 0 {
			fmt.Fprintf(a.stdout, "at least %d requests matched no limit and were allowed: rlsidecar top --unmatched shows them\n", answer.Unmatched)
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
	if err := c.request(a, http.MethodGet, "unmatched", url.Values{"n": {strconv.Itoa(c.Count)}}, &answer); err != nil || c.Format != "text" {
		return err
	}
	since := answer.Since.UTC().Format("2006-01-02 15:04:05 UTC")
	if len(answer.Unmatched) == 0 {
		_, err := fmt.Fprintf(a.stdout, "every request matched a limit since %s\n", since)
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
