package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/tooltest"
)

const (
	root    = "../.."
	version = "v0.0.0-test"
)

// source copies the sources of a release to a folder of this name in a new temporary folder.
func source(t *testing.T, folder string) string {
	t.Helper()
	folder = filepath.Join(t.TempDir(), folder)
	for _, name := range []string{"cmd", "internal", "pkg", "scripts", "packaging"} {
		if err := os.CopyFS(filepath.Join(folder, name), os.DirFS(filepath.Join(root, name))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(folder, "docs/reference"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", "go.sum", "LICENSE", "README.md", "CHANGELOG.md", "docs/reference/cli.md"} {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// release makes a release in a folder of this name, checks its SHA256SUMS, and returns its files.
func release(t *testing.T, folder, umask, zone string) map[string][]byte {
	t.Helper()
	cmd := exec.Command("bash", "-c", "umask "+umask+"; exec scripts/release.sh")
	cmd.Dir = source(t, folder)
	cmd.Env = append(os.Environ(), "VERSION="+version, "REVISION=0123456", "SOURCE_DATE_EPOCH=1767225600", "TZ="+zone)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("scripts/release.sh: %v\n%s", err, out)
	}
	dist := os.DirFS(filepath.Join(cmd.Dir, "dist"))
	files := map[string][]byte{}
	entries, err := fs.ReadDir(dist, ".")
	for _, e := range entries {
		if err == nil {
			files[e.Name()], err = fs.ReadFile(dist, e.Name())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	sums := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	sums.Dir = filepath.Join(cmd.Dir, "dist")
	if out, err := sums.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	return files
}

func TestReleaseIsWholeAndTheSameTwice(t *testing.T) {
	one := release(t, "here", "022", "UTC")
	other := release(t, "somewhere/else", "077", "Asia/Tokyo")
	if len(one) != 5 || len(other) != len(one) {
		t.Errorf("%d files, then %d; want 5", len(one), len(other))
	}
	for name, data := range one {
		if !bytes.Equal(data, other[name]) {
			t.Errorf("%s differs when it is built again", name)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		name := "rlsidecar_" + version + "_linux_" + arch
		files := unpack(t, one[name+".tar.gz"], name+"/")
		for _, want := range []string{"rlsidecar", "LICENSE", "THIRD_PARTY_LICENSES.txt", "README.md", "CHANGELOG.md", "rlsidecar.service",
			"rlsidecar.1", "completions/rlsidecar.bash", "completions/rlsidecar.zsh", "completions/rlsidecar.fish"} {
			if len(files[want]) == 0 {
				t.Errorf("%s has no %s", name, want)
			}
		}
		if arch == runtime.GOARCH {
			program := versionOf(t, files["rlsidecar"])
			unit(t, string(files["rlsidecar.service"]), program)
		}
		bom(t, one[name+".cdx.json"])
	}
}

func unpack(t *testing.T, data []byte, prefix string) map[string][]byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.ModTime.Unix() != 1767225600 {
			t.Errorf("%s contains facts about the machine that made it: %+v", h.Name, h)
		}
		if want := fs.FileMode(0o644); h.Typeflag == tar.TypeReg && h.Name != prefix+"rlsidecar" && h.FileInfo().Mode() != want {
			t.Errorf("%s has mode %v, want %v", h.Name, h.FileInfo().Mode(), want)
		}
		if files[strings.TrimPrefix(h.Name, prefix)], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func versionOf(t *testing.T, program []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "rlsidecar")
	if err := os.WriteFile(path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "--version").Output()
	if want := "rlsidecar " + version + "\ncommit 0123456\n"; err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("version: %s, %v; want %s", out, err, want)
	}
	return path
}

// unit checks the systemd unit with systemd's own tools, which also rate the rights of the process.
func unit(t *testing.T, text, program string) {
	t.Helper()
	const installed, mostExposed = "/usr/local/bin/rlsidecar", "15" // systemd's rating times ten; docs/packaging.md states 1.2 of 10
	if !strings.Contains(text, "ExecStart="+installed+" serve") {
		t.Errorf("the unit does not run %s", installed)
	}
	file := filepath.Join(t.TempDir(), "rlsidecar.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, installed, program)), 0o600); err != nil {
		t.Fatal(err)
	}
	analyze := tooltest.Path(t, "systemd-analyze")
	// systemd-analyze prints only a warning for an unknown setting.
	if out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	if out, err := exec.Command(analyze, "security", "--offline=yes", "--no-pager", "--threshold="+mostExposed, file).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

func bom(t *testing.T, data []byte) {
	t.Helper()
	type component struct {
		Name, Version, PURL string
		Licenses            []struct{ License struct{ ID string } }
	}
	var d struct {
		BOMFormat  string
		Metadata   struct{ Component component }
		Components []component
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	if d.BOMFormat != "CycloneDX" || d.Metadata.Component.Version != version {
		t.Errorf("got %s of version %s, want CycloneDX of version %s", d.BOMFormat, d.Metadata.Component.Version, version)
	}
	for _, c := range d.Components {
		if c.Version == "" || c.PURL == "" || len(c.Licenses) != 1 || c.Licenses[0].License.ID == "" {
			t.Errorf("the list of modules has an incomplete entry: %+v", c)
		}
	}
	for _, name := range []string{"std", "github.com/alecthomas/kong", "github.com/redis/go-redis/v9", "google.golang.org/grpc"} {
		if !slices.ContainsFunc(d.Components, func(c component) bool { return c.Name == name }) {
			t.Errorf("the list of modules lacks %s", name)
		}
	}
}
