// Command rlsidecar is the rate limiter that proxies ask before every request.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
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
	Serve    serveCmd    `cmd:"" help:"Run the sidecar."`
	Check    checkCmd    `cmd:"" help:"Validate configurations; print file:line:column of every mistake."`
	Explain  explainCmd  `cmd:"" help:"Show which limit and bucket each descriptor meets, and why."`
	Simulate simulateCmd `cmd:"" help:"Replay a trace or an access log in virtual time: what would have been denied."`
	Test     testCmd     `cmd:"" help:"Run scenarios: time, ask, expected answer."`
	Doctor   doctorCmd   `cmd:"" help:"Examine the Redis that limits would be kept in."`
	Version  versionCmd  `cmd:"" help:"Print version, commit and Go version."`
}

// app is what a command works with.
type app struct {
	ctx            context.Context
	stdin          io.Reader
	stdout, stderr io.Writer
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
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program but for the process around it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	done := -1 // set when --help has been printed
	parser, err := kong.New(&commands{},
		kong.Name("rlsidecar"),
		kong.Description("A rate limiter that proxies ask before every request."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { done = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
	if err != nil {
		fmt.Fprintf(stderr, "rlsidecar: %v\n", err)
		return exitFailed
	}
	command, err := parser.Parse(args)
	if done >= 0 {
		return done
	}
	if err != nil {
		fmt.Fprintf(stderr, "rlsidecar: %v\nTry: rlsidecar --help\n", err)
		return exitUsage
	}
	err = command.Run(&app{ctx, stdin, stdout, stderr})
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
