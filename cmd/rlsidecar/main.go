// Command rlsidecar is the rate limiter that proxies ask before every request.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/rlsidecar/rlsidecar/internal/reference/refenv"
)

// Exit codes.
const (
	exitDone   = 0
	exitNo     = 1 // the answer is no: bad config, failed scenario
	exitUsage  = 2 // wrong usage
	exitFailed = 3 // could not be done: I/O, network
)

// commands is the command line; each command is in the file of its name.
type commands struct {
	PrintVersion versionFlag `name:"version" help:"Print version, commit and Go version."`

	Serve       serveCmd       `cmd:"" help:"Run the sidecar."`
	Check       checkCmd       `cmd:"" help:"Validate configurations; print file:line:column of every mistake."`
	Explain     explainCmd     `cmd:"" help:"Show which limit and bucket each descriptor meets, and why."`
	Simulate    simulateCmd    `cmd:"" help:"Replay a trace or an access log in virtual time: what would have been denied."`
	Diff        diffCmd        `cmd:"" help:"Describe what a change of the configuration does, and to how many requests of a log."`
	Test        testCmd        `cmd:"" help:"Run scenarios: time, ask, expected answer."`
	Get         getCmd         `cmd:"" help:"Show what is left in a bucket of a running sidecar."`
	Reset       resetCmd       `cmd:"" help:"Make a bucket of a running sidecar as one never used."`
	Adjust      adjustCmd      `cmd:"" help:"Change a limit of running sidecars for one key or all, until a moment; block a key."`
	Top         topCmd         `cmd:"" help:"List the keys that a running sidecar denied most, and why."`
	Doctor      doctorCmd      `cmd:"" help:"Examine the Redis that limits would be kept in."`
	Env         envCmd         `cmd:"" help:"List the environment variables, what they are set to and what they do."`
	Migrate     migrateCmd     `cmd:"" help:"Say what a configuration of envoyproxy/ratelimit does differently here."`
	Healthcheck healthcheckCmd `cmd:"" help:"Ask the server on this machine whether it is ready."`
	Version     versionCmd     `cmd:"" help:"Print version, commit and Go version."`
	Completion  completionCmd  `cmd:"" help:"Print a script for the shell's completion."`
	Man         manCmd         `cmd:"" help:"Print the manual page."`
}

// app is what a command works with.
type app struct {
	ctx            context.Context
	stdin          io.Reader
	stdout, stderr io.Writer
	reference      reference
}

// exitError ends the program with code; its text, if any, goes to stderr.
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
	defer stop()
	os.Exit(runAs(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// runAs is run by the name that the program has been started under: as /bin/ratelimit, which is given
// no arguments, it stands in for the reference server, and its healthcheck finds it there.
func runAs(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) int {
	args := argv[1:]
	asReference := filepath.Base(argv[0]) == "ratelimit"
	switch {
	case asReference && len(args) == 0:
		args = []string{"serve"}
	case asReference && args[0] != "healthcheck":
		asReference = false
	}
	return start(ctx, asReference, args, stdin, stdout, stderr)
}

// run is the whole program but for the process around it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return start(ctx, false, args, stdin, stdout, stderr)
}

func start(ctx context.Context, asReference bool, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	reference := readEnvironment(asReference)
	done := -1 // set when --help has been printed
	parser, err := kong.New(&commands{},
		kong.Name("rlsidecar"),
		kong.Description("A rate limiter that proxies ask before every request."),
		kong.Writers(stdout, stderr),
		kong.Resolvers(kong.ResolverFunc(reference.resolve)),
		kong.Exit(func(code int) { done = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	if err != nil {
		fmt.Fprintf(stderr, "rlsidecar: %v\n", err)
		return exitFailed
	}
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	command, err := parser.Parse(args)
	if done >= 0 {
		return done
	}
	if err != nil {
		fmt.Fprintf(stderr, "rlsidecar: %s%s\nTry: rlsidecar --help\n", refenv.MaskedText(err.Error()), usageAdvice(args, err))
		return exitUsage
	}
	err = command.Run(&app{ctx, stdin, stdout, stderr, reference})
	var exit exitError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &exit):
		if exit.err != nil {
			fmt.Fprintf(stderr, "rlsidecar: %v\n", exit.err)
		}
		return exit.code
	default:
		fmt.Fprintf(stderr, "rlsidecar: %v\n", err)
		return exitFailed
	}
}

// usageAdvice is what was probably meant by a command line that cannot be read.
func usageAdvice(args []string, err error) string {
	word, isArgument := strings.CutPrefix(err.Error(), "unexpected argument ")
	if !isArgument || len(args) == 0 {
		return ""
	}
	switch args[0] {
	case "serve", "explain", "simulate":
		if _, err := os.Stat(word); err == nil || strings.HasSuffix(word, ".yaml") || strings.HasSuffix(word, ".yml") {
			return "; a configuration is given by --config: rlsidecar " + args[0] + " --config " + word
		}
	}
	return ""
}
