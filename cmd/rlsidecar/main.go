// Command rlsidecar is a rate limiter for proxies.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/internal/reference/refenv"
)

const (
	exitDone   = 0
	exitNo     = 1 // a negative result: a mistake in a configuration, a failed scenario
	exitUsage  = 2
	exitFailed = 3 // a failure, such as I/O or network
)

// commands is the command line. The file of each command has the command's name.
type commands struct {
	Version versionFlag `help:"Print version, commit and Go version."`

	Serve       serveCmd       `cmd:"" help:"Run the sidecar."`
	Check       checkCmd       `cmd:"" help:"Check configurations, and print file:line:column of every mistake."`
	Explain     explainCmd     `cmd:"" help:"Show which limit and bucket each descriptor matches, and why."`
	Simulate    simulateCmd    `cmd:"" help:"Replay a log, and show which requests the limits would have denied."`
	Diff        diffCmd        `cmd:"" help:"Compare two configurations, and count the affected requests of a log."`
	Test        testCmd        `cmd:"" help:"Run scenarios: tests of limits, with times, requests and expected answers."`
	Get         getCmd         `cmd:"" help:"Show the units left in a bucket of a running sidecar."`
	Reset       resetCmd       `cmd:"" help:"Reset a bucket of a running sidecar."`
	Adjust      adjustCmd      `cmd:"" help:"Change a limit of running sidecars for some time, for one key or all keys; block a key."`
	Status      statusCmd      `cmd:"" help:"Show whether a running sidecar is well: problems, traffic, store, fleet, denials."`
	Top         topCmd         `cmd:"" help:"Show the keys that a running sidecar denied most, with the reasons, until you press q."`
	Doctor      doctorCmd      `cmd:"" help:"Check whether a Redis server is fit to keep limits."`
	Healthcheck healthcheckCmd `cmd:"" help:"Check whether the sidecar on this machine is ready."`
	Completion  completionCmd  `cmd:"" help:"Print a script that completes commands in a shell."`
}

type format struct {
	Format string `enum:"text,json" default:"text" help:"Format of the output: text or json."`
}

// print writes v to w as JSON, or as writeText does.
func (f format) print(w io.Writer, v any, text string) error {
	if f.Format == "json" {
		return writeJSON(w, v)
	}
	return writeText(w, v, text)
}

type app struct {
	ctx            context.Context
	stdin          io.Reader
	stdout, stderr io.Writer
	reference      reference
}

// exitError is an error of a command. The program prints err to stderr, unless it is nil, and exits with code.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // after the first signal, the second one ends the process at once
	os.Exit(runAs(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// runAs runs the program according to the name in argv[0]. Under the name ratelimit and without arguments, it
// runs serve with the reference server's defaults. "ratelimit healthcheck" uses these defaults too. In all
// other cases the name has no effect.
func runAs(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) int {
	args := argv[1:]
	asReference := filepath.Base(argv[0]) == "ratelimit" && (len(args) == 0 || args[0] == "healthcheck")
	if asReference && len(args) == 0 {
		args = []string{"serve"}
	}
	reference := readEnvironment(asReference)
	done := -1 // the exit code after --help or --version, or -1
	parser, err := newParser(&commands{}, reference, stdout, stderr, func(code int) { done = code })
	if err != nil {
		fmt.Fprintf(stderr, "rlsidecar: %v\n", err)
		return exitFailed
	}
	if len(args) == 0 || args[0] == "help" {
		args = append(slices.Clone(args[min(1, len(args)):]), "--help")
	}
	if advice := removedAdvice(parser.Model.Node, args); advice != "" {
		fmt.Fprintf(stderr, "rlsidecar: %s\n", advice)
		return exitUsage
	}
	command, err := parser.Parse(args)
	if done >= 0 {
		return done
	}
	if err != nil {
		command, advice := usageAdvice(args, err)
		fmt.Fprintf(stderr, "rlsidecar: %s%s\nTry: rlsidecar %s--help\n", refenv.MaskedText(err.Error()), advice, command)
		return exitUsage
	}
	err = command.Run(&app{ctx, stdin, stdout, stderr, reference})
	exit, ok := errors.AsType[exitError](err)
	switch {
	case err == nil:
		return exitDone
	case !ok:
		exit = exitError{exitFailed, err}
	}
	if exit.err != nil {
		fmt.Fprintf(stderr, "rlsidecar: %v\n", exit.err)
	}
	return exit.code
}

func newParser(c *commands, r reference, stdout, stderr io.Writer, exit func(int)) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("rlsidecar"),
		kong.Description("A rate limiter that proxies call before every request."),
		kong.Writers(stdout, stderr),
		kong.PostBuild(nameVariables),
		kong.NamedMapper("tokenfile", kong.MapperFunc(tokenFile)),
		kong.Resolvers(kong.ResolverFunc(r.resolve)),
		kong.Exit(exit),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
}

// usageAdvice returns the command for --help that fits a mistake in args, and how to name a configuration if that was
// the mistake.
func usageAdvice(args []string, err error) (command, advice string) {
	parse, ok := errors.AsType[*kong.ParseError](err)
	if !ok || parse.Context.Selected() == nil {
		return "", ""
	}
	command = parse.Context.Selected().Path() + " "
	word, ok := strings.CutPrefix(err.Error(), "unexpected argument ")
	if !ok && strings.HasPrefix(err.Error(), "missing flags: --config") && len(args) > 1 {
		word = args[1]
	}
	if strings.HasSuffix(word, ".yaml") || strings.HasSuffix(word, ".yml") {
		advice = "; a configuration is given by --config: rlsidecar " + command + "--config " + word
	}
	return command, advice
}

func printVersion(w io.Writer) error {
	version, revision := build()
	_, err := fmt.Fprintf(w, "rlsidecar %s\ncommit %s\n%s %s/%s\n",
		version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// versionFlag is the flag --version, which new users try first.
type versionFlag bool

func (versionFlag) BeforeReset(k *kong.Kong) error {
	err := printVersion(k.Stdout)
	k.Exit(exitDone)
	return err
}

// The linker sets linkedVersion and linkedRevision (-X main.linkedVersion=…) if the program is built
// without the Git history, as for the container image.
var linkedVersion, linkedRevision string

// build returns the version and the commit that Go or the linker recorded.
func build() (version, revision string) {
	if linkedVersion != "" {
		return linkedVersion, cmp.Or(linkedRevision, "(unknown)")
	}
	version, revision = "(unknown)", "(unknown)"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version, revision
	}
	if info.Main.Version != "" {
		version = info.Main.Version
	}
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = " (modified)"
		}
	}
	return version, revision + modified
}
