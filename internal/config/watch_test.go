package config

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// longest is the longest wait for a change.
const longest = 25 * time.Second

// watched runs a Watcher of paths. next waits for the next change, and fails the test if there is none within longest.
// none fails the test if there is a change within the time of several polls.
func watched(t *testing.T, paths ...string) (next func(subject string), none func(subject string)) {
	t.Helper()
	changes := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	w, done := NewWatcher(paths), make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx, func() { changes <- struct{}{} })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	next = func(subject string) {
		t.Helper()
		select {
		case <-changes:
		case <-time.After(longest):
			t.Fatalf("%s: onChange was not called within %v; want a call", subject, longest)
		}
	}
	none = func(subject string) {
		t.Helper()
		select {
		case <-changes:
			t.Fatalf("%s: onChange was called; want no call", subject)
		case <-time.After(poll + 3*quiet):
		}
	}
	return next, none
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func TestWatchSeesEditsOfAFolder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	a, b := filepath.Join(folder, "a.yaml"), filepath.Join(folder, "b.yaml")
	write(t, a, "domain: a")
	next, none := watched(t, folder)
	write(t, a, "domain: b")
	next("an edit in place")
	write(t, a, "domain: b")
	none("the same content written again")
	write(t, a, "domain: e")
	next("an edit of the same size")
	write(t, b, "domain: c")
	next("a new file")
	write(t, filepath.Join(folder, ".b.yaml.swp"), "x")
	write(t, filepath.Join(folder, "notes.txt"), "x")
	none("files that are no configuration")
	write(t, filepath.Join(folder, "b.yaml~"), "domain: d")
	must(t, os.Rename(filepath.Join(folder, "b.yaml~"), b))
	next("a file put in another's place")
	must(t, os.Rename(b, filepath.Join(folder, "c.yaml")))
	next("a file with a new name and the same content, whose limits have new places")
	must(t, os.Remove(filepath.Join(folder, "c.yaml")))
	next("a file removed")
}

func TestWatchNoticesAnUpdatedConfigMap(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	version := func(name, content string) {
		must(t, os.Mkdir(filepath.Join(folder, name), 0o700))
		write(t, filepath.Join(folder, name, "a.yaml"), content)
		must(t, os.Symlink(name, filepath.Join(folder, "..data_tmp")))
		must(t, os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, "..data")))
	}
	version("..2026_01", "domain: a")
	must(t, os.Symlink(filepath.Join("..data", "a.yaml"), filepath.Join(folder, "a.yaml")))
	for name, path := range map[string]string{"folder": folder, "file": filepath.Join(folder, "a.yaml")} {
		t.Run(name, func(t *testing.T) {
			next, _ := watched(t, path)
			version("..2026_02"+name, "domain: b"+name)
			next("the first turn")
			must(t, os.RemoveAll(filepath.Join(folder, "..2026_02")))
			version("..2026_03"+name, "domain: c"+name)
			next("the second turn")
			s, problems := Load([]string{path}, Options{})
			if problems.Bad() || s.Domains["c"+name] == nil {
				t.Fatalf("loaded %v, %v; want no mistakes, and the domain c%s", s, problems, name)
			}
		})
	}
}

// Files of images and of reproducible archives may all have the same time and size.
func TestWatchSeesALinkToAFileOfTheSameTimeAndSize(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, version := range []string{"1", "2"} {
		must(t, os.Mkdir(filepath.Join(folder, version), 0o700))
		name := filepath.Join(folder, version, "a.yaml")
		write(t, name, "domain: "+version)
		must(t, os.Chtimes(name, time.Unix(1, 0), time.Unix(1, 0)))
	}
	link := filepath.Join(folder, "current")
	must(t, os.Symlink("1", link))
	next, _ := watched(t, link)
	time.Sleep(poll + 3*quiet) // the first check ends before the change
	must(t, os.Symlink("2", link+".new"))
	must(t, os.Rename(link+".new", link))
	next("the link turned")
}

// Some file systems keep the times of files in whole seconds.
func TestWatchSeesASecondWriteOfTheSameTimeAndSize(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.yaml")
	synctest.Test(t, func(t *testing.T) {
		second := time.Now()
		writeAt := func(content string) {
			write(t, name, content)
			must(t, os.Chtimes(name, second, second))
		}
		writeAt("domain: a")
		ctx, cancel := context.WithCancel(t.Context())
		changes := 0
		go NewWatcher([]string{name}).Run(ctx, func() { changes++ })
		time.Sleep(700 * time.Millisecond) // the first read
		writeAt("domain: b")
		time.Sleep(time.Minute)
		cancel()
		synctest.Wait()
		if changes != 1 {
			t.Errorf("%d changes, want 1", changes)
		}
	})
}

func TestWatchEndsWithItsContext(t *testing.T) {
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	NewWatcher([]string{t.TempDir(), "nowhere"}).Run(ctx, func() { t.Error("onChange was called; want no call, because nothing has changed") })
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines after Run, want at most %d as before", runtime.NumGoroutine(), before)
}

// Changes that never stop are read all the same, when quietTries have passed.
func TestFilesAreReadWhenChangesStopOrAfterTheLongestWait(t *testing.T) {
	folder := t.TempDir()
	name := filepath.Join(folder, "a.yaml")
	write(t, name, "domain: a")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		at := func(d time.Duration) { time.Sleep(time.Until(start.Add(d))) }
		var reads []time.Duration
		w := NewWatcher([]string{folder})
		go w.Run(ctx, func() { reads = append(reads, time.Since(start)) })
		at(2*time.Second - time.Millisecond) // before a poll: polls are at 0.5 s, then after quiet at 1.1, 1.6 and 2.1 s
		write(t, name, "domain: once")
		for d := 5 * time.Second; d < 7*time.Second; d += 90 * time.Millisecond {
			at(d)
			write(t, name, "domain: a #"+strings.Repeat("#", int(d/time.Millisecond)))
		}
		at(time.Minute)
		cancel()
		synctest.Wait()
		if len(reads) < 3 || reads[0] != 2200*time.Millisecond || reads[1] < 6*time.Second || reads[1] > 6700*time.Millisecond || len(reads) > 4 {
			t.Errorf("reads at %v; want one at 2.2 s, one while the changes go on, and one or two after them", reads)
		}
	})
}

// TestWatchSeesTheReferenceLayout edits files below a symbolic link in place, and replaces the link.
func TestWatchSeesTheReferenceLayout(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, version := range []string{"v1", "v2"} {
		must(t, os.MkdirAll(filepath.Join(root, version, "config", "sub"), 0o700))
		write(t, filepath.Join(root, version, "config", "sub", "limits"), "domain: "+version)
	}
	current := filepath.Join(root, "current")
	must(t, os.Symlink("v1", current))
	next, _ := watched(t, filepath.Join(current, "config", "**"))
	write(t, filepath.Join(current, "config", "sub", "limits"), "domain: edited")
	next("an edit in place")
	must(t, os.Symlink("v2", current+".new"))
	must(t, os.Rename(current+".new", current))
	next("the link turned")
	write(t, filepath.Join(root, "v2", "config", "another"), "domain: another")
	next("a new file without an extension")
}

// A large configuration must not grow the heap by the size of its files.
func TestAComparisonNeedsLittleMemory(t *testing.T) {
	folder := t.TempDir()
	text := bytes.Repeat([]byte("# a comment\n"), 1<<20/12)
	for i := range 8 {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprint(i, ".yaml")), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	digest([]string{folder})
	runtime.ReadMemStats(&after)
	if is := after.TotalAlloc - before.TotalAlloc; is > 1<<20 {
		t.Errorf("a comparison of 8 MiB of files allocated %d KiB; want at most %d KiB", is>>10, 1<<10)
	}
}
