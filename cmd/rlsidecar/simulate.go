package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/offline/simulate"
)

type simulateCmd struct {
	Config []string `required:"" placeholder:"PATH" help:"File, folder of *.yaml and *.yml files, or folder/**; may be repeated."`
	File   string   `arg:"" optional:"" help:"Trace or access log, optionally compressed with gzip. Default: standard input."`
	logFlags
	format
	Decisions     string `placeholder:"FILE" help:"Write one line of JSON for each request to this file. With -, they go to standard output and the report to standard error."`
	HTML          string `name:"html" placeholder:"FILE" help:"Write the report as an HTML file, in which you can try other limits."`
	DenyAtMost    string `default:"1%" placeholder:"SHARE" help:"Suggest limits that deny requests of at most this share of the clients (${default})."`
	MemoryMaxKeys int    `default:"1000000" placeholder:"N" setting:"flag" help:"Maximum number of buckets (${default})."`
	configSettings
}

func (simulateCmd) Help() string {
	return `Replays the requests of a trace or an access log in virtual time. A line of a trace has
one of two forms:

  {"time_us":1767225600000000,"domain":"edge","descriptors":[{"entries":[["user_id","bob"]],"hits":1}]}
  {"time_us":1767225600000000,"limits":[{"name":"send_message","key":"bob","count":1,"reserve":false}]}

For an access log, --descriptor states the entries of the descriptors. Values may contain:

  %h  client address       %m  method     %U  path without query   %q  query
  %s  status               %u  user       %H  protocol             %%  percent sign
  %{NAME}i  request header (nginx: Referer and User-Agent only)

As in Envoy, a descriptor is left out if the line lacks one of its values. Paths of nginx
are decoded, and //, . and .. are resolved, as /v1/auth does. With --auth, the routes of
the section auth make the descriptors, as they do for /v1/auth.

The report goes to standard output. It shows the denied requests, by limit and by key, and
the consumption of clients. For each limit it shows how many clients and requests other
numbers would have denied. It suggests a number that denies requests of at most 1 % of
the clients (--deny-at-most): the one with the widest gap between the clients that it
denies and the rest, or else the smallest. For a concurrency limit it shows the keys with
the most requests in flight, if the log has the durations of requests.

Example:

  rlsidecar simulate --config limits.yaml trace.jsonl --decisions decisions.jsonl
  rlsidecar simulate --config limits.yaml trace.jsonl --format json
  rlsidecar simulate --config limits.yaml --log-format nginx --domain edge --descriptor remote_address=%h,path=%U --html report.html access.log.gz
  rlsidecar simulate --config limits.yaml --log-format nginx --auth access.log.gz`
}

func (c *simulateCmd) Run(a *app) error {
	share, err := parseShare(c.DenyAtMost)
	if err != nil {
		return exitError{exitUsage, fmt.Errorf("--deny-at-most: %w", err)}
	}
	snapshot, err := c.load(a, c.Config)
	if err != nil {
		return err
	}
	runs, err := c.configs(c.MemoryMaxKeys, snapshot)
	if err != nil {
		return exitError{exitUsage, err}
	}
	name, log, err := openLog(a, c.File)
	if err != nil {
		return err
	}
	defer log.Close()
	runs[0].Name, runs[0].Input, runs[0].Share = name, log, share
	return c.replay(a, runs[0])
}

// replay replays the log and writes the report. If decisions go to standard output, the report goes to standard error.
func (c *simulateCmd) replay(a *app, run simulate.Config) (err error) {
	report := a.stdout
	switch c.Decisions {
	case "":
	case "-", "/dev/stdout": // opening standard output by name would truncate it if it is a file
		run.Decisions, report = a.stdout, a.stderr
	default:
		file, failed := os.Create(c.Decisions)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		run.Decisions = file
	}
	done, err := simulate.Run(a.ctx, run)
	if _, ok := errors.AsType[*simulate.LineError](err); ok {
		return exitError{exitNo, err}
	}
	if err != nil {
		return err
	}
	if c.Format == "json" {
		err = writeJSON(report, done)
	} else {
		err = done.WriteText(report)
	}
	if err != nil || c.HTML == "" {
		return err
	}
	page, err := os.Create(c.HTML)
	if err != nil {
		return err
	}
	return errors.Join(done.WriteHTML(a.ctx, page, run.Name), page.Close())
}

// parseShare parses a percentage, such as 0.5%, and returns it as a fraction from 0 to below 1.
func parseShare(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !percent || !(n >= 0 && n < 100) { // the condition is written so that it rejects NaN
		return 0, fmt.Errorf("%q is not a percentage below 100 %%, such as 1%% or 0.5%%", text)
	}
	return n / 100, nil
}
