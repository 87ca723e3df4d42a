package main

import (
	"errors"
	"fmt"

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
	err = c.print(a.stdout, d, differenceText)
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

const differenceText = `{{range .Changes}}
{{.What}} {{.Name}} {{.Kind}}{{with .Place}}  ({{.}}){{end}}
{{range .Details}}
  {{.}}
{{end}}
{{else}}
no difference
{{end}}
{{with .Log}}

{{count .Requests "request"}} replayed with both{{with .Unread}}; {{count . "line"}} could not be read{{end}}
  newly denied   {{template "changes" .Denied}}
  newly allowed  {{template "changes" .Allowed}}
{{end}}
{{define "changes"}}
{{count .Requests "request"}} of {{if .AtLeast}}at least {{end}}{{count .Clients "client"}}
{{- range .Limits}}

    {{.Requests}} by {{.Limit}}
{{- end}}
{{end}}
`
