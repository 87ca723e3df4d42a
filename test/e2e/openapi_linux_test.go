package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// generated returns options, and those with which Schemathesis generates requests. The environment variable
// EXAMPLES enables all phases, and sets the number of requests for each operation. Without it there are only a
// few random requests, because all phases take half a minute of processor time.
func generated(options ...string) []string {
	options = append(options, "--seed", "1", "--generation-database", "none", "--suppress-health-check", "too_slow", "--no-color")
	if n := os.Getenv("EXAMPLES"); n != "" {
		return append(options, "--max-examples", n)
	}
	return append(options, "--phases", "fuzzing", "--max-examples", "10")
}

// TestTheOperatorsAPIIsAsDescribed is TestTheAPIIsAsDescribed for the OpenAPI document of the admin listener.
func TestTheOperatorsAPIIsAsDescribed(t *testing.T) {
	t.Parallel()
	program := tooltest.Path(t, "schemathesis")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := loopback()
	sidecar := start(t, sidecarProgram, "serve", "--config", root+"/examples/http-api/limits.yaml", "--grpc-listen", addr+":8081",
		"--http-listen", "", "--admin-listen", addr+":6070", "--admin-token-file", token, "--drain-delay", "0s")
	awaitPort(t, sidecar, "tcp", addr+":6070")
	cmd := exec.Command(program, generated("run", "http://"+addr+":6070/api/openapi.json", "--header", "Authorization: Bearer s3cret",
		// A valid request may be refused, for example because of an unknown limit or an adjustment without numbers.
		"--exclude-checks", "positive_data_acceptance")...)
	cmd.Dir = t.TempDir() // Schemathesis writes reports into its working folder
	out, err := cmd.CombinedOutput()
	if output := string(out); err != nil || !strings.Contains(output, "Tested: 12") {
		t.Errorf("%v\n%s", err, output)
	}
}

// TestTheAPIIsAsDescribed runs Schemathesis. It sends valid and slightly wrong requests, made from the
// OpenAPI document that a sidecar serves. No answer may be a 5xx, or one that the document does not describe.
func TestTheAPIIsAsDescribed(t *testing.T) {
	t.Parallel()
	program := tooltest.Path(t, "schemathesis")
	addr := loopback()
	sidecar := start(t, sidecarProgram, "serve", "--config", root+"/examples/http-api/limits.yaml", "--api-inline-config",
		"--grpc-listen", addr+":8081", "--http-listen", addr+":8080", "--admin-listen", "", "--api-token", "s3cret", "--drain-delay", "0s")
	awaitPort(t, sidecar, "tcp", addr+":8080")
	config, err := filepath.Abs("testdata/schemathesis.toml")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, generated("--config-file", config, "run", "http://"+addr+":8080/openapi.json",
		"--header", "Authorization: Bearer s3cret",
		// A valid request may be refused: its cost may be more than the limit can ever allow, or its reservation may be
		// unknown.
		"--exclude-checks", "positive_data_acceptance")...)
	cmd.Dir = t.TempDir() // Schemathesis writes reports into its working folder
	out, err := cmd.CombinedOutput()
	if output := string(out); err != nil || !strings.Contains(output, "Tested: 11") {
		t.Errorf("%v\n%s", err, output)
	}
}
