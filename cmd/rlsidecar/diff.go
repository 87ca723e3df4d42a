package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/diff"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/offline/simulate"
)

type diffCmd struct {
	Old           string `arg:"" placeholder:"OLD" help:"File, folder of *.yaml and *.yml files, or folder/**."`
	New           string `arg:"" placeholder:"NEW" help:"File, folder of *.yaml and *.yml files, or folder/**."`
	Log           string `placeholder:"FILE" help:"Trace or access log to replay with both configurations, optionally compressed with gzip; - is standard input."`
	ExitCode      bool   `help:"Exit with 1 if there are differences."`
	MemoryMaxKeys int    `default:"1000000" placeholder:"N" setting:"flag" help:"Maximum number of buckets of each configuration (${default})."`
	format
	logFlags
	configSettings
}

func (diffCmd) Help() string {
	return `Describes each limit that was added, removed or changed: its numbers, algorithm, shadow
and quota mode, failure policy, and whether its buckets start anew. It also lists the
descriptors that match other limits than before, and changed routes of the section auth.

With --log, it replays a log with both configurations, and counts the requests and
clients that only one of them denies. "simulate --help" explains the flags --log-format,
--descriptor and --auth.

Exit codes: 0 success; 1 there are differences (with --exit-code); 2 wrong usage; 3
failure, such as a configuration with a mistake.

Example:

  rlsidecar diff old.yaml new.yaml
  rlsidecar diff --exit-code --format json main/limits/ limits/
  rlsidecar diff old.yaml new.yaml --log access.log.gz --log-format nginx --descriptor remote_address=%h`
}

type difference struct {
	Changes []diff.Change        `json:"changes"`
	Log     *simulate.Comparison `json:"log,omitempty"`
}

func (c *diffCmd) Run(a *app) error {
	if c.Log == "" && (len(c.Descriptor) > 0 || c.Auth || c.Domain != "") {
		return exitError{exitUsage, errors.New("--descriptor, --auth and --domain need --log")}
	}
	was, err := c.configuration(a, c.Old)
	if err != nil {
		return err
	}
	is, err := c.configuration(a, c.New)
	if err != nil {
		return err
	}
	d := difference{Changes: diff.Compare(was, is)}
	if c.Log != "" {
		if d.Log, err = c.replay(a, was, is); err != nil {
			return err
		}
	}
	err = c.print(a.stdout, d, func(w io.Writer) error { return writeDifference(w, d) })
	if err == nil && c.ExitCode && len(d.Changes) > 0 {
		return exitError{code: exitNo}
	}
	return err
}

// configuration reads one of the two configurations. Mistakes in it end the command, because they are not
// differences.
func (c *diffCmd) configuration(a *app, path string) (*limiter.Snapshot, error) {
	s, err := c.load(a, []string{path})
	if exit, ok := errors.AsType[exitError](err); ok && exit.code == exitNo {
		return nil, exitError{exitFailed, fmt.Errorf("%s has the mistakes above and cannot be compared", path)}
	}
	return s, err
}

func (c *diffCmd) replay(a *app, was, is *limiter.Snapshot) (*simulate.Comparison, error) {
	sides, err := c.configs(c.MemoryMaxKeys, was, is)
	if err != nil {
		return nil, exitError{exitUsage, err}
	}
	name, log, err := openLog(a, c.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	sides[0].Name, sides[0].Input = name, log
	return simulate.Compare(a.ctx, sides[0], sides[1])
}

func writeDifference(w io.Writer, d difference) error {
	var out strings.Builder
	if len(d.Changes) == 0 {
		out.WriteString("no difference\n")
	}
	for _, c := range d.Changes {
		place := ""
		if c.Place != "" {
			place = "  (" + c.Place + ")"
		}
		fmt.Fprintf(&out, "%s %s %s%s\n", c.What, c.Name, c.Kind, place)
		for _, detail := range c.Details {
			fmt.Fprintf(&out, "  %s\n", detail)
		}
	}
	if l := d.Log; l != nil {
		fmt.Fprintf(&out, "\n%s replayed with both", count(int(l.Requests), "request"))
		if l.Unread > 0 {
			fmt.Fprintf(&out, "; %s could not be read", count(int(l.Unread), "line"))
		}
		out.WriteString("\n")
		writeChanges(&out, "newly denied ", l.Denied)
		writeChanges(&out, "newly allowed", l.Allowed)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func writeChanges(w io.Writer, title string, c simulate.Changes) {
	least := ""
	if c.AtLeast {
		least = "at least "
	}
	fmt.Fprintf(w, "  %s  %s of %s%s\n", title, count(int(c.Requests), "request"), least, count(int(c.Clients), "client"))
	for _, l := range c.Limits {
		fmt.Fprintf(w, "    %d by %s\n", l.Requests, l.Limit)
	}
}
