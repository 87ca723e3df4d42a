package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpapi"
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
	path := "top"
	if c.Unmatched {
		path = "unmatched"
	}
	var answer struct {
		Since     time.Time
		Denied    []httpapi.DeniedKey
		Unmatched json.RawMessage // a list of shapes with --unmatched, otherwise the number of requests
	}
	if err := c.send(a, http.MethodGet, path, url.Values{"n": {strconv.Itoa(c.Count)}}, nil, &answer); err != nil || c.Format != "text" {
		return err
	}
	since := "since " + answer.Since.UTC().Format("2006-01-02 15:04:05 UTC") + "\n"
	var rows [][]string
	switch {
	case c.Unmatched:
		var shapes []httpapi.UnmatchedShape
		if err := json.Unmarshal(answer.Unmatched, &shapes); err != nil {
			return err
		}
		if len(shapes) == 0 {
			_, err := fmt.Fprint(a.stdout, "every request matched a limit ", since)
			return err
		}
		rows = unmatchedRows(shapes)
	case len(answer.Denied) == 0:
		fmt.Fprint(a.stdout, "no request was denied ", since)
		if n := string(answer.Unmatched); n != "" && n != "0" {
			fmt.Fprintf(a.stdout, "at least %s requests matched no limit and were allowed: rlsidecar top --unmatched shows them\n", n)
		}
		return nil
	default:
		rows = deniedRows(answer.Denied)
	}
	fmt.Fprint(a.stdout, since)
	return writeTable(a.stdout, rows...)
}

func deniedRows(denied []httpapi.DeniedKey) [][]string {
	rows := [][]string{{"DENIED", "WHY", "DOMAIN", "LIMIT", "KEY"}}
	for _, d := range denied {
		times, key := strconv.FormatInt(d.Denied, 10), d.Key.String()
		if !d.Exact {
			times = "at least " + times
		}
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
		rows = append(rows, []string{times, descriptors.Printable(d.Why), descriptors.Printable(d.Domain), descriptors.Printable(d.Name), key})
	}
	return rows
}

func unmatchedRows(shapes []httpapi.UnmatchedShape) [][]string {
	rows := [][]string{{"REQUESTS", "WHY", "DOMAIN", "KEYS OF THE DESCRIPTORS"}}
	for _, u := range shapes {
		why := "no limit matches"
		if !u.Configured {
			why = "no such domain"
		}
		var texts []string
		for _, keys := range u.Descriptors {
			texts = append(texts, keys.String())
		}
		text := strings.Join(texts, " | ")
		if u.Cut {
			text += "…"
		}
		rows = append(rows, []string{fmt.Sprintf("at least %d", u.Requests), why, descriptors.Printable(u.Domain), text})
	}
	return rows
}
