package image

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

const (
	mostBytes = 36_000_000
	limits    = `domain: edge
descriptors:
  - {key: path, value: /login, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
`
)

func TestDockerfileIsWellWritten(t *testing.T) {
	if out, err := exec.Command(tooltest.Path(t, "hadolint"), root+"/Dockerfile").CombinedOutput(); err != nil {
		t.Errorf("hadolint: %v\n%s", err, out)
	}
}

func TestImageHoldsOneProgram(t *testing.T) {
	e := image(t)
	folder, found := e.files(t, tag)
	want := []string{"/bin/ratelimit", "/bin/rlsidecar", "/etc/group", "/etc/passwd", "/etc/ssl/certs/ca-certificates.crt",
		"/usr/share/licenses/rlsidecar/LICENSE", "/usr/share/licenses/rlsidecar/THIRD_PARTY_LICENSES.txt"}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
		t.Errorf("files: %v, want %v", got, want)
	}
	for path, mode := range found {
		if mode.IsRegular() && (mode&0o111 != 0) != (path == "/bin/rlsidecar") || mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("%s has mode %v; the only program is /bin/rlsidecar", path, mode)
		}
	}
	program, err := elf.Open(filepath.Join(folder, "bin/rlsidecar"))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if libraries, err := program.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Errorf("the program is not static: %v, %v", libraries, err)
	}
}

func TestTheImageIsLabelled(t *testing.T) {
	e := image(t)
	var inspected []struct {
		Size   int64
		Config struct {
			User            string
			Entrypoint, Cmd []string
			ExposedPorts    map[string]struct{}
			Labels          map[string]string
		}
		HealthCheck struct{ Test []string }
	}
	if err := json.Unmarshal([]byte(e.run(t, "podman", "image", "inspect", tag)), &inspected); err != nil {
		t.Fatal(err)
	}
	i := inspected[0]
	t.Logf("%d bytes", i.Size)
	if i.Size > mostBytes {
		t.Errorf("%d bytes, at most %d", i.Size, mostBytes)
	}
	got := fmt.Sprintln(i.Config.User, i.Config.Entrypoint, i.Config.Cmd, slices.Sorted(maps.Keys(i.Config.ExposedPorts)), i.HealthCheck.Test)
	if want := "65534:65534 [] [/bin/ratelimit] [8080/tcp 8081/tcp] [CMD /bin/ratelimit healthcheck]\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, label := range []string{"title", "description", "source", "documentation", "licenses", "version", "revision"} {
		if i.Config.Labels["org.opencontainers.image."+label] == "" {
			t.Errorf("there is no label %s", label)
		}
	}
	if got := i.Config.Labels["org.opencontainers.image.version"]; got != version {
		t.Errorf("version %q, want %q", got, version)
	}
}

type client struct{ rls.RateLimitServiceClient }

func connect(t *testing.T, socket string) client {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return client{rls.NewRateLimitServiceClient(conn)}
}

// decide sends a request, and waits if the server has not started yet.
func (c client) decide(t *testing.T, r *rls.RateLimitRequest) rls.RateLimitResponse_Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	answer, err := c.ShouldRateLimit(ctx, r, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetOverallCode()
}

type container struct {
	*engine
	client
	name string
	dir  string // /sock of the container, as a folder of this machine
}

// start runs the image with as few rights as possible. The container has only a loopback interface, so the
// test connects to a Unix socket.
func (e *engine) start(t *testing.T, name string, args ...string) *container {
	t.Helper()
	c := &container{engine: e, name: name, dir: t.TempDir()}
	config := t.TempDir()
	file := filepath.Join(config, "config", "limits.yaml")
	for path, mode := range map[string]fs.FileMode{c.dir: 0o777, config: 0o755, filepath.Dir(file): 0o755} {
		if err := os.MkdirAll(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // sets the mode regardless of the umask, because the container runs as another user
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte(limits), 0o644); err != nil {
		t.Fatal(err)
	}
	e.run(t, "podman", append([]string{
		"run", "--detach", "--name", name, "--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges",
		"--network=none", "--memory=64m", "--memory-swap=64m",
		"--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", // podman's defaults may exceed the limits of this machine
		"--volume=" + config + ":/data:ro", "--volume=" + c.dir + ":/sock", "--env=LOG_LEVEL=info", "--env=RLSIDECAR_LOG_LEVEL=info",
	}, args...)...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.logs())
		}
	})
	c.client = connect(t, filepath.Join(c.dir, "grpc"))
	c.eventually(t, "it is healthy", func() bool {
		_, err := e.try("podman", "healthcheck", "run", name)
		return err == nil
	})
	return c
}

func (c *container) logs() string {
	out, _ := c.try("podman", "logs", c.name) // the log of the container, or the error of podman
	return out
}

func (c *container) eventually(t *testing.T, condition string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in 3 min: %s", condition)
		}
	}
}

func (c *container) state(t *testing.T) (s struct {
	Pid, ExitCode      int
	Running, OOMKilled bool
}) {
	t.Helper()
	if err := json.Unmarshal([]byte(c.run(t, "podman", "inspect", "--format", "{{json .State}}", c.name)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

const ok, over = rls.RateLimitResponse_OK, rls.RateLimitResponse_OVER_LIMIT

// asReference starts the image in the way of envoyproxy/ratelimit: without arguments, and with that server's
// environment variables.
func asReference(t *testing.T, name string, more ...string) *container {
	t.Helper()
	return image(t).start(t, name, append(more, "--env=RUNTIME_ROOT=/data", "--env=GRPC_UDS=/sock/grpc", "--env=BACKEND_TYPE=memory", "--env=RLSIDECAR_DRAIN_DELAY=5s", tag)...)
}

func TestImageInThePlaceOfTheReferenceServer(t *testing.T) {
	c := asReference(t, "reference")
	for i, want := range []rls.RateLimitResponse_Code{ok, ok, over} {
		if got := c.decide(t, rlstest.Request("edge", "path=/login")); got != want {
			t.Errorf("request %d to /login: %v, want %v", i+1, got, want)
		}
	}
	if !regexp.MustCompile(`"http": "(\[::\]|0\.0\.0\.0)?:8080"`).MatchString(c.logs()) {
		t.Error("HTTP is not on all addresses, port 8080")
	}
}

// TestImageHasNoRights examines the rights of the process from outside the container.
func TestImageHasNoRights(t *testing.T) {
	c := asReference(t, "rights")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.state(t).Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`Uid:(\s+65534){4}`, `Gid:(\s+65534){4}`, `CapEff:\s+0+`, `CapBnd:\s+0+`, `NoNewPrivs:\s+1`} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).Match(status) {
			t.Errorf("no %s in\n%s", want, status)
		}
	}
	if out, err := c.try("podman", "exec", c.name, "/bin/sh", "-c", "true"); err == nil {
		t.Errorf("the image contains a shell: %s", out)
	}
}

// TestFloodOfKeysInLittleMemory sends more keys than fit into the memory of the container. The kernel must not
// kill the process, because a restart would refill all buckets.
func TestFloodOfKeysInLittleMemory(t *testing.T) {
	c := asReference(t, "flood")
	for range 3 {
		c.decide(t, rlstest.Request("edge", "path=/login"))
	}
	var requests atomic.Int64
	var wg sync.WaitGroup
	filler := strings.Repeat("x", 200)
	for worker := range 4 {
		wg.Go(func() {
			for i := range 1000 {
				var values []string
				for j := range 100 {
					values = append(values, fmt.Sprintf("user=%s-%d-%d-%d", filler, worker, i, j))
				}
				if _, err := c.ShouldRateLimit(t.Context(), rlstest.Request("edge", values...)); err != nil {
					t.Error(err)
					return
				}
				requests.Add(int64(len(values)))
			}
		})
	}
	wg.Wait()
	if s := c.state(t); !s.Running || s.OOMKilled {
		t.Fatalf("after %d keys the container is %+v, want it running", requests.Load(), s)
	}
	if got := c.decide(t, rlstest.Request("edge", "path=/login")); got != over {
		t.Errorf("after many keys, the denied key of /login is allowed again: %v", got)
	}
	if _, err := c.try("podman", "healthcheck", "run", c.name); err != nil {
		t.Error("after many keys the sidecar is not healthy")
	}
}

func TestImageRunsCommands(t *testing.T) {
	e := image(t)
	c := e.start(t, "command", tag, "/bin/rlsidecar", "serve", "--config", "/data/config", "--grpc-listen", "unix:///sock/grpc")
	if got := c.decide(t, rlstest.Request("edge", "path=/login")); got != ok {
		t.Errorf("/login: %v, want %v", got, ok)
	}
	out := c.run(t, "podman", "exec", c.name, "rlsidecar", "--version")
	if !strings.HasPrefix(out, "rlsidecar "+version+"\n") {
		t.Errorf("version: got %s, want rlsidecar %s", out, version)
	}
	c.run(t, "podman", "exec", c.name, "rlsidecar", "check", "/data/config")
	c.run(t, "podman", "stop", "--time=20", c.name)
	if s := c.state(t); s.ExitCode != 0 {
		t.Errorf("the container ended with %+v, want exit code 0", s)
	}
	if _, err := e.try("podman", "healthcheck", "run", c.name); err == nil {
		t.Error("healthcheck succeeds after the sidecar has ended")
	}
}

func TestImageForAnotherProcessor(t *testing.T) {
	e := image(t)
	other, want, emulator := "arm64", elf.EM_AARCH64, "qemu-aarch64"
	if runtime.GOARCH == other {
		other, want, emulator = "amd64", elf.EM_X86_64, "qemu-x86_64"
	}
	const otherTag = "localhost/rlsidecar:other"
	e.build(t, otherTag, "--build-arg=TARGETARCH="+other)
	folder, _ := e.files(t, otherTag)
	file := filepath.Join(folder, "bin/rlsidecar")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	made, err := elf.NewFile(bytes.NewReader(data))
	if err != nil || made.Machine != want {
		t.Errorf("the program is for %v, %v; want %v", made.Machine, err, want)
	}
	qemu := tooltest.Path(t, emulator)
	if out, err := exec.Command(qemu, file, "--version").Output(); err != nil || !strings.HasPrefix(string(out), "rlsidecar "+version+"\n") {
		t.Errorf("version: got %v, %s; want rlsidecar %s", err, out, version)
	}
	scenarios, err := filepath.Glob(root + "/examples/*/*.scenarios.yaml")
	if err != nil || len(scenarios) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	if out, err := exec.Command(qemu, append([]string{file, "test"}, scenarios...)...).CombinedOutput(); err != nil {
		t.Errorf("scenarios fail on the other architecture: %v\n%s", err, out)
	}
	dir := t.TempDir()
	config, socket := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "grpc")
	if err := os.WriteFile(config, []byte(limits), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := exec.Command(qemu, file, "serve", "--config", config, "--grpc-listen", "unix://"+socket, "--http-listen", "unix://"+filepath.Join(dir, "http"),
		"--admin-listen", "unix://"+filepath.Join(dir, "admin"), "--drain-delay", "0s")
	serve.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var output bytes.Buffer
	serve.Stdout, serve.Stderr = &output, &output
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	requests := connect(t, socket)
	for i, want := range []rls.RateLimitResponse_Code{ok, ok, over} {
		if got := requests.decide(t, rlstest.Request("edge", "path=/login")); got != want {
			t.Errorf("request %d to /login: %v, want %v", i+1, got, want)
		}
	}
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := serve.Wait(); err != nil {
		t.Errorf("after SIGTERM the server ended with %v; want exit code 0\n%s", err, output.String())
	}
}
