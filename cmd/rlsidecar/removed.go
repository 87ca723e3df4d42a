package main

import (
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// removedSettings has the settings that earlier versions had, by the names of their flags, with what to do instead.
// The text follows "has been removed: ". A row covers the flag of every command and the variable: reuse-port covers
// --reuse-port and RLSIDECAR_REUSE_PORT.
var removedSettings = map[string]string{
	"grpc-engine":                 "remove the setting; one implementation serves every call",
	"json":                        "use --format json",
	"reload":                      "a configuration with a mistake is refused as a whole, and the one before it stays in use; check files with rlsidecar check before you deploy them",
	"reuse-port":                  "run two sidecars on one Redis, and restart one after the other (docs/operations.md, Restart)",
	"tracing-protocol":            "set the variable OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf or grpc",
	"tracing-sampling-rate":       "set the variables OTEL_TRACES_SAMPLER=parentbased_traceidratio and OTEL_TRACES_SAMPLER_ARG",
	"tracing-service-name":        "set the variable OTEL_SERVICE_NAME",
	"tracing-service-namespace":   "set service.namespace in the variable OTEL_RESOURCE_ATTRIBUTES",
	"tracing-service-instance-id": "set service.instance.id in the variable OTEL_RESOURCE_ATTRIBUTES",
	"audit-key-file":              "the list of the last changes has no hashes; the permissions of the Redis user protect it",
	"before":                      "adjust audit -n 1000 lists all changes that are kept",
	"state-dir":                   "with Redis, adjustments survive a restart of the sidecar; without Redis, write permanent blocks into the configuration, as requests_per_unit: 0. To explain the adjustments in force, use --adjusted",
	"verify":                      "the list of the last changes has no hashes; use adjust audit without it",
}

// removedCommands has the commands that earlier versions had, with what to do instead. A name may have two words, such
// as "adjust verify".
var removedCommands = map[string]string{
	"adjust show": "use rlsidecar adjust list, or adjust audit for the time of the change",
	"env":         "use rlsidecar check --reference; rlsidecar serve --help lists rlsidecar's own settings",
	"man":         "the packages of a release contain the manual page",
	"migrate":     "use rlsidecar check --reference FILE",
	"version":     "use rlsidecar --version",
}

// removedAdvice returns the message for a command line with a removed flag or command, or with the flag of a setting
// that has only a variable. It returns "" if args has none.
func removedAdvice(model *kong.Node, args []string) string {
	for n := min(2, len(args)); n > 0; n-- {
		name := strings.Join(args[:n], " ")
		if instead, ok := removedCommands[name]; ok {
			return "the command " + name + " has been removed: " + instead
		}
	}
	hidden := onlyVariables(model)
	for _, arg := range args {
		if arg == "--" {
			break
		}
		name, isFlag := strings.CutPrefix(arg, "--")
		name, _, _ = strings.Cut(name, "=")
		if instead, ok := removedSettings[name]; ok && isFlag {
			return "--" + name + " has been removed: " + instead
		}
		if isFlag && hidden[name] {
			return "--" + name + " is not a flag: set the variable " + variableName(name)
		}
	}
	return ""
}

// removedVariables returns a message for each removed variable that is set.
func removedVariables() (messages []string) {
	for flag, instead := range removedSettings {
		if name := variableName(flag); os.Getenv(name) != "" {
			messages = append(messages, name+" has been removed: "+instead)
		}
	}
	slices.Sort(messages)
	return messages
}
