package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type adjustCmd struct {
	Set    adjustSetCmd    `cmd:"" help:"Change a limit's numbers, for one key or all keys, for some time; or block a key."`
	List   adjustListCmd   `cmd:"" help:"List the adjustments in force."`
	Delete adjustDeleteCmd `cmd:"" help:"End an adjustment before it expires."`
	Audit  adjustAuditCmd  `cmd:"" help:"List the last changes with author and reason."`
}

type by struct {
	Author string `env:"RLSIDECAR_AUTHOR,USER" default:"admin" placeholder:"NAME" help:"Your name, for the audit. Default: $RLSIDECAR_AUTHOR, $USER or, if both are empty, admin."`
	Reason string `required:"" placeholder:"TEXT" help:"The reason, for the audit."`
}

// author returns the name for the audit. Shells in containers often have no $USER.
func (b *by) author() string { return cmp.Or(strings.TrimSpace(b.Author), "admin") }

type adjustSetCmd struct {
	Limit   string   `required:"" placeholder:"NAME" help:"Name of the limit."`
	Domain  string   `placeholder:"NAME" help:"Domain of the limit. Required if several domains have a limit of this name."`
	Key     []string `sep:"none" placeholder:"VALUE" help:"Value that identifies the bucket. Repeat it for each value, in the order of the descriptor."`
	Match   string   `placeholder:"ENTRY=VALUE" help:"Adjust all keys of the limit with this value, such as tenant=evil, that have no adjustment of their own."`
	AllKeys bool     `help:"Adjust all keys of the limit that have no adjustment of their own."`

	Rate      *int64        `placeholder:"N" help:"Units in each period, instead of the configured ones."`
	Capacity  *int64        `placeholder:"N" help:"Largest burst: the units that a full bucket holds."`
	Period    adjust.Span   `placeholder:"TIME" help:"Length of the period, such as 1m or 1d."`
	Factor    adjust.Factor `placeholder:"X" help:"Multiply the configured numbers by this factor, such as 10 or 0.5."`
	Unlimited bool          `help:"Allow every request, and charge nothing."`
	Block     bool          `help:"Deny every request."`

	For           adjust.Span `placeholder:"TIME" help:"Time until the adjustment ends, such as 30m, 2h or 7d. At most 30 days."`
	Until         time.Time   `placeholder:"TIME" help:"Instead of --for: the moment at which the adjustment ends, such as 2026-03-01T18:00:00Z."`
	ExpectVersion *uint64     `placeholder:"N" help:"Fail if the adjustments have changed since this version, which adjust list shows."`
	Preview       bool        `help:"Print what would change, and change nothing."`
	by
	adminFlags
}

func (adjustSetCmd) Help() string {
	return `Sends the adjustment to the admin listener of a running sidecar. The listener must have a
token or be a Unix socket. Give --key, --match or --all-keys, --for or --until, and one change:
--factor, --unlimited, --block, or any of --rate, --capacity and --period.

With Redis, every sidecar applies the adjustment within about a second. Units that a key
has consumed stay consumed. The adjustment ends by itself.

Example:

  rlsidecar adjust set --limit send_message --key bob --rate 100 --capacity 200 --for 2h --reason "launch"
  rlsidecar adjust set --limit send_message --key bob --factor 10 --until 2026-03-01T18:00:00Z --reason "launch"
  rlsidecar adjust set --limit login --key 192.0.2.7 --block --for 1h --reason "attack, ticket 4711"
  rlsidecar adjust set --limit per_key --match tenant=evil --block --for 2h --reason "flood"
  rlsidecar adjust set --limit login --all-keys --factor 0.5 --for 30m --reason "database overloaded"`
}

func (c *adjustSetCmd) Run(a *app) error {
	target := adjust.Target{Domain: c.Domain, Limit: c.Limit, Key: c.Key, AllKeys: c.AllKeys}
	if c.Match != "" {
		match, err := descriptors.Parse(c.Match)
		if err != nil || len(match) != 1 {
			return exitError{exitUsage, fmt.Errorf("--match: %q is not one entry with its value, such as tenant=evil", c.Match)}
		}
		target.Entry, target.Value = match[0].Key, match[0].Value
	}
	body, err := json.Marshal(adjust.Proposal{
		Target: target,
		Change: adjust.Change{Rate: c.Rate, Capacity: c.Capacity, Period: c.Period, Factor: c.Factor, Unlimited: c.Unlimited, Block: c.Block},
		For:    c.For, Until: c.Until, Author: c.author(), Reason: c.Reason, Expect: c.ExpectVersion,
	})
	if err != nil {
		return err
	}
	path := "/api/adjustments"
	if c.Preview {
		path += "/preview"
	}
	var answer struct {
		Adjustment adjust.Adjustment
		Preview    bool `json:"-"`
	}
	answer.Preview = c.Preview
	return c.send(a, http.MethodPost, path, body, &answer, `{{if .Preview}}
would set {{.Adjustment.Words}}
{{else}}
set {{.Adjustment.Words}}
to end it earlier: rlsidecar adjust delete {{.Adjustment.ID}} --reason …
{{end}}
`)
}

// listedAdjustments is the answer of /api/adjustments.
type listedAdjustments struct {
	Version     uint64
	Adjustments []*adjust.Adjustment
	KeptIn      string `json:"kept_in"`
	Problem     string
}

// warn writes a message if the adjustments may be out of date.
func (l *listedAdjustments) warn(a *app) {
	if l.Problem != "" {
		fmt.Fprintf(a.stderr, "rlsidecar: the store of adjustments cannot be read (%s); these are the last known ones\n", l.Problem)
	}
}

type adjustListCmd struct{ adminFlags }

func (adjustListCmd) Help() string {
	return `Lists the adjustments in force at a running sidecar, and those that it ignores because
the configuration has no such limit.

Example:

  rlsidecar adjust list`
}

func (c *adjustListCmd) Run(a *app) error {
	var answer listedAdjustments
	err := c.send(a, http.MethodGet, "/api/adjustments", nil, &answer, `{{count (len .Adjustments) "adjustment"}}, version {{.Version}}, kept in {{.KeptIn}}
{{if .Adjustments}}
ID | DOMAIN | LIMIT | KEY | CHANGE | LEFT | AUTHOR | REASON
{{end}}
{{range .Adjustments}}
{{.ID}} | {{safe .Target.Domain}} | {{safe .Target.Limit}} | {{.Target.KeyText}} |
  {{.Change.String}}{{with .Ignored}} (ignored: {{.}}){{end}} | {{.Left}} | {{safe .Author}} | {{safe .Reason}}
{{end}}
`)
	if c.Format == "text" {
		answer.warn(a)
	}
	return err
}

type adjustDeleteCmd struct {
	ID            string  `arg:"" help:"ID of the adjustment, from adjust list."`
	ExpectVersion *uint64 `placeholder:"N" help:"Fail if the adjustments have changed since this version, which adjust list shows."`
	by
	adminFlags
}

func (adjustDeleteCmd) Help() string {
	return `The configured numbers apply again. Units that were consumed stay consumed. Exits with 1
if there is no such adjustment.

Example:

  rlsidecar adjust delete 4a534f8ae84cdbdd1f4f6e86 --reason "launch is over"`
}

func (c *adjustDeleteCmd) Run(a *app) error {
	body, err := json.Marshal(adjust.Removal{Author: c.author(), Reason: c.Reason, Version: c.ExpectVersion})
	if err != nil {
		return err
	}
	answer := struct{ ID string }{c.ID}
	return c.send(a, http.MethodDelete, "/api/adjustments/"+url.PathEscape(c.ID), body, &answer, "deleted {{.ID}}\n")
}

type adjustAuditCmd struct {
	N int `short:"n" default:"50" placeholder:"N" help:"Number of changes, at most 1000 (${default})."`
	adminFlags
}

func (adjustAuditCmd) Help() string {
	return `Lists the last changes, the newest first.

Example:

  rlsidecar adjust audit -n 10`
}

func (c *adjustAuditCmd) Run(a *app) error {
	query := url.Values{"n": {strconv.Itoa(c.N)}}
	var answer struct{ Entries []adjust.Entry }
	return c.send(a, http.MethodGet, "/api/adjustments/audit?"+query.Encode(), nil, &answer, `VERSION | AT | AUTHOR | TARGET | BEFORE | AFTER | REASON
{{range .Entries}}
{{.Version}} | {{when .At}} | {{safe .Author}} | {{with or .After .Before}}{{.Target.String}}{{end}} |
  {{with .Before}}{{.Change.String}}{{else}}-{{end}} |
  {{with .After}}{{.Change.String}} until {{.End}}{{else}}-{{end}} | {{safe .Reason}}
{{end}}
`)
}
