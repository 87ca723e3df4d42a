// Package limittest compiles limits for tests.
package limittest

import "github.com/rlsidecar/rlsidecar/pkg/algorithms"

// Compile compiles a limit, which must be valid. t is a test, also one of package rapid.
func Compile(t interface {
	Helper()
	Fatal(args ...any)
}, spec algorithms.Spec) *algorithms.Limit {
	t.Helper()
	limit, err := algorithms.Compile(spec)
	if err != nil {
		t.Fatal(spec, err)
	}
	return &limit
}
