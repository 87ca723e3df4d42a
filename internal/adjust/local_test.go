package adjust

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestDamagedFilesAreReported(t *testing.T) {
	ctx := t.Context()
	for _, test := range []struct {
		name, file string
		damage     func(text string) string
		start      string // the error of the start
		verify     string // otherwise the error of Verify
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

func TestEachOperationHasItsOwnID(t *testing.T) {
	s, _ := service(t, "", newClock())
	seen := map[string]bool{}
	for range 5 {
		if _, _, err := s.Set(t.Context(), bob(Change{Block: true})); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := s.Audit(t.Context(), 0, 10)
	for _, e := range entries {
		seen[e.Operation] = true
		if len(e.Operation) != 32 {
			t.Errorf("version %d: the operation is %q; want 32 hexadecimal digits", e.Version, e.Operation)
		}
	}
	if err != nil || len(seen) != 5 {
		t.Errorf("5 operations have %d IDs, %v; want 5", len(seen), err)
	}
}

// The keeper checks a change again, by its own clock. A change that is not valid makes no entry.
func TestAnEntryOfAnInvalidChangeIsAMistake(t *testing.T) {
	set, now := NewSet(Head{}, nil), algorithms.Micros(1000)
	after := valid()
	after.Expires = now
	o := Operation{ID: "o", Author: "ann", Reason: "launch", Target: after.ID, After: after}
	if e, err := o.Entry(NewChain(nil), set, now); e != nil || !contains(err, "in the past") {
		t.Errorf("got %+v, %v; want a mistake with \"in the past\"", e, err)
	}
	o.For = time.Hour
	if e, err := o.Entry(NewChain(nil), set, now); err != nil || e.After.Created != now || e.After.Expires != now+3600*algorithms.Second {
		t.Errorf("got %+v, %v; want an hour from now", e, err)
	}
}

func TestAnAdjustmentWithoutALimitIsShownAsIgnored(t *testing.T) {
	s, k := service(t, "", newClock())
	set, _, err := s.Set(t.Context(), bob(Change{Factor: 2000}))
	if err != nil {
		t.Fatal(err)
	}
	removed := policy(t, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 10, Period: minute})
	removed.Name = "another"
	for _, test := range []struct {
		limits         Limits
		words, ignored string
	}{
		{s.limits, set.Words, ""},
		{limits{removed}, "", `no limit is named "send_message"`},
	} {
		got, err := NewService(k, test.limits, nil).Find(set.ID)
		if err != nil || got.Words != test.words || got.Ignored != test.ignored {
			t.Errorf("got %q, ignored %q, %v; want %q, ignored %q", got.Words, got.Ignored, err, test.words, test.ignored)
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		var fields struct {
			ID, Words, Ignored string
			Left               int64 `json:"left_s"`
		}
		if err := json.Unmarshal(text, &fields); err != nil || fields.ID != set.ID || fields.Words != test.words || fields.Ignored != test.ignored || fields.Left != 7200 {
			t.Errorf("%s: %v; want the words %q, ignored %q, and 7,200 s left", text, err, test.words, test.ignored)
		}
	}
}

func TestTheBodyOfADeletionIsReadStrictly(t *testing.T) {
	version := uint64(7)
	for _, test := range []struct {
		text string
		want Removal
		err  string
	}{
		{`{"author": "ann", "reason": "over", "version": 7}`, Removal{"ann", "over", &version}, ""},
		{`{"author": "ann", "reason": "over"}`, Removal{"ann", "over", nil}, ""},
		{`{"author": "ann", "expect": 7}`, Removal{}, "JSON with author, reason and version"},
		{`{"author": "ann"} {}`, Removal{}, "text after the JSON object"},
		{``, Removal{}, "JSON with author, reason and version"},
	} {
		got, err := ParseRemoval([]byte(test.text))
		if !contains(err, test.err) || err == nil && (got.Author != test.want.Author || got.Reason != test.want.Reason || (got.Version == nil) != (test.want.Version == nil) || got.Version != nil && *got.Version != version) {
			t.Errorf("%s: got %+v, %v; want %+v and an error with %q", test.text, got, err, test.want, test.err)
		}
	}
}

func TestBothFormsOfAKeyAreRead(t *testing.T) {
	for text, want := range map[string]string{
		`{"limit": "l", "key": ["a", "b"]}`:           "a b",
		`{"limit": "l", "key_b64": ["YQ==", "/w=="]}`: "a \xff",
		`{"limit": "l"}`:                              "",
	} {
		if p, err := ParseProposal([]byte(text)); err != nil || strings.Join(p.Target.Key, " ") != want {
			t.Errorf("%s: got the key %q, %v; want %q", text, p.Target.Key, err, want)
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

// Sidecars of several versions share adjustments and their audit, so the IDs of targets and the signatures of entries must
// never change.
func TestIDsAndSignaturesStay(t *testing.T) {
	e := &Entry{At: 3, Operation: "o", Author: "ann", Reason: "launch", Target: "t"}
	if err := NewChain(nil).Next(Head{4, "mac"}, e); err != nil {
		t.Fatal(err)
	}
	one, all := Target{Domain: "edge", Limit: "l", Key: []string{"bob"}}, Target{Domain: "edge", Limit: "l", AllKeys: true}
	for _, test := range [][2]string{
		{one.ID(), "d806f031adf53f8dd0afcbcf"},
		{all.ID(), "4a534f8ae84cdbdd1f4f6e86"},
		{e.MAC, "f4ec69a8416765ea2c046cfcc1b8d62d03e3f9242a5b64f8c93748276d486424"},
	} {
		if test[0] != test[1] {
			t.Errorf("got %s, want %s", test[0], test[1])
		}
	}
}

// Only the holder of the secret can sign an entry.
func TestEachSecretSignsDifferently(t *testing.T) {
	seen := map[string]bool{}
	for _, secret := range []string{"", "a", "b"} {
		e := &Entry{Target: "t"}
		if err := NewChain([]byte(secret)).Next(Head{}, e); err != nil {
			t.Fatal(err)
		}
		seen[e.MAC] = true
	}
	if len(seen) != 3 {
		t.Errorf("3 secrets make %d signatures; want 3", len(seen))
	}
}

// An adjustment from Redis or a file that this version cannot understand is an error, not another adjustment.
func TestAnAdjustmentThatIsNotUnderstoodIsAnError(t *testing.T) {
	for field, want := range map[string]string{
		`"rate": 5`:                   "",
		`"rate": "five"`:              "cannot unmarshal",
		`"period": "soon"`:            "period: ",
		`"factor": 0`:                 "factor ",
		`"algorithm": "unknown"`:      `unknown algorithm "unknown"`,
		`"factor": 18446744073709552`: "factor ", // times 1,000 it is 384 more than 2^64
	} {
		var a Adjustment
		if err := json.Unmarshal([]byte(`{"domain": "edge", "limit": "l", `+field+`}`), &a); !contains(err, want) {
			t.Errorf("%s: got %+v, %v; want an error with %q", field, a, err, want)
		}
	}
}

func TestAnAdjustmentUntilATime(t *testing.T) {
	c := newClock()
	s, _ := service(t, "", c)
	p := bob(Change{Period: 2 * minute})
	p.For, p.Until, p.Expect = 0, c.now.Add(time.Hour), new(uint64(0))
	got, version, err := s.Set(t.Context(), p)
	if err != nil || version != 1 || got.Left != time.Hour || got.Expires != algorithms.Micros(p.Until.UnixMicro()) {
		t.Errorf("got %+v, version %d, %v; want an hour", got.Adjustment, version, err)
	}
	if _, _, err := s.Set(t.Context(), p); !errors.Is(err, ErrConflict) {
		t.Errorf("with the version before: got %v; want ErrConflict", err)
	}
	if _, err := s.Find("unknown"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown ID: got %v; want ErrNotFound", err)
	}
}

func TestAMistakeInAKeyNamesTheKeysOfTheLimit(t *testing.T) {
	named := &descriptors.Policy{Extras: &descriptors.Extras{Named: true}}
	whole, none := &descriptors.Policy{Whole: true}, &descriptors.Policy{}
	open := &descriptors.Policy{Open: []int{0, 1}, Extras: &descriptors.Extras{OpenKeys: []string{"user", "path"}}}
	for _, test := range []struct {
		policies []*descriptors.Policy
		want     string
	}{
		{[]*descriptors.Policy{named, open}, "the key has 3 values; a bucket of limit l is identified by 2 (user, path)"},
		{[]*descriptors.Policy{named, none}, "the key has 3 values; a bucket of limit l is identified by no value"},
		{[]*descriptors.Policy{named, whole}, "the key has 3 values; a bucket of limit l is identified by key,value,key,value… of the whole descriptor"},
	} {
		if err := reaches(&Target{Limit: "l", Key: make([]string, 3)}, test.policies); err == nil || err.Error() != test.want {
			t.Errorf("got %v; want %q", err, test.want)
		}
	}
	whole.Open = []int{0}
	if err := reaches(&Target{Limit: "l", Key: make([]string, 1)}, []*descriptors.Policy{whole}); err == nil {
		t.Error("one value identifies a whole descriptor; want an error, because keys and values alternate")
	}
}

// A block does not put a limit into the reference form. A factor may lower a rate to 1 unit, and not below.
func TestABlockAndTheLeastFactor(t *testing.T) {
	p := policy(t, algorithms.Spec{Kind: algorithms.FixedWindow, Rate: 10, Period: minute})
	if got, err := (&Adjustment{Change: Change{Block: true}}).Apply(p); err != nil || got.Reference {
		t.Errorf("a block: got the reference form %v, %v; want that of the limit", got.Reference, err)
	}
	if got, err := (&Adjustment{Change: Change{Factor: 100}}).Apply(p); err != nil || got.Limit.Rate != 1 {
		t.Errorf("a tenth of 10: got %+v, %v; want a rate of 1", got, err)
	}
	if _, err := (&Adjustment{Change: Change{Factor: 99}}).Apply(p); !contains(err, "is less than 1") {
		t.Errorf("less than a tenth of 10: got %v; want an error with \"is less than 1\"", err)
	}
}
