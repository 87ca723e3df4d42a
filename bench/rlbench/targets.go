package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

// targetsCmd compares each function of rlsidecar with the least possible cost, and shows how far it is from
// its target.
type targetsCmd struct {
	sidecar

	Before   string        `type:"existingfile" placeholder:"FILE" help:"An rlsidecar program from before a change. Each row is measured for both programs, in turn."`
	Redis    string        `default:"redis-server" placeholder:"FILE" help:"The redis-server program. If it is not found, nothing is measured on Redis."`
	Envoy    string        `default:"envoy" placeholder:"FILE" help:"The Envoy program. If it is not found, nothing is measured behind Envoy."`
	Wrk      string        `default:"wrk" placeholder:"FILE" help:"The wrk program, which sends HTTP requests. If it is not found, nothing is measured behind Envoy and over HTTP."`
	Repeats  int           `default:"7" help:"Number of measurements of each, in turn."`
	Duration time.Duration `default:"1s" help:"Duration of one measurement."`
	Only     []string      `placeholder:"NAME" help:"Rows to measure: ${comparisons} (all)."`
	JSON     bool          `name:"json" help:"Print JSON: a line for each row of the table, with all its measurements."`
	Quick    bool          `help:"Only test that everything can be measured: one short measurement with few keys. The figures mean nothing."`
}

func (c *targetsCmd) keysMany() int {
	if c.Quick {
		return 20_000
	}
	return 1_000_000
}

// comparison is a group of measurements. run measures several servers in turn, and returns rows of the table.
type comparison struct {
	name string
	run  func(*bench) []finding
}

var comparisons = append([]comparison{
	{"memory", memoryComparison},
	{"many", manyComparison},
	{"envoy", envoyComparison},
	{"redis", redisComparison},
	{"throughput", throughputComparison},
	{"lease", leaseComparison},
	{"denied", deniedComparison},
	{"open", openComparison},
	{"size", sizeComparison},
	{"http", httpComparison},
	{"settle", settleComparison},
}, pathComparisons()...)

func comparisonNames() (names []string) {
	for _, l := range comparisons {
		names = append(names, l.name)
	}
	return names
}

var errMissing = errors.New("not measured")

// Run prints the table. A missed target is not an error, because the load of the machine affects the results
// too much.
func (c *targetsCmd) Run(a *app) error {
	for _, name := range c.Only {
		if !slices.Contains(comparisonNames(), name) {
			return fmt.Errorf("no row is called %q; there are %v", name, comparisonNames())
		}
	}
	if c.Quick {
		c.Repeats, c.Duration = 1, 100*time.Millisecond
	}
	dir, err := os.MkdirTemp("", "rlbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	notes := a.stdout
	if c.JSON {
		notes = a.stderr
	}
	fmt.Fprintf(notes, "%s; medians of %d rounds of %v in turn; load average %s\n", machine(), c.Repeats, c.Duration, loadAverage())
	var findings []finding
	var failed error // a failed comparison does not prevent the others
	for _, l := range comparisons {
		if len(c.Only) > 0 && !slices.Contains(c.Only, l.name) {
			continue
		}
		found, err := c.measure(a, dir, l)
		if errors.Is(err, errMissing) {
			fmt.Fprintf(notes, "%s: %v\n", l.name, err)
			continue
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", l.name, err))
			continue
		}
		fmt.Fprintf(a.stderr, "%s is measured\n", l.name)
		findings = append(findings, found...)
	}
	if err := c.print(a, findings); err != nil {
		return err
	}
	fmt.Fprintln(notes, "load average", loadAverage())
	return failed
}

func (c *targetsCmd) measure(a *app, dir string, l comparison) (found []finding, err error) {
	b := &bench{app: a, targetsCmd: c, dir: dir}
	defer b.stop()
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.error
		default:
			panic(p)
		}
	}()
	return l.run(b), nil
}

// failure is the panic with which check ends a comparison.
type failure struct{ error }

// check ends the comparison if err is not nil.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// output returns the output of a command.
func output(c *exec.Cmd) string {
	out, err := c.CombinedOutput()
	if err != nil {
		check(fmt.Errorf("%s: %w: %s", c.Args[0], err, out))
	}
	return string(out)
}

// must returns v, or ends the comparison if err is not nil.
func must[T any](v T, err error) T {
	check(err)
	return v
}

type bench struct {
	*app
	*targetsCmd
	dir      string
	children []*child // servers to stop at the end, the last one first
}

func (b *bench) stop() {
	for _, c := range slices.Backward(b.children) {
		c.stop()
	}
}

// started returns c, which is stopped at the end of the comparison.
func (b *bench) started(c *child, err error) *child {
	check(err)
	b.children = append(b.children, c)
	return c
}

func find(program string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%w: %w", errMissing, err)
	}
	return nil
}

// finding is a row of the table. It has the results of rlsidecar in each round, and those of the ceiling in
// the same round.
type finding struct {
	name, variant string
	ceiling, ours []float64 // if ceiling is nil, ours alone is compared with the target
	format        string
	atLeast       bool    // the target is a lower bound, not an upper bound
	target        float64 // 0 means that there is no target
}

func (f *finding) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"what": f.name, "variant": f.variant, "ceiling": f.ceiling, "rlsidecar": f.ours, "target": f.target})
}

// judged returns the values that are compared with the target: the ratios to the ceiling, if there is one.
func (f *finding) judged() (values []float64) {
	if f.ceiling == nil {
		return f.ours
	}
	for i := range f.ours {
		values = append(values, f.ours[i]/f.ceiling[i])
	}
	return values
}

func (f *finding) ratio() string {
	v := f.judged()
	return fmt.Sprintf("%.3g (%.3g to %.3g)", median(v), slices.Min(v), slices.Max(v))
}

func (f *finding) bound() string {
	if f.target == 0 {
		return ""
	}
	if f.atLeast {
		return fmt.Sprintf("at least %g", f.target)
	}
	return fmt.Sprintf("at most %g", f.target)
}

func (f *finding) isMet() bool {
	m := median(f.judged())
	if f.atLeast {
		return m >= f.target
	}
	return m <= f.target
}

func (c *targetsCmd) print(a *app, findings []finding) error {
	if c.JSON {
		e := json.NewEncoder(a.stdout)
		for _, f := range findings {
			if err := e.Encode(&f); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "what\tprogram\tceiling\trlsidecar\tratio, or value (least to greatest)\ttarget\t")
	for _, f := range findings {
		ceiling, mark := "", "missed"
		if f.ceiling != nil {
			ceiling = fmt.Sprintf(f.format, median(f.ceiling))
		}
		switch {
		case f.target == 0:
			mark = ""
		case f.isMet():
			mark = "met"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t"+f.format+"\t%s\t%s\t%s\n", f.name, f.variant, ceiling, median(f.ours), f.ratio(), f.bound(), mark)
	}
	return w.Flush()
}

func machine() string {
	model := runtime.GOARCH
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if name, value, _ := strings.Cut(s.Text(), ":"); strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d cores, %s, %s", runtime.NumCPU(), model, runtime.Version())
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:1], " ")
}

type sample struct {
	load.Result
	redisCPU   float64 // microseconds of Redis per request
	redisCalls float64 // calls of Redis per second
}

func sampleCPU(s sample) float64        { return s.CPU }
func samplePerSecond(s sample) float64  { return s.PerSecond }
func sampleP99(s sample) float64        { return s.P99 }
func sampleRedisCPU(s sample) float64   { return s.redisCPU }
func sampleRedisCalls(s sample) float64 { return s.redisCalls }

type candidate struct {
	name string
	run  func() sample
}

type rounds []sample

func (r rounds) of(value func(sample) float64) (values []float64) {
	for _, s := range r {
		values = append(values, value(s))
	}
	return values
}

// inTurn measures all candidates in each round. The first round does not count, because connections are
// opened and scripts loaded in it, except with --quick. The order is reversed in every second round.
func (b *bench) inTurn(candidates ...candidate) []rounds {
	all := make([]rounds, len(candidates))
	uncounted := 1
	if b.Quick {
		uncounted = 0
	}
	for round := range uncounted + b.Repeats {
		for i := range candidates {
			if round%2 == 1 {
				i = len(candidates) - 1 - i
			}
			if s := candidates[i].run(); round >= uncounted {
				all[i] = append(all[i], s)
			}
		}
	}
	return all
}
