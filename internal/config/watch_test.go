package config

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// watched runs a Watcher of paths, in a bubble of synctest. load loads the files, as each change does. noticed waits for
// several polls, and fails the test unless there was one change since the last call, or none.
func watched(t *testing.T, paths ...string) (noticed func(subject string, want int), load func()) {
	t.Helper()
	var changes atomic.Int32
	w := NewWatcher(paths)
	load = func() { w.Load(Options{}) }
	load()
	go w.Run(t.Context(), func() {
		changes.Add(1)
		load()
	})
	return func(subject string, want int) {
		t.Helper()
		time.Sleep(10 * poll)
		synctest.Wait()
		if got := changes.Swap(0); int(got) != want {
			t.Errorf("%s: onChange was called %d times; want %d", subject, got, want)
		}
	}, load
}

// write gives the file the time of the bubble.
func write(t *testing.T, name, content string) {
	t.Helper()
	must(t, os.WriteFile(name, []byte(content), 0o600))
	must(t, os.Chtimes(name, time.Now(), time.Now()))
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func TestWatchSeesEditsOfAFolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		a, b := filepath.Join(folder, "a.yaml"), filepath.Join(folder, "b.yaml")
		write(t, a, "domain: a")
		noticed, load := watched(t, folder, filepath.Join(folder, "nowhere"))
		noticed("no edit", 0)
		write(t, a, "domain: b")
		noticed("an edit in place", 1)
		write(t, a, "domain: b")
		noticed("the same content written again", 0)
		write(t, a, "domain: e")
		must(t, os.Chtimes(a, time.Unix(1, 0), time.Unix(1, 0)))
		noticed("an edit of the same size, long ago", 1)
		write(t, b, "domain: c")
		noticed("a new file", 1)
		write(t, filepath.Join(folder, ".b.yaml.swp"), "x")
		write(t, filepath.Join(folder, "notes.txt"), "x")
		noticed("files that are no configuration", 0)
		write(t, filepath.Join(folder, "b.yaml~"), "domain: d")
		must(t, os.Rename(filepath.Join(folder, "b.yaml~"), b))
		noticed("a file put in another's place", 1)
		must(t, os.Rename(b, filepath.Join(folder, "c.yaml")))
		noticed("a file with a new name and the same content, whose limits have new places", 1)
		must(t, os.Remove(filepath.Join(folder, "c.yaml")))
		noticed("a file removed", 1)
		write(t, a, "")
		load() // a SIGHUP, or the change of another file
		write(t, a, "domain: e")
		noticed("the content before a load that has read another one, such as a part of this one", 1)
	})
}

func TestWatchNoticesAnUpdatedConfigMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		file := filepath.Join(folder, "a.yaml")
		version := func(name, content string) {
			must(t, os.Mkdir(filepath.Join(folder, name), 0o700))
			write(t, filepath.Join(folder, name, "a.yaml"), content)
			must(t, os.Symlink(name, filepath.Join(folder, "..data_tmp")))
			must(t, os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, "..data")))
		}
		version("..2026_01", "domain: a")
		must(t, os.Symlink(filepath.Join("..data", "a.yaml"), file))
		inFolder, _ := watched(t, folder)
		inFile, _ := watched(t, file)
		for n, before := range []string{"..2026_01", "..2026_02"} {
			domain := fmt.Sprint("b", n)
			version(fmt.Sprint("..2026_0", n+2), "domain: "+domain)
			inFolder("a turn, seen in the folder", 1)
			inFile("a turn, seen in the file", 1)
			must(t, os.RemoveAll(filepath.Join(folder, before)))
			for _, path := range []string{folder, file} {
				if s, problems := Load([]string{path}, Options{}); problems.Bad() || s.Domains[domain] == nil {
					t.Errorf("loaded %v, %v; want no mistakes, and the domain %s", s, problems, domain)
				}
			}
		}
	})
}

// Some file systems keep the times of files in whole seconds.
func TestWatchSeesASecondWriteOfTheSameTimeAndSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name, second := filepath.Join(t.TempDir(), "a.yaml"), time.Now()
		write(t, name, "domain: a")
		noticed, _ := watched(t, name)
		time.Sleep(700 * time.Millisecond) // the first read
		write(t, name, "domain: b")
		must(t, os.Chtimes(name, second, second))
		noticed("a second write", 1)
	})
}

// Changes that never stop are read all the same, when quietTries have passed.
func TestFilesAreReadWhenChangesStopOrAfterTheLongestWait(t *testing.T) {
	folder := t.TempDir()
	name := filepath.Join(folder, "a.yaml")
	write(t, name, "domain: a")
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		at := func(d time.Duration) { time.Sleep(time.Until(start.Add(d))) }
		var reads []time.Duration
		w := NewWatcher([]string{folder})
		w.Load(Options{})
		go w.Run(t.Context(), func() {
			reads = append(reads, time.Since(start))
			w.Load(Options{})
		})
		at(2*time.Second - time.Millisecond) // before a poll: polls are at 0.5 s, then after quiet at 1.1, 1.6 and 2.1 s
		write(t, name, "domain: once")
		for d := 5 * time.Second; d < 7*time.Second; d += 90 * time.Millisecond {
			at(d)
			write(t, name, "domain: a #"+strings.Repeat("#", int(d/time.Millisecond)))
		}
		at(time.Minute)
		synctest.Wait()
		if len(reads) < 3 || reads[0] != 2200*time.Millisecond || reads[1] < 6*time.Second || reads[1] > 6700*time.Millisecond || len(reads) > 4 {
			t.Errorf("reads at %v; want one at 2.2 s, one while the changes go on, and one or two after them", reads)
		}
	})
}

// TestWatchSeesTheReferenceLayout replaces a symbolic link, and edits files below it in place. The files of both folders have
// the same time and size, as those of images and of reproducible archives may.
func TestWatchSeesTheReferenceLayout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		for _, version := range []string{"v1", "v2"} {
			must(t, os.MkdirAll(filepath.Join(root, version, "config", "sub"), 0o700))
			name := filepath.Join(root, version, "config", "sub", "limits")
			write(t, name, "domain: "+version)
			must(t, os.Chtimes(name, time.Unix(1, 0), time.Unix(1, 0)))
		}
		current := filepath.Join(root, "current")
		must(t, os.Symlink("v1", current))
		noticed, _ := watched(t, filepath.Join(current, "config", "**"))
		noticed("no edit", 0)
		must(t, os.Symlink("v2", current+".new"))
		must(t, os.Rename(current+".new", current))
		noticed("the link turned", 1)
		write(t, filepath.Join(current, "config", "sub", "limits"), "domain: edited")
		noticed("an edit in place", 1)
		write(t, filepath.Join(root, "v2", "config", "another"), "domain: another")
		noticed("a new file without an extension", 1)
	})
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
