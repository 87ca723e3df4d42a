package config

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// The files are read when quietDelay has passed without an event. An editor or a kubelet makes several changes
	// for one update.
	quietDelay = 100 * time.Millisecond
	// maxDelay is the longest delay of a read while files keep changing.
	maxDelay = time.Second
	// poll is the interval at which the files are read without an event, because some file systems report no
	// events.
	poll = 30 * time.Second
)

// Watcher reports changes of configuration files.
type Watcher struct {
	paths []string
	last  [sha256.Size]byte
}

// NewWatcher records the current content of the files of paths. Call it before the first Load, so that no
// change is missed.
func NewWatcher(paths []string) *Watcher { return &Watcher{paths, digest(paths)} }

// Run calls onChange whenever the files have other names, other content, or other errors when they are read. It
// returns after ctx and all its goroutines have ended. After 30 s without an event, Run reads the files again, because
// some file systems cannot be watched.
//
// Run watches the folders of the files. So it notices replaced files, as most editors write them, and
// replaced symbolic links, which Kubernetes uses for a ConfigMap.
func (watcher *Watcher) Run(ctx context.Context, onChange func()) {
	paths := watcher.paths
	check := func() {
		if now := digest(paths); now != watcher.last {
			watcher.last = now
			onChange()
		}
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		debounce(ctx, nil, check)
		return
	}
	defer w.Close()
	events := make(chan struct{}, 1)
	follow := func() { watchFolders(w, folders(paths)) }
	follow()
	events <- struct{}{} // the first event, in case a file changed before the folders were watched
	done := make(chan struct{})
	go func() {
		defer close(done)
		drain(w, concerns(paths), events)
	}()
	debounce(ctx, events, func() {
		follow() // watches the folders again, because one may have been replaced
		check()
	})
	w.Close()
	<-done
}

// drain sends an event for each relevant change, until w is closed. An error counts as an event, because
// after an overflow the changes are unknown.
func drain(w *fsnotify.Watcher, concerns func(name string) bool, events chan<- struct{}) {
	for {
		select {
		case e, open := <-w.Events:
			if !open {
				return
			}
			if !concerns(e.Name) {
				continue
			}
		case _, open := <-w.Errors:
			if !open {
				return
			}
		}
		select {
		case events <- struct{}{}:
		default: // another event is already pending
		}
	}
}

// concerns returns a function that reports whether a change of a file or folder may affect the configuration.
// Other changes are ignored, so that a busy folder costs nothing. Relevant names are *.yaml and *.yml, those that
// start with ".." such as the "..data" of a ConfigMap, each part of a path and, if a path ends in **, any name.
func concerns(paths []string) func(name string) bool {
	parts := map[string]bool{}
	all := false
	for _, path := range paths {
		all = all || Root(path) != path
		for part := range strings.SplitSeq(filepath.ToSlash(path), "/") {
			parts[part] = true
		}
	}
	return func(name string) bool {
		base := filepath.Base(name)
		return all || parts[base] || hasExtension(base) || strings.HasPrefix(base, "..")
	}
}

// debounce calls check when the time quietDelay has passed since the last event, when events have continued for the
// time maxDelay, and when the time poll has passed without an event. It returns when ctx ends.
func debounce(ctx context.Context, events <-chan struct{}, check func()) {
	var first time.Time // when the first unhandled event occurred
	timer := time.NewTimer(poll)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			if first.IsZero() {
				first = time.Now()
			}
			timer.Reset(min(quietDelay, maxDelay-time.Since(first)))
		case <-timer.C:
			first = time.Time{}
			check()
			timer.Reset(poll)
		}
	}
}

// digest returns a hash of everything that Load would read, and of all read errors. It never holds a whole
// file in memory, because the files of a large configuration would add tens of MiB to the heap at each poll.
func digest(paths []string) [sha256.Size]byte {
	h, of, piece := sha256.New(), sha256.New(), make([]byte, 32<<10)
	problems := eachFile(paths, func(name string, content io.Reader) error {
		of.Reset()
		_, err := io.CopyBuffer(of, content, piece)
		fmt.Fprintf(h, "%q %x\n", name, of.Sum(nil))
		return err
	})
	fmt.Fprint(h, problems)
	return [sha256.Size]byte(h.Sum(nil))
}

// folders returns the folders in which a change can affect paths: the folder of each file, each folder and
// its parent, all folders below a ** that contain files, the folders that contain symbolic links of these paths, and
// those that contain the targets of links to files.
func folders(paths []string) (all []string) {
	add := func(folder string) {
		if real, err := filepath.EvalSymlinks(folder); err == nil && !slices.Contains(all, real) {
			all = append(all, real)
		}
	}
	addTarget := func(name string) {
		if info, err := os.Lstat(name); err != nil || info.Mode()&os.ModeSymlink == 0 {
			return
		}
		if real, err := filepath.EvalSymlinks(name); err == nil {
			add(filepath.Dir(real))
		}
	}
	for _, path := range paths {
		names, _ := list(path) // Load reports the error
		for _, name := range names {
			if Root(path) != path {
				add(filepath.Dir(name))
			}
			addTarget(name)
		}
		path, err := filepath.Abs(Root(path))
		if err != nil {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			add(path)
		}
		add(filepath.Dir(path))
		if real, err := filepath.EvalSymlinks(path); err == nil {
			add(filepath.Dir(real))
		}
		for at := path; at != filepath.Dir(at); at = filepath.Dir(at) {
			if info, err := os.Lstat(at); err == nil && info.Mode()&os.ModeSymlink != 0 {
				add(filepath.Dir(at))
			}
		}
	}
	return all
}

// watchFolders makes w watch exactly the folders in list. Files in folders that cannot be watched are read by
// polling.
func watchFolders(w *fsnotify.Watcher, list []string) {
	for _, folder := range w.WatchList() {
		if !slices.Contains(list, folder) {
			_ = w.Remove(folder) // fails if the folder has been removed, which does no harm
		}
	}
	for _, folder := range list {
		_ = w.Add(folder) // also for a watched folder, because another folder may have taken its name
	}
}
