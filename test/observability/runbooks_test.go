package observability

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/rulefmt"

	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
)

const runbooks = root + "/docs/runbooks.md"

// TestRunbooksAnswerEachAlert checks that the link of each alert leads to a section, which has a remedy. TestPages in
// test/e2e runs the commands of the page, and TestQueriesHaveData checks its PromQL.
func TestRunbooksAnswerEachAlert(t *testing.T) {
	data, err := os.ReadFile(runbooks)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	sections := map[string]string{}
	for _, part := range strings.Split(text, "\n## ")[1:] {
		title, body, _ := strings.Cut(part, "\n")
		sections[title] = body
	}
	for _, alert := range alerts(t) {
		if !strings.Contains(sections[alert.Alert], "\n- **Act.**") {
			t.Errorf("runbooks.md has no section %s with a remedy", alert.Alert)
		}
		if want := "https://github.com/rlsidecar/rlsidecar/blob/main/docs/runbooks.md#" + strings.ToLower(alert.Alert); alert.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %s, want %s", alert.Alert, alert.Annotations["runbook_url"], want)
		}
		if alert.Annotations["summary"] == "" || alert.Annotations["description"] == "" {
			t.Errorf("%s has no summary or no description", alert.Alert)
		}
	}
	for _, name := range regexp.MustCompile(`Rlsidecar[A-Za-z]+`).FindAllString(text, -1) {
		if !slices.ContainsFunc(alerts(t), func(r rulefmt.Rule) bool { return r.Alert == name }) {
			t.Errorf("runbooks.md names %s, which is no alert", name)
		}
	}
}

// TestAdjustCommandsOfTheRunbooks runs the commands that change limits, which need the admin token.
func TestAdjustCommandsOfTheRunbooks(t *testing.T) {
	data, err := os.ReadFile(runbooks)
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startSidecar(t, limits, "--admin-token-file", token)
	path := filepath.Dir(sidecartest.Program) + ":" + os.Getenv("PATH")
	commands := regexp.MustCompile(`(?m)^ *\$ (rlsidecar adjust (?:.*\\\n)*.*)$`).FindAllStringSubmatch(string(data), -1)
	for _, command := range commands {
		cmd := exec.Command("sh", "-c", command[1])
		cmd.Env = append(os.Environ(), "PATH="+path, "USER=ann", "RLSIDECAR_ADMIN_LISTEN="+s.Admin, "RLSIDECAR_ADMIN_TOKEN_FILE="+token)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", command[1], err, out)
		}
	}
	if len(commands) != 3 {
		t.Errorf("%d commands found, want 3", len(commands))
	}
	if got := s.post(t, "/json", `{"domain":"edge","descriptors":[{"entries":[{"key":"user_id","value":"eve"}]}]}`); !strings.Contains(got, "OVER_LIMIT") {
		t.Errorf("the answer to eve is %s; want it blocked", got)
	}
}
