package chart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	inPod    = "RLSIDECAR_CHART_POD" // the environment variable that is set for a process in the network of a pod
	podIP    = "10.1.2.3"
	patience = 30 * time.Second
)

// inPodsNetwork starts the test again in a process with a network of its own, where it can use the address
// that the kubelet probes. It returns true in that process. In the first process it waits for the other one,
// and returns false.
func inPodsNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inPod) != "" {
		for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", podIP + "/32", "dev", "lo"}} {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				t.Fatalf("ip %v (package iproute2): %v: %s", args, err, out)
			}
		}
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), inPod+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNET}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if cmd.Process == nil && os.Getenv("CI") == "" {
		t.Skipf("this machine does not allow a separate network: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// TestPodsAnswerTheirProbes starts rlsidecar with the arguments of the Deployment, and of the native sidecar.
// It sends the kubelet's probes before SIGTERM and while the process drains.
func TestPodsAnswerTheirProbes(t *testing.T) {
	if !inPodsNetwork(t) {
		return
	}
	program, all := build(t), cases(t)
	for name, pod := range map[string]struct {
		metrics string // the name of the port of the metrics
		open    bool   // the HTTP listener is reachable from other pods
	}{"minimal-values.yaml": {"metrics", true}, "app": {"rl-metrics", false}} {
		p := startPod(t, program, all[name])
		c := p.container
		// A startup probe of readiness would fail while Redis refuses the pod, and Kubernetes would restart it.
		if startup := fmt.Sprint(at(c, "startupProbe")); !strings.Contains(startup, "/livez") && !strings.Contains(startup, "--live") {
			t.Errorf("%s: the startup probe is %s; want one of liveness", name, startup)
		}
		eventually(t, name+" has started", func() bool { return p.probe("startupProbe") == nil })
		eventually(t, name+" is ready", func() bool { return p.probe("readinessProbe") == nil })
		if err := p.probe("livenessProbe"); err != nil && at(c, "livenessProbe") != nil {
			t.Errorf("%s: livenessProbe: %v", name, err)
		}
		if text, err := get(podIP, p.port(pod.metrics), "/metrics"); err != nil || !strings.Contains(text, "rlsidecar_") {
			t.Errorf("%s: metrics: %v\n%s", name, err, text)
		}
		if _, err := get(podIP, 8080, "/readyz"); (err == nil) != pod.open {
			t.Errorf("%s: the HTTP listener from another pod: got error %v, want reachable: %t", name, err, pod.open)
		}

		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+" is not ready any more", func() bool { return p.probe("readinessProbe") != nil })
		if at(c, "livenessProbe") != nil {
			if err := p.probe("livenessProbe"); err != nil {
				t.Errorf("%s is killed while it drains: %v", name, err)
			}
		}
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("%s ended with %v\n%s", name, err, p.output.String())
		}
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

type runningPod struct {
	program   string
	container any
	cmd       *exec.Cmd
	output    bytes.Buffer
}

// startPod starts rlsidecar with the arguments of its container in objects. The files of limits are in a temporary folder.
func startPod(t *testing.T, program string, objects []object) *runningPod {
	t.Helper()
	p := &runningPod{program: program}
	folder := t.TempDir()
	for _, o := range objects {
		if o["kind"] == "ConfigMap" {
			for file, text := range at(o, "data").(object) {
				writeFile(t, filepath.Join(folder, file), text.(string))
			}
		}
		pod := at(o, "spec", "template", "spec")
		for _, c := range append(list(at(pod, "initContainers")), list(at(pod, "containers"))...) {
			if at(c, "name") == "rlsidecar" {
				p.container = c
			}
		}
	}
	var line []string
	for _, word := range append(words(at(p.container, "command")), words(at(p.container, "args"))...) {
		line = append(line, strings.ReplaceAll(word, limit, folder))
	}
	p.cmd = p.command(context.Background(), line)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// command returns a command that runs the program with the arguments of line, whose first element is /bin/rlsidecar, and
// with the environment of the container.
func (p *runningPod) command(ctx context.Context, line []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.program, line[1:]...)
	cmd.Env = []string{}
	for _, variable := range list(at(p.container, "env")) {
		if value, ok := at(variable, "value").(string); ok {
			cmd.Env = append(cmd.Env, fmt.Sprint(at(variable, "name"), "=", value))
		}
	}
	return cmd
}

// port returns the number of a port of the container, or 0 if it has none of that name.
func (p *runningPod) port(name any) int {
	for _, port := range list(at(p.container, "ports")) {
		if at(port, "name") == name {
			number, _ := at(port, "containerPort").(int)
			return number
		}
	}
	return 0
}

// probe sends a probe as the kubelet does. It returns an error if the probe fails or the container has none of that
// name.
func (p *runningPod) probe(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch how := at(p.container, name); {
	case at(how, "exec") != nil:
		return p.command(ctx, words(at(how, "exec", "command"))).Run()
	case at(how, "httpGet") != nil:
		_, err := get(podIP, p.port(at(how, "httpGet", "port")), fmt.Sprint(at(how, "httpGet", "path")))
		return err
	default:
		return errors.New("there is none")
	}
}

func get(ip string, port int, path string) (string, error) {
	client := http.Client{Timeout: patience}
	r, err := client.Get(fmt.Sprintf("http://%s:%d%s", ip, port, path))
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, text)
	}
	return string(text), err
}

func eventually(t *testing.T, condition string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v this is still not true: %s", patience, condition)
		}
	}
}
