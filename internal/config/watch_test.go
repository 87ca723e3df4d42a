package config

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// longest is the longest wait for a change. It is shorter than poll, so that a poll does not replace a lost event.
const longest = poll * 5 / 6

// watched runs a Watcher of paths. next waits for the next change, and fails the test if there is none within longest.
// none fails the test if there is a change within three times quietDelay.
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
		case <-time.After(3 * quietDelay):
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
	folder := t.TempDir()
	a, b := filepath.Join(folder, "a.yaml"), filepath.Join(folder, "b.yaml")
	write(t, a, "domain: a")
	next, none := watched(t, folder)
	write(t, a, "domain: b")
	next("an edit in place")
	write(t, a, "domain: b")
	none("the same content written again")
	write(t, b, "domain: c")
	next("a new file")
	write(t, filepath.Join(folder, ".b.yaml.swp"), "x")
	write(t, filepath.Join(folder, "notes.txt"), "x")
	none("files that are no configuration")
	write(t, filepath.Join(folder, "b.yaml~"), "domain: d")
	must(t, os.Rename(filepath.Join(folder, "b.yaml~"), b))
	next("a file put in another's place")
	must(t, os.Remove(b))
	next("a file removed")
}

func TestWatchSeesEditsOfALinkedFile(t *testing.T) {
	target, folder := filepath.Join(t.TempDir(), "a.yaml"), t.TempDir()
	write(t, target, "domain: a")
	must(t, os.Symlink(target, filepath.Join(folder, "b.yaml")))
	for _, path := range []string{folder, filepath.Join(folder, "**"), filepath.Join(folder, "b.yaml")} {
		next, _ := watched(t, path)
		time.Sleep(3 * quietDelay) // the first check ends before the edit
		write(t, target, "domain: "+path)
		next(path)
	}
}

func TestWatchSeesAFileThatIsReplaced(t *testing.T) {
	folder := t.TempDir()
	name := filepath.Join(folder, "limits")
	write(t, name, "domain: a")
	next, none := watched(t, name)
	for _, content := range []string{"domain: b", "domain: c"} {
		write(t, name+".new", content)
		must(t, os.Rename(name+".new", name))
		next("a file put in place of " + name)
	}
	write(t, filepath.Join(folder, "other"), "x")
	none("another file of the folder")
	must(t, os.Remove(name))
	next("the file removed")
	write(t, name, "domain: c")
	next("the file back again")
}

func TestWatchNoticesAnUpdatedConfigMap(t *testing.T) {
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

func TestWatchSeesAFolderReplaced(t *testing.T) {
	root := t.TempDir()
	for _, version := range []string{"1", "2"} {
		must(t, os.MkdirAll(filepath.Join(root, version, "config"), 0o700))
		write(t, filepath.Join(root, version, "config", "a.yaml"), "domain: v"+version)
	}
	t.Run("by a link", func(t *testing.T) {
		link := filepath.Join(root, "current")
		must(t, os.Symlink("1", link))
		next, _ := watched(t, filepath.Join(link, "config"))
		must(t, os.Symlink("2", link+".new"))
		must(t, os.Rename(link+".new", link))
		next("a link turned above the folder")
		write(t, filepath.Join(root, "2", "config", "a.yaml"), "domain: edited")
		next("an edit where the link leads now")
	})
	t.Run("by another folder", func(t *testing.T) {
		folder := filepath.Join(root, "1", "config")
		next, _ := watched(t, folder)
		must(t, os.Rename(folder, folder+".old"))
		next("a folder moved away")
		must(t, os.Mkdir(folder, 0o700))
		write(t, filepath.Join(folder, "a.yaml"), "domain: fresh")
		next("another in its place")
		write(t, filepath.Join(folder, "a.yaml"), "domain: edited")
		next("an edit of that")
	})
}

// A renamed file changes the places of its limits, and perhaps the order of the files.
func TestWatchSeesARenamedFile(t *testing.T) {
	folder := t.TempDir()
	write(t, filepath.Join(folder, "a.yaml"), "domain: a")
	next, _ := watched(t, folder)
	must(t, os.Rename(filepath.Join(folder, "a.yaml"), filepath.Join(folder, "b.yaml")))
	next("a file with a new name and the same content")
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

func TestDebounceWaitsUntilChangesStopOrTheLongestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		at := func(d time.Duration) { time.Sleep(time.Until(start.Add(d))) }
		var checks []time.Duration
		events, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			debounce(ctx, events, func() { checks = append(checks, time.Since(start)) })
		}()
		events <- struct{}{}
		at(90 * time.Millisecond)
		events <- struct{}{}
		for d := 5 * time.Second; d < 6*time.Second; d += 90 * time.Millisecond { // changes that never stop
			at(d)
			events <- struct{}{}
		}
		at(time.Minute)
		cancel()
		<-done
		want := []time.Duration{190 * time.Millisecond, 6 * time.Second, 36 * time.Second}
		if !slices.Equal(checks, want) {
			t.Errorf("reads at %v, want %v", checks, want)
		}
	})
}

// TestWatchSeesTheReferenceLayout edits files below a symbolic link in place, and replaces the link.
func TestWatchSeesTheReferenceLayout(t *testing.T) {
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

// A poll reads a large configuration every 30 s. It must not grow the heap by the size of the files.
func TestAPollNeedsLittleMemory(t *testing.T) {
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
		t.Errorf("a poll of 8 MiB of files allocated %d KiB; want at most %d KiB", is>>10, 1<<10)
	}
}
