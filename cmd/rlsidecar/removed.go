package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
)

// removedSettings has the settings that earlier versions had, by the names of their flags, with what to do instead.
// The text follows "has been removed: ". A row covers the flag of every command and the variable: reuse-port covers
// --reuse-port and RLSIDECAR_REUSE_PORT.
var removedSettings = map[string]string{
	"reuse-port": "run two sidecars on one Redis, and restart one after the other (docs/operations.md, Restart)",
}

// removedCommands has the commands that earlier versions had, with what to do instead. A name may have two words, such
// as "adjust verify".
var removedCommands = map[string]string{}

var unknownFlag = regexp.MustCompile(`^unknown flag --([a-z0-9-]+)`)

// removedAdvice returns the message for a command line with a removed flag or command. err is the mistake that the
// parser found. removedAdvice returns "" if args has neither.
func removedAdvice(args []string, err error) string {
	for n := min(2, len(args)); n > 0; n-- {
		name := strings.Join(args[:n], " ")
		if instead, ok := removedCommands[name]; ok {
			return "the command " + name + " has been removed: " + instead
		}
	}
	if found := unknownFlag.FindStringSubmatch(err.Error()); found != nil {
		if instead, ok := removedSettings[found[1]]; ok {
			return "--" + found[1] + " has been removed: " + instead
		}
	}
	return ""
}

// removedVariables returns a message for each removed variable that is set.
func removedVariables() (messages []string) {
	for flag, instead := range removedSettings {
		if name := ownPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_")); os.Getenv(name) != "" {
			messages = append(messages, name+" has been removed: "+instead)
		}
	}
	slices.Sort(messages)
	return messages
}
