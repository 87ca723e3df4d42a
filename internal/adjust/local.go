package adjust

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Local is a Keeper. It keeps adjustments in this process and, with a folder, in files.
type Local struct {
	chain *Chain
	clock func() time.Time
	dir   string // "" means in memory only

	set atomic.Pointer[Set] // replaced under mu

	mu      sync.Mutex // guards the fields after it
	from    Checkpoint // the checkpoint that replaces the trimmed entries
	entries []*Entry   // the oldest first
	damaged bool       // the audit file may end in an incomplete line
	failed  error      // the error of the last write, or nil
	watch   func(*Set)
}

// The files of a folder. The audit is written before the adjustments. So after a crash between the two writes, its
// newest entry completes the adjustments.
const (
	setFile   = "adjustments.json"
	auditFile = "adjustments-audit.jsonl"
)

// NewLocal returns a Local. With an empty dir, a restart loses all adjustments. An error names the file that cannot
// be used.
func NewLocal(dir string, chain *Chain, clock func() time.Time) (*Local, error) {
	l := &Local{chain: chain, clock: clock, dir: dir}
	l.set.Store(NewSet(Head{}, nil))
	if dir == "" {
		return l, nil
	}
	set, err := ReadSet(dir)
	if err != nil {
		return nil, err
	}
	if err := l.readAudit(); err != nil {
		return nil, err
	}
	for _, e := range l.entries {
		if e.Version > set.Head.Version {
			set = set.With(e)
		}
	}
	l.set.Store(set)
	return l, nil
}

// Watch calls observe with the present Set, and then with each new one. It replaces the function of an earlier call.
// l.mu is held during the call, so observe may call only Set and Now.
func (l *Local) Watch(observe func(*Set)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch = observe
	observe(l.Set())
}

func (l *Local) Set() *Set { return l.set.Load() }

func (l *Local) Now() algorithms.Micros { return algorithms.Micros(l.clock().UnixMicro()) }

func (l *Local) Status() Status {
	place := "this process, until it ends"
	if l.dir != "" {
		place = "folder " + l.dir
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return Status{Place: place, Seen: l.clock(), Persistent: l.dir != "", Err: l.failed}
}

func (l *Local) Change(_ context.Context, o Operation) (*Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Now()
	set := l.Set()
	e, err := o.Entry(l.chain, set, now)
	if err != nil {
		return nil, err
	}
	set = set.Without(set.Expired(now, MaxAdjustments)).With(e)
	if err := l.keep(set, e); err != nil {
		return nil, err
	}
	l.set.Store(set)
	if l.watch != nil {
		l.watch(set)
	}
	return e, nil
}

// keep adds e to the audit and writes set. The caller holds l.mu. A change is complete when it is in the audit, because
// set can be rebuilt from the audit.
func (l *Local) keep(set *Set, e *Entry) error {
	entries, from := append(l.entries, e), l.from
	whole := l.damaged
	if TrimTo(from.Version, e.Version) > 0 {
		last := entries[trimBy-1]
		from, entries, whole = l.chain.Checkpoint(Head{last.Version, last.MAC}), slices.Clone(entries[trimBy:]), true
	}
	if l.dir != "" {
		if whole {
			l.failed = writeFile(l.dir, auditFile, auditText(from, entries))
		} else {
			l.failed = appendFile(filepath.Join(l.dir, auditFile), line(e))
		}
		if l.damaged = l.failed != nil; l.damaged {
			return fmt.Errorf("keep the audit of adjustments: %w", l.failed)
		}
		l.failed = WriteSet(l.dir, set)
	}
	l.from, l.entries = from, entries
	return nil
}

func (l *Local) Audit(_ context.Context, before uint64, n int) (list []*Entry, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range slices.Backward(l.entries) {
		if len(list) == n {
			break
		}
		if before == 0 || e.Version < before {
			list = append(list, e)
		}
	}
	return list, nil
}

func (l *Local) Verify(context.Context) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries), l.chain.Broken(l.from, l.entries, l.Set().Head)
}

// auditLine is a line of the audit file: an entry or, at the start, the checkpoint.
type auditLine struct {
	Checkpoint *Checkpoint     `json:"checkpoint,omitempty"`
	MAC        string          `json:"mac,omitempty"`
	Entry      json.RawMessage `json:"entry,omitempty"`
}

func line(e *Entry) []byte {
	text, _ := json.Marshal(auditLine{MAC: e.MAC, Entry: e.Body}) // Body is JSON
	return append(text, '\n')
}

func auditText(from Checkpoint, entries []*Entry) []byte {
	text, _ := json.Marshal(auditLine{Checkpoint: &from}) // encoding such values cannot fail
	text = append(text, '\n')
	for _, e := range entries {
		text = append(text, line(e)...)
	}
	return text
}

// readAudit reads the audit file, if it exists. It drops an incomplete last line that a crash has left. No operator got
// a confirmation of that change.
func (l *Local) readAudit() error {
	path := filepath.Join(l.dir, auditFile)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the audit of adjustments: %w", err)
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	if whole < len(text) {
		if err := os.Truncate(path, int64(whole)); err != nil {
			return fmt.Errorf("remove the unfinished last line of the audit of adjustments: %w", err)
		}
	}
	lines := bufio.NewScanner(bytes.NewReader(text[:whole]))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var one auditLine
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return fmt.Errorf("%s:%d: this line is not an entry of an audit; move the file away to start a new one: %w", path, n, err)
		}
		if one.Checkpoint != nil {
			l.from = *one.Checkpoint
			continue
		}
		e, err := ParseEntry(one.Entry, one.MAC)
		if err != nil {
			return fmt.Errorf("%s:%d: %w; move the file away to start a new one", path, n, err)
		}
		l.entries = append(l.entries, e)
	}
	return lines.Err()
}

type setJSON struct {
	Head        Head          `json:"head"`
	Adjustments []*Adjustment `json:"adjustments"`
}

// WriteSet writes set to a file in a folder. After a crash the file has either set or its former content.
func WriteSet(dir string, set *Set) error {
	text, err := json.MarshalIndent(setJSON{set.Head, set.All()}, "", " ")
	if err != nil {
		return err
	}
	return writeFile(dir, setFile, append(text, '\n'))
}

// ReadSet returns the Set that WriteSet wrote to a folder, or an empty one. If an adjustment in the file is not
// valid, ReadSet returns an error and no Set. Only this program writes the file, so the file is then damaged.
func ReadSet(dir string) (*Set, error) {
	path := filepath.Join(dir, setFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return NewSet(Head{}, nil), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the adjustments that were kept: %w", err)
	}
	var f setJSON
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("%s: the file does not contain adjustments; remove it to start without any: %w", path, err)
	}
	for _, a := range f.Adjustments {
		if err := a.Check(); err != nil {
			return nil, fmt.Errorf("%s: adjustment %s: %w; remove the file to start without any", path, a.ID, err)
		}
	}
	return NewSet(f.Head, f.Adjustments), nil
}

// writeFile replaces a file atomically, so that a crash leaves the old content or the new one.
func writeFile(dir, name string, text []byte) error {
	f, err := os.CreateTemp(dir, name+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename, because the file has another name
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, name))
}

// appendFile adds text to a file that only its owner may read, because keys may be personal data.
func appendFile(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
