package main

import (
	"io"
	"strings"
	"testing"
)

func TestRemovedNamesGiveTheirReplacement(t *testing.T) {
	removedSettings["gone-setting"], removedCommands["adjust gone"] = "set limit: 1", "use adjust set"
	defer func() {
		delete(removedSettings, "gone-setting")
		delete(removedCommands, "adjust gone")
	}()
	for want, args := range map[string][]string{
		"--gone-setting has been removed: set limit: 1":              {"serve", "--gone-setting=x"},
		"RLSIDECAR_GONE_SETTING has been removed: set limit: 1":      {"serve", "--config", "x"},
		"the command adjust gone has been removed: use adjust set\n": {"adjust", "gone", "1"},
	} {
		t.Setenv("RLSIDECAR_GONE_SETTING", "1")
		var stderr output
		if code := run(t.Context(), args, nil, io.Discard, &stderr); code != exitUsage || !strings.Contains(stderr.String(), want) {
			t.Errorf("%v: exit code %d, want %d and %q: %s", args, code, exitUsage, want, stderr.String())
		}
	}
}
