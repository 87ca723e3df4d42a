package config

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

const (
	// poll is the interval at which the names, identities, sizes and times of the files are compared.
	poll = 500 * time.Millisecond
	// The files are read when nothing has changed for the time quiet. An editor or a kubelet makes several changes for
	// one update. While files keep changing, they are read after quietTries times that.
	quiet      = 100 * time.Millisecond
	quietTries = 10
)

// Watcher loads configuration files, and reports changes since.
type Watcher struct {
	paths []string
	// last is what Load has read, which another process may have been writing. So files that have since become what they
	// were before that Load have changed, too.
	last atomic.Pointer[lastRead]
}

type lastRead struct {
	digest [sha256.Size]byte
	failed bool // a file could not be read, such as for want of a file descriptor
}

// NewWatcher makes a Watcher of paths. Call Load before Run.
func NewWatcher(paths []string) *Watcher { return &Watcher{paths: paths} }

// Load does what the function Load does.
func (w *Watcher) Load(o Options) (*limiter.Snapshot, Problems) {
	files, problems := Read(w.paths)
	h := sha256.New()
	for _, f := range files {
		sum := sha256.Sum256(f.Data)
		addFile(h, f.Name, sum[:])
	}
	fmt.Fprint(h, problems)
	w.last.Store(&lastRead{[sha256.Size]byte(h.Sum(nil)), len(problems) > 0})
	return compileFiles(files, problems, o)
}

// Run calls onChange whenever the files have other names, other content, or other errors when they are read, than at the
// last Load. onChange must cause a Load, and must not wait for it. Run returns when ctx ends. It polls, which works on
// every file system, and for replaced files, folders and symbolic links alike.
func (w *Watcher) Run(ctx context.Context, onChange func()) {
	for seen := []seenFile(nil); sleep(ctx, poll); {
		now := listing(w.paths)
		if slices.EqualFunc(now, seen, seenFile.equals) && !slices.ContainsFunc(now, seenFile.isNew) && !w.last.Load().failed {
			continue
		}
		for range quietTries {
			if seen = now; !sleep(ctx, quiet) {
				return
			}
			if now = listing(w.paths); slices.EqualFunc(now, seen, seenFile.equals) {
				break
			}
		}
		if digest(w.paths) != w.last.Load().digest {
			onChange()
		}
	}
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// seenFile is a file that Load would read, or a path that cannot be listed.
type seenFile struct {
	name    string
	info    os.FileInfo // nil if the file cannot be found
	problem string
}

func (f seenFile) equals(g seenFile) bool {
	if f.name != g.name || f.problem != g.problem || (f.info == nil) != (g.info == nil) {
		return false
	}
	return f.info == nil || f.info.Size() == g.info.Size() && f.info.ModTime().Equal(g.info.ModTime()) && f.info.Mode() == g.info.Mode() && os.SameFile(f.info, g.info)
}

// isNew reports whether the file was written so lately that another write of the same size may have left its time as it
// was: some file systems keep whole seconds.
func (f seenFile) isNew() bool {
	return f.info != nil && time.Since(f.info.ModTime()).Abs() < 2*time.Second
}

func listing(paths []string) (all []seenFile) {
	for _, path := range paths {
		names, err := list(path)
		if err != nil {
			all = append(all, seenFile{name: path, problem: err.Error()})
		}
		for _, name := range names {
			info, _ := os.Stat(name) // a broken link has no info
			all = append(all, seenFile{name: name, info: info})
		}
	}
	return all
}

// digest returns a hash of everything that Load would read, and of all read errors. It never holds a whole
// file in memory, because the files of a large configuration would add tens of MiB to the heap.
func digest(paths []string) [sha256.Size]byte {
	h, of, piece := sha256.New(), sha256.New(), make([]byte, 32<<10)
	problems := eachFile(paths, func(name string, content io.Reader) error {
		of.Reset()
		_, err := io.CopyBuffer(of, content, piece)
		if err == nil {
			addFile(h, name, of.Sum(nil))
		}
		return err
	})
	fmt.Fprint(h, problems)
	return [sha256.Size]byte(h.Sum(nil))
}

func addFile(h io.Writer, name string, sum []byte) { fmt.Fprintf(h, "%q %x\n", name, sum) }
