// Package configtest compiles configurations for tests.
package configtest

import (
	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// Compile compiles a configuration, which must have no mistakes. t is a test, also one of package rapid.
func Compile(t interface {
	Helper()
	Fatal(args ...any)
}, yaml string) *limiter.Snapshot {
	t.Helper()
	s, problems := config.Compile([]config.File{{Name: "test.yaml", Data: []byte(yaml)}}, config.Options{})
	if problems.Bad() {
		t.Fatal(yaml, problems)
	}
	return s
}
