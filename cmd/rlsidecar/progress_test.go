package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestProgressIsAShareAndTheTimeLeft(t *testing.T) {
	for _, c := range []struct {
		done    int64
		elapsed time.Duration
		want    string
	}{{0, time.Second, "0 %"}, {250, 5 * time.Second, "25 %, 15s left"}, {1000, time.Minute, "100 %, 0s left"}, {1200, time.Minute, "100 %, 0s left"}} {
		if got := progressOf(c.done, 1000, c.elapsed); got != c.want {
			t.Errorf("%d of 1000 after %v: got %q; want %q", c.done, c.elapsed, got, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := withProgress(&app{stderr: &strings.Builder{}}, file); got != file {
		t.Errorf("got %T without a terminal; want the file itself", got)
	}
	var shown strings.Builder
	p := &progress{File: file, terminal: &shown, size: 1000, began: time.Now().Add(-time.Minute)}
	if _, err := p.Read(make([]byte, 500)); err != nil || !strings.HasPrefix(shown.String(), "\r50 %, 1m0s left") {
		t.Errorf("got %q, %v; want 50 %%, and a minute left", shown.String(), err)
	}
	if err := p.Close(); err != nil || !strings.HasSuffix(shown.String(), "\r\x1b[K") {
		t.Errorf("got %q, %v; want that Close removes the line", shown.String(), err)
	}
}
