package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rlsidecar/rlsidecar/bench/load"
)

type sizeCmd struct {
	sidecar

	Limits int    `default:"100000" help:"Number of limits of the configuration."`
	Files  int    `default:"200" help:"Number of files of the configuration."`
	Shape  string `default:"flat" enum:"flat,deep,domain" help:"flat: one level of descriptors and a domain in each file; deep: trees of four levels; domain: flat, one domain over all files."`
}

// Run measures the cost of a large configuration: of the start, of the memory, of a reload after one file has
// changed, and of the metrics.
func (c *sizeCmd) Run(a *app) error {
	dir, err := os.MkdirTemp("", "rlbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	folder := filepath.Join(dir, "limits")
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	for i := range c.Files {
		if err := c.write(folder, i, 100); err != nil {
			return err
		}
	}
	listen, err := freeAddress()
	if err != nil {
		return err
	}
	admin, err := freeAddress()
	if err != nil {
		return err
	}
	httpListen, err := freeAddress()
	if err != nil {
		return err
	}
	if err := os.Setenv("RLSIDECAR_MAX_LIMITS", fmt.Sprint(c.Limits)); err != nil {
		return err
	}
	start := time.Now()
	server, err := startChild(a, "rlsidecar", admin, c.Sidecar, "serve", "--config", folder, "--drain-delay", "0s",
		"--grpc-listen", listen, "--http-listen", httpListen, "--admin-listen", admin)
	if err != nil {
		return err
	}
	defer server.stop()
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d limits in %d files, %s\ts\tCPU s\tRSS MiB\tpeak MiB\tmetrics KiB\t\n", c.Limits, c.Files, c.Shape)
	if err := c.row(w, server, admin, "start", time.Since(start), 0); err != nil {
		return err
	}
	before, err := load.CPU(server.pid())
	if err != nil {
		return err
	}
	loaded, err := loadedAt(admin)
	if err != nil {
		return err
	}
	start = time.Now()
	if err := c.write(folder, c.Files/2, 200); err != nil {
		return err
	}
	// Each query costs the sidecar a millisecond or two, which counts as CPU time of the reload.
	for end := time.Now().Add(maxWait); ; time.Sleep(100 * time.Millisecond) {
		now, err := loadedAt(admin)
		if err != nil {
			return err
		}
		if now != loaded {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("the change of a file was not loaded within %s", maxWait)
		}
	}
	took := time.Since(start)
	time.Sleep(time.Second) // by then the sidecar has returned unused memory to the system; the peak has its own column
	if err := c.row(w, server, admin, "one file changed (it is noticed within 0.6 s)", took, before); err != nil {
		return err
	}
	return w.Flush()
}

// write writes the file with index i. Each of its limits permits rate to rate+49 requests a minute.
func (c *sizeCmd) write(folder string, i, rate int) error {
	text := flat
	if c.Shape == "deep" {
		text = deep
	}
	domain := fmt.Sprintf("team-%03d", i)
	if c.Shape == "domain" {
		domain = "edge"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", domain)
	text(&b, i*c.Limits/c.Files, (i+1)*c.Limits/c.Files, rate)
	name := filepath.Join(folder, fmt.Sprintf("%03d.yaml", i))
	if err := os.WriteFile(name+".new", []byte(b.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func flat(b *strings.Builder, low, high, rate int) {
	for j := low; j < high; j++ {
		fmt.Fprintf(b, "  - key: tenant\n    value: customer-%06d\n    rate_limit: {unit: minute, requests_per_unit: %d}\n", j, rate+j%50)
	}
}

// deep writes the limits with the numbers low to high-1, in trees of four levels. Each tenant has up to twenty paths,
// and each path has a method with one limit for each user.
func deep(b *strings.Builder, low, high, rate int) {
	for j := low; j < high; j++ {
		if (j-low)%20 == 0 {
			fmt.Fprintf(b, "  - key: tenant\n    value: customer-%06d\n    descriptors:\n", j)
		}
		fmt.Fprintf(b, "      - key: path\n        value: /v1/%06d\n        descriptors:\n          - key: method\n            value: POST\n"+
			"            descriptors:\n              - key: user\n                rate_limit: {unit: minute, requests_per_unit: %d}\n", j, rate+j%50)
	}
}

// row prints the current cost of server. cpuBefore is the CPU time that does not count, because the server used it
// earlier.
func (c *sizeCmd) row(w io.Writer, server *child, admin, name string, took, cpuBefore time.Duration) error {
	cpu, err := load.CPU(server.pid())
	if err != nil {
		return err
	}
	now, peak, err := load.Memory(server.pid())
	if err != nil {
		return err
	}
	text, err := metricsOf(admin)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%d\t%d\t%d\t\n", name, took.Seconds(), (cpu - cpuBefore).Seconds(), now>>20, peak>>20, len(text)>>10)
	return err
}

func loadedAt(admin string) (string, error) {
	text, err := metricsOf(admin)
	if err != nil {
		return "", err
	}
	return metric(text, "rlsidecar_config_last_reload_success_timestamp_seconds")
}

func metric(text, name string) (string, error) {
	_, rest, _ := strings.Cut(text, "\n"+name+" ")
	value, _, found := strings.Cut(rest, "\n")
	if !found {
		return "", fmt.Errorf("the metrics have no %s", name)
	}
	return value, nil
}

func metricsOf(admin string) (string, error) {
	r, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return string(text), err
}
