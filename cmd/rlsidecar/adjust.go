package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// adjustCmd changes single limits of a running sidecar.
type adjustCmd struct {
	Set    adjustSetCmd    `cmd:"" help:"Give a key, or all keys of a limit, other numbers until a moment; or block it."`
	List   adjustListCmd   `cmd:"" help:"List the adjustments in force."`
	Show   adjustShowCmd   `cmd:"" help:"Show one of them."`
	Delete adjustDeleteCmd `cmd:"" help:"End one before it expires."`
	Audit  adjustAuditCmd  `cmd:"" help:"List who changed what and why, or verify that list."`
}

// by names the operator.
type by struct {
	Author string `env:"USER" placeholder:"NAME" help:"Who you are, for the audit ($USER)."`
	Reason string `required:"" placeholder:"TEXT" help:"Why, for the audit."`
}

type adjustSetCmd struct {
	Limit   string   `required:"" placeholder:"NAME" help:"The limit."`
	Domain  string   `placeholder:"NAME" help:"Its domain; needed where several have such a limit."`
	Key     []string `sep:"none" placeholder:"VALUE" help:"The value that identifies the bucket; once for each value, in the order of the descriptor."`
	AllKeys bool     `help:"All keys of the limit that have no adjustment of their own."`

	Rate      *int64 `placeholder:"N" help:"Units in each period, instead of those configured."`
	Capacity  *int64 `placeholder:"N" help:"The most units at once."`
	Period    string `placeholder:"TIME" help:"The period, as 1m or 1d."`
	Factor    string `placeholder:"X" help:"So many times as much as is configured: 10, 0.5."`
	Unlimited bool   `help:"Deny nothing; what is used is still counted."`
	Block     bool   `help:"Deny everything."`

	For           string    `placeholder:"TIME" help:"How long: 30m, 2h, 7d; at most 30 days."`
	Until         time.Time `placeholder:"TIME" help:"Or until when: 2026-03-01T18:00:00Z."`
	ExpectVersion *uint64   `placeholder:"N" help:"Change nothing if there was a change since this version, which list shows."`
	Preview       bool      `help:"Say what it would do, and do nothing."`
	by
	adminFlags
}

// Help is shown by adjust set --help.
func (adjustSetCmd) Help() string {
	return `Asks the admin port of a running sidecar, with the admin token or at its Unix socket.
With Redis every sidecar applies the adjustment within about a second. What a key has
used stays used. The adjustment ends by itself.

Example:

  rlsidecar adjust set --limit send_message --key bob --rate 100 --capacity 200 --for 2h --reason "launch"
  rlsidecar adjust set --limit send_message --key bob --factor 10 --until 2026-03-01T18:00:00Z --reason "launch"
  rlsidecar adjust set --limit login --key 192.0.2.7 --block --for 1h --reason "attack, ticket 4711"
  rlsidecar adjust set --limit login --all-keys --factor 0.5 --for 30m --reason "database overloaded"`
}

// Run sets it.
func (c *adjustSetCmd) Run(a *app) error {
	p, err := c.proposal()
	if err != nil {
		return exitError{exitUsage, err}
	}
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	path := "adjustments"
	if c.Preview {
		path += "/preview"
	}
	var answer struct {
		Version    uint64
		Adjustment shownAdjustment
	}
	if err := c.send(a, http.MethodPost, path, nil, body, &answer); err != nil || c.Format == "json" {
		return err
	}
	if c.Preview {
		_, err = fmt.Fprintf(a.stdout, "would set %s\n", answer.Adjustment.Words)
	} else {
		_, err = fmt.Fprintf(a.stdout, "set %s\nend it before with: rlsidecar adjust delete %s --reason …\n", answer.Adjustment.Words, answer.Adjustment.ID)
	}
	return err
}

// proposal is what the flags say.
func (c *adjustSetCmd) proposal() (p adjust.Proposal, err error) {
	p = adjust.Proposal{
		Target: adjust.Target{Domain: c.Domain, Limit: c.Limit, Key: c.Key, AllKeys: c.AllKeys},
		Change: adjust.Change{Rate: c.Rate, Capacity: c.Capacity, Unlimited: c.Unlimited, Block: c.Block},
		Until:  c.Until, Author: c.Author, Reason: c.Reason, Expect: c.ExpectVersion,
	}
	if c.Factor != "" {
		if p.Change.Factor, err = adjust.ParseFactor(c.Factor); err != nil {
			return p, fmt.Errorf("--factor: %w", err)
		}
	}
	if c.Period != "" {
		if p.Change.Period, err = adjust.ParseSpan(c.Period); err != nil {
			return p, fmt.Errorf("--period: %w", err)
		}
	}
	if c.For != "" {
		span, err := adjust.ParseSpan(c.For)
		if err != nil {
			return p, fmt.Errorf("--for: %w", err)
		}
		p.For = adjust.Duration(span)
	}
	return p, nil
}

// shownAdjustment is an adjustment in an answer.
type shownAdjustment struct {
	adjust.Adjustment
	Words, Ignored string
	Left           int64 `json:"left_s"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *shownAdjustment) UnmarshalJSON(text []byte) error {
	var also struct {
		Words   string `json:"words"`
		Ignored string `json:"ignored"`
		Left    int64  `json:"left_s"`
	}
	if err := json.Unmarshal(text, &also); err != nil {
		return err
	}
	s.Words, s.Ignored, s.Left = also.Words, also.Ignored, also.Left
	return json.Unmarshal(text, &s.Adjustment)
}

type adjustListCmd struct{ adminFlags }

// Help is shown by adjust list --help.
func (adjustListCmd) Help() string {
	return `Lists the adjustments in force at a running sidecar, and those that it ignores.

Example:

  rlsidecar adjust list`
}

// Run lists them.
func (c *adjustListCmd) Run(a *app) error {
	var answer struct {
		Version     uint64            `json:"version"`
		Adjustments []shownAdjustment `json:"adjustments"`
		KeptIn      string            `json:"kept_in"`
		Problem     string            `json:"problem"`
	}
	if err := c.send(a, http.MethodGet, "adjustments", nil, nil, &answer); err != nil || c.Format == "json" {
		return err
	}
	if answer.Problem != "" {
		fmt.Fprintf(a.stderr, "rlsidecar: these are the last ones known: %s\n", answer.Problem)
	}
	fmt.Fprintf(a.stdout, "%d adjustments, version %d, kept in %s\n", len(answer.Adjustments), answer.Version, answer.KeptIn)
	return writeAdjustments(a.stdout, answer.Adjustments)
}

func writeAdjustments(w io.Writer, all []shownAdjustment) error {
	if len(all) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "ID\tDOMAIN\tLIMIT\tKEY\tCHANGE\tLEFT\tAUTHOR\tREASON\n")
	for i := range all {
		s := &all[i]
		change := s.Change.String()
		if s.Ignored != "" {
			change += " (ignored)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%v\t%s\t%s\n", s.ID, descriptors.Printable(s.Target.Domain), descriptors.Printable(s.Target.Limit),
			s.Target.KeyText(), change, time.Duration(s.Left)*time.Second, descriptors.Printable(s.Author), descriptors.Printable(s.Reason))
	}
	return table.Flush()
}

type adjustShowCmd struct {
	ID string `arg:"" help:"The ID, as list shows it."`
	adminFlags
}

// Help is shown by adjust show --help.
func (adjustShowCmd) Help() string {
	return `Exits 1 if there is no such adjustment.

Example:

  rlsidecar adjust show 4a534f8ae84cdbdd1f4f6e86`
}

// Run shows it.
func (c *adjustShowCmd) Run(a *app) error {
	var answer struct{ Adjustment shownAdjustment }
	if err := c.send(a, http.MethodGet, "adjustments/"+url.PathEscape(c.ID), nil, nil, &answer); err != nil || c.Format == "json" {
		return err
	}
	s := &answer.Adjustment
	text := s.Words
	if s.Ignored != "" {
		text = s.Target.String() + ": " + s.Change.String() + ", IGNORED: " + s.Ignored
	}
	_, err := fmt.Fprintf(a.stdout, "%s\nset by %s at %s: %s\nexpires %s, in %v\n", text, descriptors.Printable(s.Author), when(int64(s.Created)),
		descriptors.Printable(s.Reason), when(int64(s.Expires)), time.Duration(s.Left)*time.Second)
	return err
}

func when(micros int64) string { return time.UnixMicro(micros).UTC().Format("2006-01-02 15:04:05 UTC") }

type adjustDeleteCmd struct {
	ID            string  `arg:"" help:"The ID, as list shows it."`
	ExpectVersion *uint64 `placeholder:"N" help:"Change nothing if there was a change since this version."`
	by
	adminFlags
}

// Help is shown by adjust delete --help.
func (adjustDeleteCmd) Help() string {
	return `The limit is as configured again; what was used stays used. Exits 1 if there is no such
adjustment.

Example:

  rlsidecar adjust delete 4a534f8ae84cdbdd1f4f6e86 --reason "launch is over"`
}

// Run deletes it.
func (c *adjustDeleteCmd) Run(a *app) error {
	body, err := json.Marshal(map[string]any{"author": c.Author, "reason": c.Reason, "version": c.ExpectVersion})
	if err != nil {
		return err
	}
	var answer struct{ Version uint64 }
	if err := c.send(a, http.MethodDelete, "adjustments/"+url.PathEscape(c.ID), nil, body, &answer); err != nil || c.Format == "json" {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "deleted %s\n", c.ID)
	return err
}

type adjustAuditCmd struct {
	N      int    `short:"n" default:"50" placeholder:"N" help:"How many changes, at most 1000 (${default})."`
	Before uint64 `placeholder:"N" help:"Those before this version (the newest)."`
	Verify bool   `help:"Verify instead that no entry was changed or removed."`
	adminFlags
}

// Help is shown by adjust audit --help.
func (adjustAuditCmd) Help() string {
	return `Lists changes, the newest first. Each entry is chained to the one before it. With --verify
the sidecar checks that chain; exits 1 if it is broken. The sidecars need --audit-key-file
to protect the chain against forgery by anyone with write access to Redis.

Example:

  rlsidecar adjust audit -n 10
  rlsidecar adjust audit --verify`
}

// Run lists or verifies them.
func (c *adjustAuditCmd) Run(a *app) error {
	if c.Verify {
		return c.verify(a)
	}
	query := url.Values{"n": {strconv.Itoa(c.N)}}
	if c.Before > 0 {
		query.Set("before", strconv.FormatUint(c.Before, 10))
	}
	var answer struct {
		Entries []struct {
			Version                   uint64
			At                        time.Time
			Author, Reason, Operation string
			Before, After             *adjust.Adjustment
		}
	}
	if err := c.send(a, http.MethodGet, "adjustments/audit", query, nil, &answer); err != nil || c.Format == "json" {
		return err
	}
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "VERSION\tAT\tAUTHOR\tTARGET\tBEFORE\tAFTER\tREASON\n")
	for _, e := range answer.Entries {
		target, before, after := "", "-", "-"
		if e.Before != nil {
			target, before = e.Before.Target.String(), e.Before.Change.String()
		}
		if e.After != nil {
			target, after = e.After.Target.String(), e.After.Change.String()+" until "+when(int64(e.After.Expires))
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Version, when(e.At.UnixMicro()), descriptors.Printable(e.Author), target, before, after, descriptors.Printable(e.Reason))
	}
	return table.Flush()
}

func (c *adjustAuditCmd) verify(a *app) error {
	var answer struct {
		Entries int
		Whole   bool
		Problem string
	}
	if err := c.send(a, http.MethodGet, "adjustments/audit/verify", nil, nil, &answer); err != nil {
		return err
	}
	if !answer.Whole {
		return exitError{exitNo, errors.New("the audit is not whole: " + answer.Problem)}
	}
	if c.Format == "json" {
		return nil
	}
	_, err := fmt.Fprintf(a.stdout, "%d entries, none changed and none missing\n", answer.Entries)
	return err
}
