//go:build unix

// Command plant tests the tests of a package. It plants small faults into the package by rule, all of them into one
// test binary, and runs the package's tests once for each fault. It prints the faults that no test notices.
//
//	go run ./test/plant ./pkg/algorithms             all faults
//	go run ./test/plant -sample 200 ./internal/...   200 faults of each package, chosen by -seed
//	go run ./test/plant -list ./pkg/algorithms       the faults, without running tests
//
// The rules, for Go: a comparison of numbers is moved by one; == and !=, + and -, min and max are exchanged; one side of
// && or || is dropped; a condition is negated; an assignment, a call or a send is deleted; a field of a struct is left
// out; an error is not returned; a constant is changed. The rules for the Redis script are in lua.go. The compiler gets the
// faulty files in an overlay, so the tree never changes.
//
// The tests of the package notice a fault if they fail, or take ten times as long as without a fault. For some
// packages the tests of other packages judge too (judges).
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A fault is one change of the program. The number of a fault is its index in faults, plus one.
type fault struct {
	place string // file:line
	rule  string
	text  string // the code that is changed
	lua   *luaEdit
}

// A judge is a test binary that may notice a fault.
type judge struct {
	pkg  string
	args []string
}

// judges has the tests that judge a package besides its own. The seeds of simulations are fixed.
var judges = map[string][]judge{
	"pkg/algorithms": {{"./pkg/backend/memory", nil}},
	"internal/limiter": {
		{"./pkg/ratelimit", nil},
		{"./test/simulate", []string{"-test.run=TestSimulation", "-seeds=300"}},
	},
	"internal/stores": {{"./test/simulate", []string{"-test.run=TestSimulation", "-seeds=300"}}},
	"internal/redis":  {{"./test/simulate", []string{"-test.run=TestSimulation", "-seeds=300"}}},
}

var (
	sample = flag.Int("sample", 0, "plant only this `number` of faults of each package, chosen at random; 0 means all")
	seed   = flag.Uint64("seed", 1, "the seed of the random choice")
	list   = flag.Bool("list", false, "list the faults, and run no tests")
	only   = flag.String("only", "", "plant only into files whose name contains this `text`, such as take.lua")
	tests  = flag.String("run", "", "run only the tests of the package that match this `expression`")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "plant:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, patterns []string) error {
	if len(patterns) == 0 {
		return errors.New("name a package, such as ./pkg/algorithms")
	}
	packages, err := load(patterns)
	if err != nil {
		return err
	}
	for _, p := range packages {
		faults, overlay, err := p.plant()
		if err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		if *list {
			for i, f := range faults {
				fmt.Printf("%d %s: %s: %s\n", i+1, f.place, f.rule, f.text)
			}
			continue
		}
		if len(faults) == 0 {
			continue
		}
		row, err := p.judge(ctx, faults, overlay)
		if err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		fmt.Println(row)
	}
	return ctx.Err()
}

// binary is a compiled judge.
type binary struct {
	judge
	path    string
	dir     string
	reached map[int]bool
	timeout time.Duration
}

// judge runs the tests for each fault, or for a sample of them, and returns a row of the table of results.
func (p *pkg) judge(ctx context.Context, faults []fault, overlay map[string][]byte) (string, error) {
	folder, err := os.MkdirTemp("", "plant-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder)
	file, err := writeOverlay(folder, overlay)
	if err != nil {
		return "", err
	}
	var binaries []*binary
	for i, j := range append([]judge{{"./" + p.path, []string{"-test.run=" + *tests}}}, judges[p.path]...) {
		b := &binary{judge: j, path: filepath.Join(folder, fmt.Sprintf("judge%d.test", i)), dir: filepath.Clean(j.pkg)}
		if err := b.build(ctx, file); err != nil {
			return "", err
		}
		if b.path == "" {
			continue // the package has no tests
		}
		if err := b.baseline(ctx, folder); err != nil {
			return "", err
		}
		binaries = append(binaries, b)
	}
	chosen := rand.New(rand.NewPCG(*seed, 0)).Perm(len(faults))
	chosen = slices.DeleteFunc(chosen, func(n int) bool { return !strings.Contains(faults[n].place, *only) })
	if *sample > 0 && *sample < len(chosen) {
		chosen = chosen[:*sample]
	}
	slices.Sort(chosen)
	unnoticed := p.runAll(ctx, binaries, chosen)
	for _, n := range unnoticed {
		f := faults[n]
		reached := slices.ContainsFunc(binaries, func(b *binary) bool { return f.lua != nil || b.reached[n+1] })
		note := ""
		if !reached {
			note = " (no test reaches it)"
		}
		fmt.Printf("%s: %s: %s%s\n", f.place, f.rule, f.text, note)
	}
	noticed := len(chosen) - len(unnoticed)
	return fmt.Sprintf("| `%s` | %d | %d | %.0f %% |", p.path, len(chosen), noticed, 100*float64(noticed)/float64(max(1, len(chosen)))), ctx.Err()
}

// runAll runs the binaries for each chosen fault, and returns the faults that none of them notices.
func (p *pkg) runAll(ctx context.Context, binaries []*binary, chosen []int) (unnoticed []int) {
	var mu sync.Mutex
	var group sync.WaitGroup
	next := make(chan int)
	for range runtime.NumCPU() {
		group.Go(func() {
			for n := range next {
				noticed := slices.ContainsFunc(binaries, func(b *binary) bool { return b.notices(ctx, n+1) })
				if !noticed && ctx.Err() == nil {
					mu.Lock()
					unnoticed = append(unnoticed, n)
					mu.Unlock()
				}
			}
		})
	}
	for _, n := range chosen {
		if ctx.Err() != nil {
			break
		}
		next <- n
	}
	close(next)
	group.Wait()
	slices.Sort(unnoticed)
	return unnoticed
}

// build compiles b. It sets b.path to "" if the package has no tests.
func (b *binary) build(ctx context.Context, overlay string) error {
	command := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", b.path, b.pkg)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(command.Args, " "), err, out)
	}
	if _, err := os.Stat(b.path); err != nil {
		b.path = ""
	}
	return nil
}

// baseline runs b without a fault, and stores which faults it reaches and how long it takes.
func (b *binary) baseline(ctx context.Context, folder string) error {
	list := filepath.Join(folder, "reached")
	os.Remove(list)
	start := time.Now()
	if out, err := b.run(ctx, 30*time.Minute, "PLANTED_REACHED="+list); err != nil {
		return fmt.Errorf("without a fault: %s: %w\n%s", b.pkg, err, out[max(0, len(out)-4000):])
	}
	b.timeout = 10*time.Since(start) + 10*time.Second
	content, _ := os.ReadFile(list)
	b.reached = map[int]bool{}
	for _, line := range strings.Fields(string(content)) {
		n, _ := strconv.Atoi(line)
		b.reached[n] = true
	}
	return ctx.Err()
}

func (b *binary) notices(ctx context.Context, n int) bool {
	if n <= lastOfGo && !b.reached[n] {
		return false
	}
	_, err := b.run(ctx, b.timeout, "PLANTED="+strconv.Itoa(n))
	return err != nil && ctx.Err() == nil
}

func (b *binary) run(ctx context.Context, timeout time.Duration, env string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	command := exec.CommandContext(ctx, b.path, append([]string{"-test.failfast", "-test.short"}, b.args...)...)
	command.Dir, command.Env = b.dir, append(os.Environ(), env)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that the servers that a test started end with it
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	if command.Process != nil {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	}
	return out.Bytes(), err
}
