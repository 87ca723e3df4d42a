package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

const (
	root     = "../.."
	tag      = "localhost/rlsidecar:test"
	version  = "v0.0.0-test"
	patience = 30 * time.Minute // long enough to compile everything on a busy machine with an empty cache
)

// engine is buildah and podman with a storage folder of their own.
type engine struct {
	dir   string
	tool  map[string]string
	built bool
}

// images is the engine of all tests. It is nil before the first test that needs it.
var images *engine

func newEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{tool: map[string]string{}}
	for _, tool := range []string{"buildah", "podman", "runc"} {
		e.tool[tool] = tooltest.Path(t, tool)
	}
	var err error
	if e.dir, err = os.MkdirTemp("", "rlsidecar-image"); err != nil { //nolint:usetesting // it outlives the test
		t.Fatal(err)
	}
	return e
}

// image returns the engine with the image. The first test that needs the image builds it.
func image(t *testing.T) *engine {
	t.Helper()
	if images == nil {
		images = newEngine(t)
		images.build(t, tag)
		images.built = true
	}
	if !images.built {
		t.Fatal("there is no image; an earlier test reports the reason")
	}
	return images
}

func TestMain(m *testing.M) {
	code := m.Run()
	if images != nil {
		if err := images.remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func (e *engine) remove() error {
	_, _ = e.try("podman", "rm", "--all", "--force", "--time", "0") // os.RemoveAll fails if one of these steps has failed
	_, _ = e.try("podman", "image", "unmount", "--all")
	_, _ = e.try("buildah", "rm", "--all")
	_, _ = e.try("buildah", "rmi", "--all", "--force")
	return os.RemoveAll(e.dir)
}

// try runs one of the tools and returns its output. The output includes stderr if the tool failed, or if it
// writes a container's log there.
func (e *engine) try(tool string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all := []string{"--root", filepath.Join(e.dir, "root"), "--runroot", filepath.Join(e.dir, "run")}
	if tool == "podman" {
		// podman's default, crun, does not run in a container that has cgroups of both version 1 and version 2.
		all = append(all, "--runtime", e.tool["runc"], "--events-backend", "none")
	}
	cmd := exec.CommandContext(ctx, e.tool[tool], append(all, args...)...)
	cmd.Dir = e.dir // programs that the tool starts write files into their working folder
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || args[0] == "logs" {
		return stdout.String() + stderr.String(), err
	}
	return strings.TrimSpace(stdout.String()), nil
}

func (e *engine) run(t *testing.T, tool string, args ...string) string {
	t.Helper()
	out, err := e.try(tool, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", tool, strings.Join(args, " "), err, out)
	}
	return out
}

// build builds the Dockerfile with the Go toolchain and caches of this machine instead of the golang image.
// So it downloads nothing and compiles little.
func (e *engine) build(t *testing.T, tag string, args ...string) {
	t.Helper()
	var env struct{ GOROOT, GOMODCACHE, GOCACHE string }
	out, err := exec.Command("go", "env", "-json", "GOROOT", "GOMODCACHE", "GOCACHE").Output()
	if err == nil {
		err = json.Unmarshal(out, &env)
	}
	if err != nil {
		t.Fatalf("go env: %v", err)
	}
	base := filepath.Join(e.dir, "base")
	certificates, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Fatalf("the certificates that the image gets (package ca-certificates): %v", err)
	}
	for path, data := range map[string][]byte{
		"etc/ssl/certs/ca-certificates.crt": certificates,
		"tmp/.keep":                         nil,
		"Dockerfile": []byte("FROM scratch\nCOPY . /\n" +
			"ENV PATH=/go/root/bin:/usr/bin GOMODCACHE=/go/mod GOCACHE=/go/cache GOTOOLCHAIN=local HOME=/tmp\n"),
	} {
		path = filepath.Join(base, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"bin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+link, filepath.Join(base, link)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	const how = "--isolation=chroot" // needs only the rights that a container in CI has
	if out, err := e.try("buildah", "bud", how, "--layers=false", "--tag", "localhost/golang:local", base); err != nil {
		t.Fatalf("buildah cannot build even an empty image here. It needs root, or user namespaces, and a file system "+
			"that it can put its storage on: %v\n%s", err, out)
	}
	args = append([]string{
		"bud", how, "--network=host", "--layers=false", "--format=docker", "--tag", tag,
		"--build-arg=GO_IMAGE=localhost/golang:local", "--build-arg=VERSION=" + version,
		"--volume=/usr:/usr:ro", "--volume=" + env.GOROOT + ":/go/root:ro",
		"--volume=" + env.GOMODCACHE + ":/go/mod", "--volume=" + env.GOCACHE + ":/go/cache",
	}, args...)
	source, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	e.run(t, "buildah", append(args, source)...)
}

// files mounts an image in folder, and returns the modes of its files by path.
func (e *engine) files(t *testing.T, tag string) (folder string, found map[string]fs.FileMode) {
	t.Helper()
	folder, found = e.run(t, "podman", "image", "mount", tag), map[string]fs.FileMode{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		found[strings.TrimPrefix(path, folder)] = info.Mode()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return folder, found
}
