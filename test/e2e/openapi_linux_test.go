package e2e

import (
	"fmt"
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
	return append(options, "--phases", "fuzzing", "--max-examples", "4")
}

// TestTheAPIsAreAsDescribed runs Schemathesis on both OpenAPI documents that a sidecar serves. It sends valid and
// slightly wrong requests. No answer may be a 5xx, or one that the document does not describe.
func TestTheAPIsAreAsDescribed(t *testing.T) {
	t.Parallel()
	program, addr := tooltest.Path(t, "schemathesis"), loopback()
	config, err := filepath.Abs("testdata/schemathesis.toml")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, addr, "RLSIDECAR_API_TOKEN=s3cret", "RLSIDECAR_ADMIN_TOKEN=s3cret",
		"--config", root+"/examples/http-api/limits.yaml", "--api-inline-config")
	for name, c := range map[string]struct {
		document   string
		operations int
		options    []string
	}{
		"applications": {":8080/openapi.json", 12, []string{"--config-file", config}},
		"operators":    {":6070/api/openapi.json", 12, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A valid request may be refused, for example because its limit or its reservation is unknown, or its cost is more
			// than the limit can ever allow.
			cmd := exec.Command(program, generated(append(c.options, "run", "http://"+addr+c.document, "--header", "Authorization: Bearer s3cret",
				"--exclude-checks", "positive_data_acceptance")...)...)
			cmd.Dir = t.TempDir() // Schemathesis writes reports into its working folder
			out, err := cmd.CombinedOutput()
			if output := string(out); err != nil || !strings.Contains(output, fmt.Sprintf("Tested: %d", c.operations)) {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
}
