package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/rlsidecar/rlsidecar/"

// edge is a forbidden import: no package at or below the path "from" may import a package at or below the path
// "to". Packages of this module are named by their folders.
type edge struct{ from, to string }

var forbidden = map[edge]string{
	{"pkg", "cmd"}:                              "pkg is a library for other programs: it does not depend on this one",
	{"pkg", "go.uber.org/zap"}:                  "a library's user chooses the logger: pkg returns errors",
	{"pkg", "log"}:                              "a library's user chooses the logger: pkg returns errors",
	{"pkg", "github.com/prometheus"}:            "a library's user chooses the metrics: pkg returns values",
	{"pkg/backend", "pkg/descriptors"}:          "a Key is opaque to a Store",
	{"internal/stores", "pkg/descriptors"}:      "a Key is opaque to a Store",
	{"internal/stores", "internal/limiter"}:     "the limiter uses Stores, not the other way",
	{"internal/stores", "internal/redis"}:       "a wrapper works with every Store",
	{"internal/stores", "pkg/backend/memory"}:   "a wrapper works with every Store",
	{"internal/redis", "pkg/backend/memory"}:    "no Store depends on another: each computes with pkg/algorithms",
	{"internal/redis", "pkg/descriptors"}:       "a Key is opaque to a Store",
	{"internal/redis", "go.uber.org/zap"}:       "pkg/backend/redis exports this Store, and a library returns errors",
	{"internal/redis", "github.com/prometheus"}: "pkg/backend/redis exports this Store, and a library returns values",
	{"internal/config", "internal/server"}:      "reading files needs no server",
	{"internal/config", "internal/grpcapi"}:     "a limit means the same at every listener",
	{"internal/config", "internal/xds"}:         "the meaning of a limit does not depend on its source",
	{"internal/xds", "internal/server"}:         "following a control plane needs no server",
	{"internal/grpcapi", "internal/config"}:     "a listener calls the limiter and reads no files",
	{"internal/grpcapi", "internal/server"}:     "the server starts the listener, not the other way",
	{"internal/h2grpc", "internal/grpcapi"}:     "HTTP/2 does not depend on the meaning of messages",
	{"internal/telemetry", "internal/grpcapi"}:  "listeners report to telemetry, not the other way",
	{"internal/telemetry", "internal/httpapi"}:  "listeners report to telemetry, not the other way",
	{"internal/telemetry", "internal/admin"}:    "listeners report to telemetry, not the other way",
	{"internal/h2grpc", "internal/limiter"}:     "HTTP/2 does not depend on the meaning of messages",
	{"internal/server", "cmd"}:                  "the program starts the server",
	{"internal/listen", "internal/server"}:      "sockets know no settings",
	{"internal/listen", "internal/limiter"}:     "sockets know no limits",
	{"internal/grpcapi", "internal/httpapi"}:    "listeners do not depend on each other",
	{"internal/grpcapi", "internal/admin"}:      "listeners do not depend on each other",
	{"internal/httpapi", "internal/grpcapi"}:    "listeners do not depend on each other",
	{"internal/httpapi", "internal/admin"}:      "listeners do not depend on each other",
	{"internal/admin", "internal/grpcapi"}:      "listeners do not depend on each other",
	{"internal/admin", "internal/httpapi"}:      "listeners do not depend on each other",
}

// importers maps each dependency to the packages that may import it, each with the reason.
var importers = map[string]map[string]string{
	"google.golang.org/grpc": {
		"internal/testkit/xdstest":   "is for tests",
		"examples/xds":               "is another program",
		"internal/accesslog":         "is a service of the gRPC listener",
		"internal/grpcapi":           "is the gRPC listener",
		"pkg/ratelimit/grpclimit":    "has gRPC interceptors",
		"internal/server":            "starts and drains its server",
		"internal/xds":               "calls the control plane",
		"internal/telemetry/tracing": "records its calls",
	},
	"google.golang.org/protobuf": {
		"pkg/ratelimit/grpclimit":  "adds details to statuses",
		"internal/testkit/rlstest": "is for tests",
		"internal/accesslog":       "reads messages of access logs",
		"internal/grpcapi":         "converts messages to requests",
		"internal/xds":             "converts messages to configuration",
	},
	"github.com/envoyproxy": {
		"internal/testkit/xdstest": "is for tests",
		"examples/xds":             "is another program",
		"internal/testkit/rlstest": "is for tests",
		"internal/grpcapi":         "converts messages to requests",
		"internal/xds":             "converts messages to configuration",
	},
	"github.com/redis/go-redis": {
		"internal/redis":             "stores buckets over the network",
		"internal/testkit/redistest": "starts servers for tests",
		"test/simulate":              "replaces the connections of its clients",
	},
	"go.yaml.in/yaml": {
		"internal/config":            "reads limits",
		"internal/offline/scenario":  "reads scenarios",
		"internal/reference/migrate": "reads, and rewrites, the reference server's limits",
	},
	"go.opentelemetry.io":        {"internal/telemetry/tracing": "sends traces"},
	"github.com/alecthomas/kong": {"cmd/rlsidecar": "is the command line"},
}

// libraryImports lists all imports of the library's packages that are not of the standard library. Programs that
// import these packages depend on them, too.
var libraryImports = map[string][]string{
	"pkg/algorithms":     {"internal/scaled"},
	"internal/scaled":    {},
	"pkg/calendar":       {"pkg/algorithms"},
	"pkg/descriptors":    {"pkg/algorithms", "internal/spelling", "github.com/cespare/xxhash/v2"},
	"internal/duration":  {"pkg/algorithms"},
	"internal/spelling":  {},
	"pkg/backend":        {"pkg/algorithms"},
	"pkg/backend/memory": {"pkg/algorithms", "pkg/backend"},
	// The library uses the limiter, so that Go programs get the same decisions as clients of the HTTP API.
	"pkg/ratelimit":           {"pkg/algorithms", "pkg/backend", "internal/delay", "pkg/descriptors", "internal/limiter", "internal/reservation", "internal/stores", "internal/weights"},
	"pkg/ratelimit/httplimit": {"pkg/ratelimit", "internal/clientip", "internal/delay"},
	"internal/delay":          {"pkg/algorithms"},
	"internal/clientip":       {},
	"internal/reservation":    {"pkg/algorithms", "internal/limiter", "internal/scaled", "pkg/descriptors"},
	"internal/adjust":         {"pkg/algorithms", "pkg/descriptors", "internal/duration"},
	"internal/limiter":        {"pkg/algorithms", "pkg/backend", "internal/scaled", "pkg/descriptors", "internal/adjust", "internal/duration", "internal/spelling", "internal/canonical", "internal/weights", "github.com/cespare/xxhash/v2"},
	"internal/canonical":      {},
	"internal/weights":        {},
}

func TestLibraryIsLight(t *testing.T) {
	for name, allowed := range libraryImports {
		for _, imported := range find(t, name).Imports {
			if !standard(imported) && !slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s; except for the standard library it may only import %v", name, imported, allowed)
			}
		}
	}
}

// TestPureCore checks that pkg/algorithms imports no package that gives access to a clock, randomness, input or output.
func TestPureCore(t *testing.T) {
	allowed := []string{"internal/scaled", "cmp", "errors", "fmt", "maps", "math", "math/big", "math/bits", "slices", "sort", "strconv", "strings"}
	for _, imported := range find(t, "pkg/algorithms").Imports {
		if !slices.Contains(allowed, imported) {
			t.Errorf("pkg/algorithms imports %s; it computes from its arguments only, with %v", imported, allowed)
		}
	}
}

func TestForbiddenImports(t *testing.T) {
	for e, why := range forbidden {
		exists(t, e.from)
		if isOwn(e.to) {
			exists(t, e.to)
		}
		for _, p := range packages(t) {
			for _, imported := range p.Imports {
				if within(p.name(), e.from) && within(imported, e.to) {
					t.Errorf("%s imports %s: %s", p.name(), imported, why)
				}
			}
		}
	}
}

func TestDependenciesStayWhereTheyBelong(t *testing.T) {
	for dependency, users := range importers {
		unused := make(map[string]bool)
		for user := range users {
			exists(t, user)
			unused[user] = true
		}
		for _, p := range packages(t) {
			for _, imported := range p.Imports {
				if !within(imported, dependency) {
					continue
				}
				if _, ok := users[p.name()]; !ok {
					t.Errorf("%s imports %s, which only these packages may import: %v", p.name(), imported, users)
				}
				delete(unused, p.name())
			}
		}
		for user := range unused {
			t.Errorf("%s no longer imports %s: remove it from the list", user, dependency)
		}
	}
}

// goPackage is the report of `go list` about a package. Imports are those of the program, without tests; packages of
// this module are named by their folders.
type goPackage struct {
	Dir, ImportPath                    string
	Imports                            []string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

func (p goPackage) name() string { return strings.TrimPrefix(p.ImportPath, module) }

func packages(t *testing.T) []goPackage {
	t.Helper()
	list, err := listOnce()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

var listOnce = sync.OnceValues(func() ([]goPackage, error) {
	// With -e, go list ignores packages that do not compile. The compiler reports them.
	cmd := exec.Command("go", "list", "-e", "-json=Dir,ImportPath,Imports,GoFiles,TestGoFiles,XTestGoFiles", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, errors.New("go list: " + string(failed.Stderr))
	} else if err != nil {
		return nil, err
	}
	var list []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := decoder.Decode(&p); err == io.EOF {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		for i := range p.Imports {
			p.Imports[i] = strings.TrimPrefix(p.Imports[i], module)
		}
		list = append(list, p)
	}
})

func find(t *testing.T, name string) goPackage {
	t.Helper()
	i := slices.IndexFunc(packages(t), func(p goPackage) bool { return p.name() == name })
	if i < 0 {
		t.Fatalf("there is no package %s any more: correct the rule", name)
	}
	return packages(t)[i]
}

func exists(t *testing.T, folder string) {
	t.Helper()
	if !slices.ContainsFunc(packages(t), func(p goPackage) bool { return within(p.name(), folder) }) {
		t.Errorf("there is no package in %s any more: correct the rule", folder)
	}
}

func isOwn(path string) bool {
	return within(path, "pkg") || within(path, "internal") || within(path, "cmd")
}

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !isOwn(path) && !strings.Contains(first, ".")
}

func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}
