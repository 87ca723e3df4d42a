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
	// quiet is how long no event must happen before the files are read: an editor or a kubelet makes several changes
	// for one update.
	quiet = 100 * time.Millisecond
	// patience is the longest delay while files keep changing.
	patience = time.Second
	// poll is how often the files are read without an event, for file systems that report none.
	poll = 30 * time.Second
)

// Watcher watches files.
type Watcher struct {
	paths []string
	last  [sha256.Size]byte
}

// NewWatcher records the present content of the files of paths. Make it before the first Load, so that no change is
// missed.
func NewWatcher(paths []string) *Watcher { return &Watcher{paths, digest(paths)} }

// Run calls changed whenever the content of the files has changed. It returns when ctx ends, and leaves no goroutine
// behind. If the system cannot watch files, it reads them every 30 s.
//
// It watches the folders of the files. So it notices replaced files, as most editors write them, and replaced
// symbolic links, as Kubernetes makes them for a ConfigMap.
func (watcher *Watcher) Run(ctx context.Context, changed func()) {
	paths := watcher.paths
	check := func() {
		if now := digest(paths); now != watcher.last {
			watcher.last = now
			changed()
		}
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		settle(ctx, nil, check)
		return
	}
	defer w.Close()
	events := make(chan struct{}, 1)
	follow := func() { watchFolders(w, folders(paths)) }
	follow()
	events <- struct{}{} // a change after the first read counts as an event
	done := make(chan struct{})
	go func() {
		defer close(done)
		drain(w, concerns(paths), events)
	}()
	settle(ctx, events, func() {
		follow() // a folder may have been replaced
		check()
	})
	w.Close()
	<-done
}

// drain sends an event for each relevant change, until w is closed. Errors count as events, because after an overflow
// the changes are unknown.
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
		default: // an event is pending already
		}
	}
}

// concerns returns a function that reports whether a change of a file or folder may affect the configuration, so that
// a busy folder costs nothing. Relevant are *.yaml and *.yml, the "..data" of a ConfigMap, each part of a path, and
// any name if a path ends in **.
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

// settle calls check when there was no event for a while (quiet), when events continue for too long (patience), and at
// every poll. It returns when ctx ends.
func settle(ctx context.Context, events <-chan struct{}, check func()) {
	var first time.Time // time of the first unhandled event
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
			timer.Reset(min(quiet, patience-time.Since(first)))
		case <-timer.C:
			first = time.Time{}
			check()
			timer.Reset(poll)
		}
	}
}

// digest returns a hash of all that Load would read, and of all read errors. It does not hold whole files in memory: the
// files of a large configuration would add tens of MiB to the heap at each poll.
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

// folders returns the folders in which a change can affect paths: the folder of each file, each folder and its
// parent, all folders below a **, and those of the symbolic links on the way.
func folders(paths []string) (list []string) {
	add := func(folder string) {
		if real, err := filepath.EvalSymlinks(folder); err == nil && !slices.Contains(list, real) {
			list = append(list, real)
		}
	}
	for _, path := range paths {
		if root := Root(path); root != path {
			path = root
			names, _ := walk(root) // Load reports the error
			for _, name := range names {
				add(filepath.Dir(name))
			}
		}
		path, err := filepath.Abs(path)
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
	return list
}

// watchFolders makes w watch exactly list. Folders that cannot be watched are read by polling.
func watchFolders(w *fsnotify.Watcher, list []string) {
	for _, folder := range w.WatchList() {
		if !slices.Contains(list, folder) {
			_ = w.Remove(folder) // the folder may have been removed
		}
	}
	for _, folder := range list {
		_ = w.Add(folder) // even if it is watched: another folder may have its name now
	}
}
