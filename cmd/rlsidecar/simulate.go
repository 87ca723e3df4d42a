package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/offline/simulate"
)

type simulateCmd struct {
	Config []string `required:"" placeholder:"PATH" help:"File, or folder of *.yaml files; may be repeated."`
	File   string   `arg:"" optional:"" help:"Trace or access log, may be compressed with gzip; standard input without it."`
	logFlags
	Decisions     string `placeholder:"FILE" help:"Write a line of JSON for each request; -: to standard output, and the report to standard error."`
	HTML          string `name:"html" placeholder:"FILE" help:"Write the report as an HTML file, with a line to drag that shows what other limits would have denied."`
	DenyAtMost    string `default:"1%" placeholder:"SHARE" help:"Suggest the smallest limits that deny a request of at most this share of the clients (${default})."`
	MemoryMaxKeys int    `default:"1000000" placeholder:"N" env:"RLSIDECAR_MEMORY_MAX_KEYS" help:"The most buckets kept (${default})."`
	configFlags
}

// Help is shown by simulate --help.
func (simulateCmd) Help() string {
	return `The time is that of the trace, whose lines are of one of two forms:

  {"time_us":1767225600000000,"domain":"edge","descriptors":[{"entries":[["user_id","bob"]],"hits":1}]}
  {"time_us":1767225600000000,"limits":[{"name":"send_message","key":"bob","count":1,"reserve":false}]}

For an access log, --descriptor names the entries. In their values stand
%h the client's address, %m method, %U path without query, %q query, %H protocol,
%s status, %u user, %{NAME}i a request header (nginx: Referer and User-Agent), %%
a percent sign. A descriptor of which a line lacks a part is dropped, as Envoy does.
Of nginx's paths the escapes are decoded and //, . and .. resolved, as /v1/auth does.
With --auth the routes of the section auth say what is asked, as they do at /v1/auth.

The report goes to standard output: what was denied, by which limit, for which keys;
how much clients ask for; and, for each limit, which numbers would have denied how
many clients and requests. It suggests the smallest number that denies a request of
at most 1 % of the clients (--deny-at-most): one abuser does not change it.

Example:

  rlsidecar simulate --config limits.yaml trace.jsonl --decisions decisions.jsonl
  rlsidecar simulate --config limits.yaml --format nginx --domain edge --descriptor remote_address=%h,path=%U --html report.html access.log.gz
  rlsidecar simulate --config limits.yaml --format nginx --auth access.log.gz`
}

// Run replays the input.
func (c *simulateCmd) Run(a *app) error {
	templates, err := c.templates()
	if err != nil {
		return exitError{exitUsage, err}
	}
	share, err := parseShare(c.DenyAtMost)
	if err != nil {
		return exitError{exitUsage, fmt.Errorf("--deny-at-most: %w", err)}
	}
	snapshot, err := c.load(a, c.Config)
	if err != nil {
		return err
	}
	if c.Auth {
		if snapshot.Auth == nil {
			return exitError{exitUsage, errors.New("--auth: the configuration has no section auth")}
		}
		templates = simulate.RouteTemplates(simulate.Format(c.Format), snapshot.Auth)
	}
	domain, err := c.domain(snapshot.Domains)
	if err != nil {
		return exitError{exitUsage, err}
	}
	name, input := "standard input", a.stdin
	if c.File != "" {
		file, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer file.Close()
		name, input = c.File, file
	}
	run := simulate.Config{
		Snapshot: snapshot, Name: name, Input: input, Format: simulate.Format(c.Format),
		Templates: templates, Domain: domain, MaxKeys: c.MemoryMaxKeys, Share: share,
	}
	return c.run(a, run)
}

// run replays, and writes the report; beside decisions on standard output, to standard error.
func (c *simulateCmd) run(a *app, run simulate.Config) error {
	switch c.Decisions {
	case "":
		return c.replay(a, run, a.stdout)
	case "-", "/dev/stdout": // opened by its name it would be cut to nothing where it is a file
		run.Decisions = a.stdout
		return c.replay(a, run, a.stderr)
	}
	file, err := os.Create(c.Decisions)
	if err != nil {
		return err
	}
	run.Decisions = file
	return errors.Join(c.replay(a, run, a.stdout), file.Close())
}

func (c *simulateCmd) replay(a *app, run simulate.Config, report io.Writer) error {
	meter := newMeter(a.stderr)
	run.Progress = meter.show
	done, err := simulate.Run(a.ctx, run)
	meter.clear()
	if _, ok := errors.AsType[*simulate.LineError](err); ok {
		return exitError{exitNo, err}
	}
	if err != nil {
		return err
	}
	if err := done.WriteText(report); err != nil || c.HTML == "" {
		return err
	}
	page, err := os.Create(c.HTML)
	if err != nil {
		return err
	}
	return errors.Join(done.WriteHTML(a.ctx, page, run.Name), page.Close())
}

// parseShare reads a percentage.
func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !percent || !(n >= 0 && n < 100) { // so that NaN is none
		return 0, fmt.Errorf("%q is not a percentage below 100 %%, such as 1%% or 0.5%%", text)
	}
	return n / 100, nil
}

// meter tells a person at a terminal how far it is.
type meter struct {
	w           io.Writer // nil: there is nobody to tell
	start, last time.Time
}

func newMeter(w io.Writer) *meter {
	now := time.Now()
	m := &meter{start: now, last: now}
	if file, ok := w.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			m.w = w
		}
	}
	return m
}

func (m *meter) show(lines int64) {
	if now := time.Now(); m.w != nil && now.Sub(m.last) >= time.Second {
		m.last = now
		fmt.Fprintf(m.w, "\r%d lines, %.0f a second ", lines, float64(lines)/now.Sub(m.start).Seconds())
	}
}

// clear makes way for what is printed next.
func (m *meter) clear() {
	if m.w != nil && m.last != m.start {
		fmt.Fprint(m.w, "\r\x1b[K")
	}
}
