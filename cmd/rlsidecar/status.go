package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/internal/telemetry/status"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type statusCmd struct {
	adminFlags
}

func (statusCmd) Help() string {
	return `Shows on one screen whether a running sidecar is ready, its problems with their remedies,
its traffic, its store, the sidecars that share the store, and what is denied most. Exits with
1 if something is wrong: the sidecar is not ready, has a problem, or denies more than half of
the requests.

Example:

  rlsidecar status
  rlsidecar status --format json`
}

// currentState is the answer of the command in JSON.
type currentState struct {
	status.Status
	Denied httpapi.TopAnswer `json:"denied"`
}

func (c *statusCmd) Run(a *app) error {
	now, err := c.state(a, 5)
	if err != nil {
		return err
	}
	err = c.print(a.stdout, now, now.write)
	if err == nil && (!now.Ready || now.State.Level != status.Green) {
		return exitError{code: exitNo}
	}
	return err
}

// state requests the state of the sidecar, and up to n of the keys that it denied most.
func (f *adminFlags) state(a *app, n int) (now currentState, err error) {
	_, err = f.call(a, http.MethodGet, "status", nil, &now.Status)
	query := url.Values{"n": {fmt.Sprint(n)}}
	if _, ofTop := f.call(a, http.MethodGet, "top?"+query.Encode(), nil, &now.Denied); err == nil {
		err = ofTop
	}
	return now, err
}

func (s *currentState) write(w io.Writer) error {
	t := &s.Traffic
	ready := "yes"
	if !s.Ready {
		ready = "no: " + strings.ReplaceAll(strings.TrimSpace(s.NotReady), "\n", "; ")
	}
	rows := [][]string{
		{"state", s.State.Text},
		{"ready", ready},
		{"sidecar", "version " + s.Version + ", up for " + ago(s.Started)},
		{"limits", "none loaded"},
		{"traffic", fmt.Sprintf("%.1f requests/s allowed, %.1f denied, %.1f would be denied by shadow limits", t.Allowed, t.Denied, t.WouldBeDenied)},
		{"decisions", times(t.Median, t.P99)},
	}
	if s.Config != "" {
		rows[3][1] = "configuration " + cutHash(s.Config) + ", loaded " + ago(s.Loaded) + " ago"
	}
	rows = append(append(rows, s.store()...), s.fleet()...)
	if err := writeTable(w, rows...); err != nil {
		return err
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		fmt.Fprintf(w, "\n%s, for %s: %s\n  %s\n", c.Name, ago(c.Since), c.Summary, c.Remedy)
		if c.Error != "" {
			fmt.Fprintf(w, "  error: %s\n", descriptors.Printable(c.Error))
		}
	}
	if len(s.Conditions) == 0 && s.State.Remedy != "" {
		fmt.Fprintf(w, "\n%s\n  %s\n", s.State.Cause, s.State.Remedy)
	}
	if len(s.Denied.Denied) == 0 {
		return nil
	}
	fmt.Fprintf(w, "\ndenied since %s:\n", s.Denied.Since.UTC().Format("15:04:05 UTC"))
	if parts := partRows(s.Denied.Parts, "", 3); len(parts) > 1 {
		if err := writeTable(w, parts...); err != nil {
			return err
		}
	}
	return writeTable(w, deniedRows(s.Denied.Denied)...)
}

func (s *currentState) store() (rows [][]string) {
	store := &s.Store
	if store.Kind == "memory" {
		return [][]string{{"store", fmt.Sprintf("memory: %d of at most %d buckets", store.Keys, store.MaxKeys)}}
	}
	calls := times(store.Median, store.P99) + ", timeout " + micros(store.Timeout) + fmt.Sprintf(", %d failures since the start", store.Failures)
	rows = [][]string{{"store", store.Kind + ": " + calls}}
	for _, one := range store.Servers {
		memory := fmt.Sprintf("%.1f MiB", float64(one.Memory)/(1<<20))
		if one.MaxMemory > 0 {
			memory += fmt.Sprintf(" of %.1f", float64(one.MaxMemory)/(1<<20))
		}
		rows = append(rows, []string{"", fmt.Sprintf("%s: %s, %s, %s, eviction %s", descriptors.Printable(one.Address),
			descriptors.Printable(one.Version), descriptors.Printable(one.Role), memory, descriptors.Printable(one.Eviction))})
	}
	return append(rows, stale(store.Problem, store.AsOf)...)
}

func (s *currentState) fleet() (rows [][]string) {
	f := &s.Fleet
	if f.Self == "" {
		return nil
	}
	rows = [][]string{{"fleet", count(len(f.Sidecars), "sidecar")}}
	for i := range f.Sidecars {
		one := &f.Sidecars[i]
		text := fmt.Sprintf("%s: version %s, configuration %s, %.1f requests/s allowed, %.1f denied, load %.2f", descriptors.Printable(one.ID),
			descriptors.Printable(one.Version), cutHash(one.Config), one.AllowedRate, one.DeniedRate, one.Load)
		if one.Wrong != "" {
			text += ", " + descriptors.Printable(one.Wrong)
		}
		if one.ID == f.Self {
			text += " (this one)"
		}
		rows = append(rows, []string{"", text})
	}
	return append(rows, stale(f.Problem, f.AsOf)...)
}

// stale describes why what is shown about Redis is of an earlier time.
func stale(problem string, asOf time.Time) [][]string {
	if problem == "" {
		return nil
	}
	text := descriptors.Printable(problem)
	if !asOf.IsZero() {
		text = "as of " + ago(asOf) + " ago: " + text
	}
	return [][]string{{"", text}}
}

func times(median, p99 int64) string {
	if p99 == 0 {
		return "none in the last minute"
	}
	return "p50 " + micros(median) + ", p99 " + micros(p99)
}

func micros(n int64) string { return (time.Duration(n) * time.Microsecond).String() }

func ago(t time.Time) string { return max(0, time.Since(t)).Round(time.Second).String() }

func cutHash(hash string) string { return descriptors.Printable(hash[:min(12, len(hash))]) }
