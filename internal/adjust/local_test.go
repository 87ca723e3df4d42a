package adjust

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestDamagedFilesAreReported(t *testing.T) {
	ctx := t.Context()
	for _, test := range []struct {
		name, file string
		damage     func(text string) string
		start      string // the error of the start
		verify     string // the error of Verify, if the start succeeds
	}{
		{"as they were written", auditFile, func(s string) string { return s }, "", ""},
		{"adjustments that are not JSON", setFile, func(s string) string { return s[:len(s)/2] }, "the file does not contain adjustments; remove it", ""},
		{"a line that is not JSON", auditFile, func(s string) string { return strings.Replace(s, "\n", "\nx\n", 1) }, ":2: this line is not an entry", ""},
		{"a line without an entry", auditFile, func(s string) string { return strings.Replace(s, "\n", "\n{}\n", 1) }, ":2: read an entry of the audit: ", ""},
		{"an entry of another form", auditFile, func(s string) string { return s + `{"mac": "ab", "entry": [1]}` + "\n" }, ":3: read an entry of the audit: ", ""},
		{"an entry with another author", auditFile, func(s string) string { return strings.Replace(s, `"ann"`, `"eve"`, 1) }, "", "entry 1 was changed"},
		{"a line of more than 1 MiB", auditFile, func(s string) string { return s + strings.Repeat(" ", 1<<20) + "\n" }, "token too long", ""},
		{"a removed entry", auditFile, func(s string) string { return s[strings.Index(s, "\n")+1:] }, "", "entry 1 is missing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, dir := newClock(), t.TempDir()
			s, _ := service(t, dir, c)
			for _, change := range []Change{{Factor: 2000}, {Block: true}} {
				if _, _, err := s.Set(ctx, bob(change)); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, test.file)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(test.damage(string(text))), 0o600); err != nil {
				t.Fatal(err)
			}
			k, err := NewLocal(dir, NewChain(nil), c.Now)
			if !contains(err, test.start) {
				t.Fatalf("start: got %v; want an error with %q", err, test.start)
			}
			if err != nil {
				return
			}
			if n, err := k.Verify(ctx); !contains(err, test.verify) {
				t.Errorf("verified %d, %v; want an error with %q", n, err, test.verify)
			}
		})
	}
}

// contains reports whether the text of err contains want or, if want is empty, whether err is nil.
func contains(err error, want string) bool {
	return (err == nil) == (want == "") && (err == nil || strings.Contains(err.Error(), want))
}

// The longest lines of the audit, with an adjustment that replaces another one, are read at the next start.
func TestTheLongestAdjustmentsAreReadAfterARestart(t *testing.T) {
	c, dir := newClock(), t.TempDir()
	s, _ := service(t, dir, c)
	p := bob(Change{Block: true})
	p.Target.Key = []string{strings.Repeat("<", maxKeyBytes)} // JSON has six bytes for this character
	p.Author, p.Reason = strings.Repeat("<", maxAuthor), strings.Repeat("<", maxReason)
	for range 2 {
		if _, _, err := s.Set(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	again, _ := service(t, dir, c)
	if n, err := again.Verify(t.Context()); n != 2 || err != nil {
		t.Errorf("verified %d, %v; want 2 and no error", n, err)
	}
}

func TestTheStatusNamesThePlace(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{"": "this process, until it ends", dir: "folder " + dir} {
		_, k := service(t, path, newClock())
		if st := k.Status(); st.Place != want || st.Persistent != (path != "") || st.Err != nil || !st.Seen.Equal(newClock().now) {
			t.Errorf("got %+v; want %q, and persistent %v", st, want, path != "")
		}
	}
}

// An error of the file system is reported, so that a change is not confirmed without being kept.
func TestErrorsOfTheFileSystemAreReported(t *testing.T) {
	for name, want := range map[string]string{setFile: "read the adjustments that were kept", auditFile: "read the audit of adjustments"} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := NewLocal(dir, NewChain(nil), newClock().Now); !contains(err, want) {
			t.Errorf("a folder in place of %s: got %v; want an error with %q", name, err, want)
		}
	}
	if err := WriteSet(filepath.Join(t.TempDir(), "missing"), NewSet(Head{}, nil)); err == nil {
		t.Error("a set was written to a folder that does not exist; want an error")
	}
	const full = "/dev/full" // Linux: each write fails as on a full disk
	if runtime.GOOS != "linux" {
		t.Skipf("%s has no %s", runtime.GOOS, full)
	}
	if err := appendFile(full, []byte("x")); err == nil {
		t.Error("a line was appended on a full disk; want an error")
	}
}

func TestAFolderKeepsAdjustmentsAndTheirAudit(t *testing.T) {
	ctx, c, dir := context.Background(), newClock(), t.TempDir()
	s, _ := service(t, dir, c)
	hostile := Proposal{
		Target: Target{Limit: "send_message", Key: []string{"\xff\x00,\n" + strings.Repeat("k", 4000)}},
		Change: Change{Block: true}, For: time.Hour, Author: "ann", Reason: "attack",
	}
	empty := bob(Change{Factor: 1500})
	empty.Target.Key = []string{""}
	for _, p := range []Proposal{hostile, empty, bob(Change{Rate: number(7), Period: 2 * minute})} {
		if _, _, err := s.Set(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	again, k := service(t, dir, c)
	if d := Differences(s.keeper.Set(), k.Set()); len(d) > 0 || k.Set().Len() != 3 || k.Set().Head != s.keeper.Set().Head {
		t.Fatalf("after a restart: %d adjustments, of which %+v differ; want 3, and none", k.Set().Len(), d)
	}
	if n, err := again.Verify(ctx); n != 3 || err != nil {
		t.Errorf("verified %d, %v; want 3 and no error", n, err)
	}
	// These are the files after crashes: the adjustments were not written, and the last line of the audit is
	// incomplete.
	if err := os.Remove(filepath.Join(dir, setFile)); err != nil {
		t.Fatal(err)
	}
	if err := appendFile(filepath.Join(dir, auditFile), []byte(`{"mac":"ab","entr`)); err != nil {
		t.Fatal(err)
	}
	again, k = service(t, dir, c)
	if k.Set().Len() != 3 {
		t.Errorf("after a crash: %+v; want 3 adjustments", k.Set().All())
	}
	if _, _, err := again.Set(ctx, bob(Change{Block: true})); err != nil {
		t.Fatal(err)
	}
	if n, err := again.Verify(ctx); n != 4 || err != nil {
		t.Errorf("verified %d, %v; want 4 and no error", n, err)
	}
	again, _ = service(t, dir, c) // the new entry is a line of its own
	if n, err := again.Verify(ctx); n != 4 || err != nil {
		t.Errorf("after a restart: verified %d, %v; want 4 and no error", n, err)
	}
	for _, name := range []string{setFile, auditFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v, %v; want a file that only its owner may read and write (0600)", name, info.Mode(), err)
		}
	}
}

func TestAChangeThatCannotBeWrittenIsNotMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, k := service(t, dir, newClock())
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Set(t.Context(), bob(Change{Block: true})); err == nil || k.Set().Len() != 0 || k.Status().Err == nil {
		t.Errorf("got the error %v and %d adjustments, status %v; want errors and no adjustment", err, k.Set().Len(), k.Status().Err)
	}
}

func TestAnInvalidAdjustmentInTheFileIsAnError(t *testing.T) {
	dir := t.TempDir()
	a := &Adjustment{ID: "a", Target: Target{Domain: "d", Limit: "l"}, Change: Change{Block: true}, Expires: 2, Author: "ann"} // without a reason
	if err := WriteSet(dir, NewSet(Head{Version: 1}, []*Adjustment{a})); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSet(dir); err == nil || !strings.Contains(err.Error(), "reason is missing") {
		t.Errorf("got the error %v; want one that the reason is missing", err)
	}
}

// A failed write may leave an incomplete line in the audit file. So the next change must write the whole file again.
func TestAChangeThatIsNotInTheAuditIsNotMade(t *testing.T) {
	ctx, c, dir := context.Background(), newClock(), t.TempDir()
	s, k := service(t, dir, c)
	if _, _, err := s.Set(ctx, bob(Change{Factor: 2000})); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, auditFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil { // a folder in place of the file cannot be written
		t.Fatal(err)
	}
	if _, _, err := s.Set(ctx, bob(Change{Factor: 3000})); err == nil || s.Version() != 1 || k.Status().Err == nil {
		t.Errorf("version %d, the error %v, the status %v; want version 1, and an error in both", s.Version(), err, k.Status().Err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(text, []byte(`{"mac":"ab","en`)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Set(ctx, bob(Change{Factor: 3000})); err != nil || k.Status().Err != nil {
		t.Fatalf("got %v, and the status %v; want no error", err, k.Status().Err)
	}
	again, _ := service(t, dir, c)
	if n, err := again.Verify(ctx); n != 2 || err != nil {
		t.Errorf("verified %d, %v; want 2 and no error", n, err)
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*.json*.*")); err != nil || len(names) > 0 {
		t.Errorf("temporary files are left: %v, %v", names, err)
	}
}

func TestADamagedFileOfAdjustmentsIsRefused(t *testing.T) {
	dir, bad := t.TempDir(), valid()
	bad.Expires = bad.Created
	if err := WriteSet(dir, NewSet(Head{1, "mac"}, []*Adjustment{bad})); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSet(dir); err == nil || !strings.Contains(err.Error(), "in the past") {
		t.Errorf("got %v; want an error with \"in the past\"", err)
	}
}

func TestWatchStartsWithThePresentSet(t *testing.T) {
	s, k := service(t, "", newClock())
	var versions []uint64
	if _, _, err := s.Set(context.Background(), bob(Change{Factor: 2000})); err != nil {
		t.Fatal(err)
	}
	k.Watch(func(set *Set) { versions = append(versions, set.Head.Version) })
	if _, _, err := s.Set(context.Background(), bob(Change{Factor: 3000})); err != nil {
		t.Fatal(err)
	}
	if len(versions) != 2 || versions[0] != 1 || versions[1] != 2 {
		t.Errorf("the versions are %v, want 1 and 2", versions)
	}
}

func TestTheFileOfATrimmedAuditStartsWithACheckpoint(t *testing.T) {
	c, dir := newClock(), t.TempDir()
	s, k := service(t, dir, c)
	head := Head{}
	for range MaxEntries + trimBy {
		e := &Entry{At: 1, Operation: "o", Author: "ann", Reason: "launch", Target: "t"}
		if err := k.chain.Next(head, e); err != nil {
			t.Fatal(err)
		}
		k.entries, head = append(k.entries, e), Head{e.Version, e.MAC}
	}
	k.set.Store(NewSet(head, nil))
	if err := writeFile(dir, auditFile, auditText(k.from, k.entries)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Set(context.Background(), bob(Change{Factor: 2000})); err != nil {
		t.Fatal(err)
	}
	again, _ := service(t, dir, c)
	if n, err := again.Verify(context.Background()); n != MaxEntries+1 || err != nil {
		t.Errorf("verified %d entries, %v; want %d, and no error", n, err, MaxEntries+1)
	}
}

// The incomplete last line that a crash has left is removed, so that the next entry starts a line.
func TestAnIncompleteLineIsRemovedFromTheAudit(t *testing.T) {
	ctx, c, dir := context.Background(), newClock(), t.TempDir()
	s, _ := service(t, dir, c)
	for factor := range Factor(3) {
		if _, _, err := s.Set(ctx, bob(Change{Factor: 2000 + factor})); err != nil {
			t.Fatal(err)
		}
		if err := appendFile(filepath.Join(dir, auditFile), []byte(`{"mac":"ab","en`)); err != nil {
			t.Fatal(err)
		}
		s, _ = service(t, dir, c)
		if n, err := s.Verify(ctx); n != int(factor)+1 || err != nil {
			t.Errorf("verified %d, %v; want %d and no error", n, err, factor+1)
		}
	}
}

func TestAFailedWriteLeavesNoTemporaryFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, setFile), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(dir, setFile, []byte("{}")); err == nil {
		t.Error("a file replaced a folder; want an error")
	}
	if names, err := filepath.Glob(filepath.Join(dir, "*.*.*")); err != nil || len(names) > 0 {
		t.Errorf("the files %v are left, %v; want none", names, err)
	}
}
