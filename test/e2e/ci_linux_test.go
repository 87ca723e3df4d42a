package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
)

type workflow struct {
	Jobs map[string]struct {
		Steps []struct{ Name, Uses, Run string }
	}
}

// TestWorkflowOfTheExample runs the steps of examples/ci as they are written, except the installation. They
// run as on a runner of GitHub, in a clone in which limits.yaml differs from that of the branch main. Only the case "no
// change" leaves the file as it is.
func TestWorkflowOfTheExample(t *testing.T) {
	t.Parallel()
	text := read(t, root+"/examples/ci/github-actions.yaml")
	var w workflow
	if err := yaml.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	steps := map[string]string{}
	for _, job := range w.Jobs {
		for _, step := range job.Steps {
			if pinned := regexp.MustCompile(`^[\w.-]+/[\w.-]+@[0-9a-f]{40}$`); step.Uses != "" && !pinned.MatchString(step.Uses) {
				t.Errorf("%s is not pinned to a commit", step.Uses)
			}
			if step.Run != "" {
				steps[step.Name] = step.Run
			}
		}
	}
	if len(steps) != 4 || !strings.Contains(steps["Install"], "go install github.com/rlsidecar/rlsidecar/cmd/rlsidecar@") {
		t.Fatalf("got the steps %q; want four, of which one installs rlsidecar with go install", steps)
	}
	for _, test := range []struct {
		name, from, to string
		fails          string // the step that must fail; "" if none
		want           string
	}{
		{"no change", "", "", "", "no difference"},
		{"a larger rate", "rate: 5,", "rate: 6,", "Test", ""},
		{"a comment", "domain: shop", "domain: shop\n# better documented", "", "no difference"},
		{"another name of a limit", "limit: search", "limit: serach", "Check", `no limit named "serach"`},
		{"a new limit", "descriptors:\n", "descriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 9}}\n", "", "limit shop/user added"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRunner(t)
			limits := filepath.Join(r.folder, "limits.yaml")
			writeFile(t, limits, changed(t, "limits.yaml", read(t, limits), change{test.from, test.to}))
			for _, step := range []string{"Check", "Test", "Describe the change"} {
				out, err := r.bash(steps[step])
				if failed := step == test.fails; failed != (err != nil) {
					t.Fatalf("%s: got error %v, want that the step fails: %t\n%s", step, err, step == test.fails, out)
				}
				if step == test.fails || test.fails == "" && step == "Describe the change" {
					if !strings.Contains(out, test.want) {
						t.Errorf("%s prints\n%s\nwithout %q", step, out, test.want)
					}
				}
				if err != nil {
					return
				}
			}
			summary, err := os.ReadFile(filepath.Join(r.temp, "summary.md"))
			if err != nil || !strings.Contains(string(summary), test.want) || !strings.Contains(string(summary), "565 requests replayed with both") {
				t.Errorf("%v; want a summary with %q and the number of replayed requests, got\n%s", err, test.want, summary)
			}
		})
	}
}

type runner struct {
	folder, temp string
}

func newRunner(t *testing.T) *runner {
	t.Helper()
	origin, r := t.TempDir(), &runner{folder: filepath.Join(t.TempDir(), "clone"), temp: t.TempDir()}
	for _, name := range []string{"limits.yaml", "limits.scenarios.yaml", "access.log"} {
		writeFile(t, filepath.Join(origin, name), read(t, root+"/examples/ci/"+name))
	}
	for _, args := range [][]string{
		{"-C", origin, "init", "-q", "-b", "main"},
		{"-C", origin, "add", "."},
		{"-C", origin, "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "-q", "-m", "limits"},
		{"clone", "-q", origin, r.folder},
	} {
		if out, err := exec.CommandContext(t.Context(), "git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return r
}

// bash runs a step as GitHub's runner does with shell: bash.
func (r *runner) bash(script string) (string, error) {
	c := exec.Command("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script)
	c.Dir = r.folder
	c.Env = append(os.Environ(), "PATH="+filepath.Dir(sidecartest.Program)+":"+os.Getenv("PATH"),
		"GITHUB_BASE_REF=main", "RUNNER_TEMP="+r.temp, "GITHUB_STEP_SUMMARY="+filepath.Join(r.temp, "summary.md"))
	out, err := c.CombinedOutput()
	return string(out), err
}
