package e2e

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
	"github.com/rlsidecar/rlsidecar/test/docgen"
)

// TestPages runs the commands of every page as its reader would: the blocks of a page in order, in a separate empty
// folder, with the built program on PATH. The rules for pages:
//
//   - A block of type console has commands, which start with "$ ", each followed by its output. "…" stands for any
//     text.
//   - A block after a paragraph that ends with "`NAME`:" is the content of the file NAME.
//   - A command that starts a server runs until <!-- stop -->, which stops the server started last, or until the end of
//     the page.
//   - <!-- not run: REASON --> before a block of commands skips it. <!-- run by TestName --> names another test that
//     runs it; <!-- all run by TestName --> does so for the whole page.
//   - A page that uses examples/ runs in a folder with a copy of it, as in a clone.
//
// Each page has a loopback address of its own in place of 127.0.0.1, so that pages can run at the same time.
func TestPages(t *testing.T) {
	found := 0
	docgen.EachPage(t, root, func(path, text string) {
		if strings.HasPrefix(path, "docs/reference/") {
			return // generated
		}
		steps, problems := parsePage(text)
		for _, problem := range problems {
			t.Errorf("%s:%s", path, problem)
		}
		if !slices.ContainsFunc(steps, func(s pageStep) bool { return s.command != "" }) {
			return
		}
		found++
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			runPage(t, steps)
		})
	})
	if found < 5 {
		t.Errorf("only %d pages with commands, want at least 5", found)
	}
}

type pageStep struct {
	line          int
	file, content string
	command, want string
	stop          bool
}

var (
	fileName   = regexp.MustCompile("`([\\w./-]+\\.[a-z]+)`:$")
	notRun     = regexp.MustCompile(`^<!-- (not run: \S.*|run by Test\w+) -->$`)
	shellTypes = []string{"sh", "bash", "shell", "zsh"}
	allRunBy   = regexp.MustCompile(`(?m)^<!-- all run by Test\w+ -->$`)
	looksRun   = regexp.MustCompile(`^ {4,}(\$ |(?:rlsidecar|curl|make|go|docker|helm|kubectl|python3) )`)
)

// parsePage returns the steps of a page, and its problems with their line numbers. A problem is a command that is neither
// run nor marked. TestEvidenceExists in test/docgen checks the names of tests.
func parsePage(text string) (steps []pageStep, problems []string) {
	problem := func(line int, text string) { problems = append(problems, fmt.Sprintf("%d: %s", line, text)) }
	if allRunBy.MatchString(text) {
		return nil, nil
	}
	lines := strings.Split(text, "\n")
	before := "" // the last line of text before a block
	for i := 0; i < len(lines); i++ {
		trimmed := strings.TrimLeft(lines[i], " ")
		if !strings.HasPrefix(trimmed, "```") {
			switch {
			case trimmed == "<!-- stop -->":
				steps = append(steps, pageStep{line: i + 1, stop: true})
			case looksRun.MatchString(lines[i]) && before == "":
				problem(i+1, "a command outside of a console block")
			}
			if trimmed != "" {
				before = trimmed
			}
			continue
		}
		indent, kind, start := len(lines[i])-len(trimmed), strings.TrimPrefix(trimmed, "```"), i+1
		var block []string
		for i++; i < len(lines) && strings.TrimLeft(lines[i], " ") != "```"; i++ {
			block = append(block, lines[i][min(indent, len(lines[i])):])
		}
		isCommand := kind == "console" || slices.Contains(shellTypes, kind) ||
			slices.ContainsFunc(block, func(l string) bool { return strings.HasPrefix(l, "$ ") })
		name := fileName.FindStringSubmatch(before)
		switch {
		case notRun.MatchString(before):
		case name != nil:
			steps = append(steps, pageStep{line: start, file: name[1], content: strings.Join(block, "\n") + "\n"})
		case kind == "console":
			found, text := commands(block, start)
			steps = append(steps, found...)
			if text != "" {
				problem(start, text)
			}
		case isCommand:
			problem(start, "write commands into a console block, each after \"$ \", or mark the block <!-- not run: why -->")
		}
		before = ""
	}
	return steps, problems
}

// A command continues after a backslash at the end of its line.
func commands(block []string, line int) (steps []pageStep, problem string) {
	for i := 0; i < len(block); i++ {
		command, ok := strings.CutPrefix(block[i], "$ ")
		if !ok {
			if len(steps) == 0 {
				return nil, `a console block starts with "$ "`
			}
			steps[len(steps)-1].want += block[i] + "\n"
			continue
		}
		at := line + i + 1
		for strings.HasSuffix(command, `\`) && i+1 < len(block) {
			i++
			command += "\n" + block[i]
		}
		steps = append(steps, pageStep{line: at, command: command})
	}
	return steps, ""
}

type reader struct {
	dir, addr string
	env       []string
	servers   []*process
}

// shortWaits matches timeouts on pages that are too short for a busy machine. The tests replace them.
var shortWaits = regexp.MustCompile(`((?:proxy_\w+|dial|response_header)_timeout +|timeout (?:connect|server) +)\d+ms|(timeout: )0\.\d+s`)

func runPage(t *testing.T, steps []pageStep) {
	t.Helper()
	r := &reader{dir: t.TempDir(), addr: loopback()}
	var path []string
	for _, tool := range []string{"redis-server", "nginx", "envoy", "caddy", "haproxy", "traefik", "curl", "python3"} {
		used := regexp.MustCompile(`(^|[|;&(/ ])` + tool + `( |$)`)
		if slices.ContainsFunc(steps, func(s pageStep) bool { return used.MatchString(s.command) }) {
			path = append(path, filepath.Dir(tooltest.Path(t, tool))) // skips the test if a tool is missing
		}
	}
	path = append([]string{filepath.Dir(sidecartest.Program)}, append(path, os.Getenv("PATH"))...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "RLSIDECAR_") && !strings.HasPrefix(e, "PATH=") {
			r.env = append(r.env, e)
		}
	}
	r.env = append(r.env, "PATH="+strings.Join(path, ":"), "TZ=UTC",
		"RLSIDECAR_GRPC_LISTEN="+r.addr+":8081",
		"RLSIDECAR_HTTP_LISTEN="+r.addr+":8080",
		"RLSIDECAR_ADMIN_LISTEN="+r.addr+":6070",
		"RLSIDECAR_BACKEND_TIMEOUT=2s") // longer timeouts do not change the answers
	if slices.ContainsFunc(steps, func(s pageStep) bool { return strings.Contains(s.command, "examples/") }) {
		r.clone(t)
	}
	for _, step := range steps {
		switch {
		case step.file != "":
			r.write(t, step.file, step.content)
		case step.stop && len(r.servers) == 0:
			t.Fatalf("line %d: no server to stop", step.line)
		case step.stop:
			if err := r.servers[len(r.servers)-1].stop(); err != nil {
				t.Error(err)
			}
			r.servers = r.servers[:len(r.servers)-1]
		default:
			r.run(t, step)
		}
		if t.Failed() {
			return
		}
	}
}

func (r *reader) clone(t *testing.T) {
	t.Helper()
	files := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "examples")
	out, err := files.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	for name := range strings.SplitSeq(strings.Trim(string(out), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			r.write(t, name, string(text))
		}
	}
}

// write also lengthens short timeouts. If the test runs as root, it makes NGINX run as root.
func (r *reader) write(t *testing.T, name, text string) {
	t.Helper()
	text = strings.ReplaceAll(text, "127.0.0.1", r.addr)
	text = shortWaits.ReplaceAllString(text, "${1}${2}10s")
	if filepath.Ext(name) == ".conf" {
		text = strings.Replace(text, "events {", userDirective()+" events {", 1)
	}
	path := filepath.Join(r.dir, name)
	writeFile(t, path, text)
}

var servers = regexp.MustCompile(`^(cd \S+ && )?(\S*/)?(rlsidecar serve|redis-server|nginx|envoy|caddy run|haproxy|traefik|python3 -m http\.server)\b`)

// run runs a command and compares its output with the page, where "…" stands for any text. If the command starts a
// server, run does not wait for its end.
func (r *reader) run(t *testing.T, step pageStep) {
	t.Helper()
	command := strings.ReplaceAll(step.command, "127.0.0.1", r.addr)
	command = strings.ReplaceAll(command, "go run ./cmd/rlsidecar", "rlsidecar")
	command = oneCurl(strings.ReplaceAll(command, ".tools/bin/", ""))
	if strings.HasPrefix(command, "envoy ") { // with hot restart, the Envoys of parallel pages would collide
		command += " --disable-hot-restart --concurrency 1"
	}
	want := strings.TrimSpace(strings.ReplaceAll(step.want, "127.0.0.1", r.addr))
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), "\n…", "…") // a line with only "…" stands for any number of lines
	pattern = strings.ReplaceAll(pattern, "…", "(?s:.*?)")
	if servers.MatchString(command) && !strings.HasSuffix(command, "--help") {
		r.serve(t, step, command, regexp.MustCompile("^(?s:"+pattern+")"))
		return
	}
	c := exec.Command("sh", "-c", command)
	c.Dir, c.Env = r.dir, r.env
	out, _ := c.CombinedOutput()
	got := strings.TrimSpace(strings.ReplaceAll(string(out), "\r", ""))
	if !regexp.MustCompile("^(?s:" + pattern + ")$").MatchString(got) {
		t.Errorf("line %d: $ %s\n%s\n--- but the page says:\n%s", step.line, command, got, want)
	}
}

var (
	loop  = regexp.MustCompile(`^for i in (?:\$\(seq (\d+)\)|([\d ]+)); do (?s:(curl [^$]*)); done; echo$`)
	place = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+:\d+\S*`)
)

// oneCurl lets one curl send the equal requests of a loop. On a busy machine the start of a program takes a second, in
// which the buckets of a page refill.
func oneCurl(command string) string {
	m := loop.FindStringSubmatch(command)
	if m == nil {
		return command
	}
	n := cmp.Or(m[1], strconv.Itoa(len(strings.Fields(m[2]))))
	return place.ReplaceAllString(m[3], "'${0}#[1-"+n+"]' -H 'Connection: close'") + "; echo"
}

func (r *reader) serve(t *testing.T, step pageStep, command string, printed *regexp.Regexp) {
	t.Helper()
	before := r.listening(t)
	folder, program, moved := strings.Cut(command, " && ")
	if !moved {
		folder, program = ":", command
	}
	cmd := exec.Command("sh", "-c", folder+" && exec "+program)
	cmd.Dir, cmd.Env = r.dir, r.env
	p := startCommand(t, cmd)
	r.servers = append(r.servers, p)
	eventually(t, command+" is ready", func() bool {
		if !p.running() {
			t.Fatalf("line %d: %s ended: %v\n%s", step.line, command, p.err, p.output.tail())
		}
		return r.listening(t) > before && printed.MatchString(strings.TrimSpace(p.output.String()))
	})
}

func (r *reader) listening(t *testing.T) (n int) {
	t.Helper()
	text := read(t, "/proc/net/tcp")
	var a, b, c, d byte
	if _, err := fmt.Sscanf(r.addr, "%d.%d.%d.%d", &a, &b, &c, &d); err != nil {
		t.Fatal(err)
	}
	const listen = "0A"
	local := fmt.Sprintf("%02X%02X%02X%02X:", d, c, b, a)
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasPrefix(f[1], local) && f[3] == listen {
			n++
		}
	}
	return n
}
