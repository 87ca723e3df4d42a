package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

// TestTutorial follows docs/tutorial.md to the letter, but for an address of its own, and for the
// program, which is built already.
func TestTutorial(t *testing.T) {
	tooltest.Path(t, "redis-server") // may skip
	data, err := os.ReadFile(root + "/docs/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	pid := os.Getpid()
	r := &reader{
		dir:  t.TempDir(),
		addr: fmt.Sprintf("127.%d.%d.%d", 100+pid>>8&0x7f, pid&0xff, stacks.Add(1)),
	}
	t.Setenv("PATH", filepath.Dir(sidecarProgram)+":"+os.Getenv("PATH"))
	t.Setenv("RLSIDECAR_GRPC_LISTEN", r.addr+":8081")
	t.Setenv("RLSIDECAR_HTTP_LISTEN", r.addr+":8080")
	t.Setenv("RLSIDECAR_ADMIN_LISTEN", r.addr+":6070")
	t.Setenv("RLSIDECAR_BACKEND_TIMEOUT", "2s") // of a busy machine; the tutorial's answers are the same
	text := strings.ReplaceAll(string(data), "127.0.0.1", r.addr)

	part := regexp.MustCompile("(?s)`([a-z.]+)`:\n\n```yaml\n(.*?)```|```console\n(.*?)```|(<!-- stop -->)")
	commands := 0
	for _, found := range part.FindAllStringSubmatch(text, -1) {
		switch {
		case found[1] != "":
			if err := os.WriteFile(filepath.Join(r.dir, found[1]), []byte(found[2]), 0o600); err != nil {
				t.Fatal(err)
			}
		case found[3] != "":
			for _, step := range strings.Split("\n"+found[3], "\n$ ")[1:] {
				command, want, _ := strings.Cut(step, "\n")
				r.run(t, command, want)
				commands++
			}
		default:
			if err := r.background[len(r.background)-1].stop(); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			return
		}
	}
	if commands < 20 {
		t.Errorf("only %d commands found", commands)
	}
}

// reader does what a tutorial says.
type reader struct {
	dir, addr  string
	background []*process
}

// run runs a command, or leaves it running if it is a server, and wants it to print want, in which
// … stands for anything.
func (r *reader) run(t *testing.T, command, want string) {
	t.Helper()
	pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(want)), "…", "(?s:.*?)")
	expected := regexp.MustCompile("^(?s:" + pattern + ")$")
	switch {
	case strings.HasPrefix(command, "go install"), strings.HasPrefix(command, "mkdir"):
	case strings.HasPrefix(command, "rlsidecar serve"), strings.HasPrefix(command, "redis-server"):
		p := startIn(t, r.dir, "sh", "-c", "exec "+command)
		r.background = append(r.background, p)
		ready := regexp.MustCompile("^(?s:" + pattern + ")")
		eventually(t, command+" is ready", func() bool {
			if !p.running() {
				t.Fatalf("%s ended: %v", command, p.err)
			}
			return ready.MatchString(strings.TrimSpace(p.output.tail()))
		})
	default:
		c := exec.Command("sh", "-c", command)
		c.Dir = r.dir
		out, _ := c.CombinedOutput()
		if got := strings.TrimSpace(strings.ReplaceAll(string(out), "\r", "")); !expected.MatchString(got) {
			t.Errorf("$ %s\n%s\n--- but the tutorial says:\n%s", command, got, want)
		}
	}
}
