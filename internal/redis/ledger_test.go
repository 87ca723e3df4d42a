package redis

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

func openLedger(t *testing.T, url string) *Ledger {
	t.Helper()
	l, err := OpenLedger(Config{URL: url}, "adjustments")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestALedgerAgreesWithAModel makes random changes, some from a head that is not the newest, and reads from random heads.
func TestALedgerAgreesWithAModel(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3)
	for name, url := range map[string]string{"one server": "redis://" + redistest.Start(t).Addr, "a Cluster": cluster.URL()} {
		l, rng := openLedger(t, url), rand.New(rand.NewPCG(1, 2))
		var changes []string // the newest first
		heads, values := []string{""}, map[string]string{}
		redistest.Eventually(t, "the server answers", func() bool { _, _, _, _, err := l.Read(t.Context(), ""); return err == nil })
		for step := range 300 {
			from := heads[max(0, len(heads)-1-max(0, rng.IntN(8)-5))]
			id := fmt.Sprint("id", rng.IntN(5))
			sets := map[string]string{id: ""}
			if rng.IntN(3) > 0 {
				sets[id] = fmt.Sprint("value\r\n\x00\xff", step)
			}
			var added []string
			for range 1 + rng.IntN(2) {
				added = append(added, fmt.Sprintf("%d h%d\n{%d}", len(heads)+len(added), step, step))
			}
			to, _, _ := strings.Cut(added[len(added)-1], "\n")
			done, err := l.Write(t.Context(), from, to, added, sets)
			if err != nil || done != (from == heads[len(heads)-1]) {
				t.Fatalf("%s, step %d: written from %q: %t, %v; the head is %q", name, step, from, done, err, heads[len(heads)-1])
			}
			if done {
				for _, change := range added {
					changes = append([]string{change}, changes...)
					head, _, _ := strings.Cut(change, "\n")
					heads = append(heads, head)
				}
				maps.Copy(values, sets)
				maps.DeleteFunc(values, func(_, value string) bool { return value == "" })
			}
			back := min(len(heads)-1, rng.IntN(130))
			known, follows := heads[len(heads)-1-back], back > 0 && back < 100 && back < len(heads)-1
			if rng.IntN(5) == 0 {
				known, follows = known+"x", false // a change that the ledger does not have
			}
			head, now, got, all, err := l.Read(t.Context(), known)
			var wanted []string
			var wantedValues map[string]string
			switch {
			case known == head:
			case follows:
				wanted = changes[:back+1]
			default:
				wanted, wantedValues = changes, values
			}
			if err != nil || head != heads[len(heads)-1] || !slices.Equal(got, wanted) || (all == nil) != (wantedValues == nil) || !maps.Equal(all, wantedValues) {
				t.Fatalf("%s, step %d: from %q: head %q, %d changes, values %v, %v; want head %q, %d changes, values %v",
					name, step, known, head, len(got), all, err, heads[len(heads)-1], len(wanted), wantedValues)
			}
			if off := time.Until(time.UnixMicro(int64(now))).Abs(); off > time.Hour {
				t.Fatalf("%s: the time is off by %v", name, off)
			}
		}
		l.store.client.Del(t.Context(), l.set) // what a Cluster has lost if a master dies while the slot moves
		done, err := l.Write(t.Context(), "", "1 new", []string{"1 new\n{}"}, map[string]string{"id": "v"})
		if _, _, got, _, failed := l.Read(t.Context(), ""); !done || err != nil || failed != nil || !slices.Equal(got, []string{"1 new\n{}"}) {
			t.Errorf("%s, written again without its values: %t, %v; %v, changes %q; want only the new change", name, done, err, failed, got)
		}
	}
}

// writeFirst writes to an empty ledger. A slow server may have written all after the end of a call.
func writeFirst(t *testing.T, l *Ledger, head string, changes []string, values map[string]string) {
	t.Helper()
	redistest.Eventually(t, "all is written", func() bool {
		done, err := l.Write(t.Context(), "", head, changes, values)
		if done && err == nil {
			return true
		}
		at, _, _, _, err := l.Read(t.Context(), "")
		return err == nil && at == head
	})
}

// A large ledger is read in parts, and keeps a bounded number of changes.
func TestALargeLedger(t *testing.T) {
	t.Parallel()
	l := openLedger(t, "redis://"+redistest.Start(t).Addr)
	values, changes := map[string]string{}, []string{}
	for i := range 10_000 {
		values[fmt.Sprintf("%024d", i)] = strings.Repeat("v", 330)
	}
	for i := range ledgerChanges + 5 {
		changes = append(changes, fmt.Sprintf("%d h\n%s", i+1, strings.Repeat("c", 700)))
	}
	writeFirst(t, l, "1005 h", changes, values)
	head, _, kept, all, err := l.Read(t.Context(), "")
	if err != nil || head != "1005 h" || len(kept) != ledgerChanges || kept[0] != changes[len(changes)-1] || len(all) != 10_000 {
		t.Errorf("head %q, %d changes, %d values, %v; want 1005 h, the last %d, and 10,000", head, len(kept), len(all), err, ledgerChanges)
	}
}

// Values are read in parts while another process changes them. Each reading must have those of its head.
func TestValuesThatChangeWhileTheyAreRead(t *testing.T) {
	t.Parallel()
	const ids = 2000
	url := "redis://" + redistest.Start(t).Addr
	writer, reader := openLedger(t, url), openLedger(t, url)
	id := func(i int) string { return fmt.Sprint("id", i%ids) }
	all := map[string]string{}
	for i := range ids {
		all[id(i)] = fmt.Sprint(i, strings.Repeat(".", 100)) // long values, so that the hash has no compact form
	}
	head := fmt.Sprintf("%d h", ids)
	writeFirst(t, writer, head, []string{head + "\n{}"}, all)
	made := ids
	for range 20 {
		changed := make(chan error, 1)
		go func() {
			for range 3 { // fewer than Read makes attempts
				to := fmt.Sprintf("%d h", made+1)
				if done, err := writer.Write(t.Context(), head, to, []string{to + "\n{}"}, map[string]string{id(made): fmt.Sprint(made, "!")}); err != nil || !done {
					changed <- fmt.Errorf("change %d: %t, %w", made, done, err)
					return
				}
				head, made = to, made+1
			}
			changed <- nil
		}()
		at, _, _, values, err := reader.Read(t.Context(), "")
		if failed := <-changed; err != nil || failed != nil {
			t.Fatalf("%v, %v; want a reading, and three changes", err, failed)
		}
		version, _, _ := strings.Cut(at, " ")
		n, _ := strconv.Atoi(version)
		for i := n - ids; i < n; i++ {
			if got := strings.TrimRight(values[id(i)], ".!"); got != fmt.Sprint(i) || len(values) != ids {
				t.Fatalf("at %q, %s has the value %q of %d; want %d", at, id(i), values[id(i)], len(values), i)
			}
		}
	}
}

func TestTheSecretIsThatOfTheFirstProcess(t *testing.T) {
	t.Parallel()
	l := openLedger(t, "redis://"+redistest.Start(t).Addr)
	for _, initial := range []string{"first", "second"} {
		var secret string
		redistest.Eventually(t, "a secret", func() (ok bool) { secret, _ = l.Secret(t.Context(), initial); return secret != "" })
		if secret != "first" {
			t.Errorf("got the secret %q; want that of the first process", secret)
		}
	}
}

func TestMissingPermissionsOfALedgerAreReported(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Do("ACL", "SETUSER", "limited", "on", ">pw", "~rl:*", "+ping", "+evalsha", "+eval", "+time")
	l := openLedger(t, "redis://limited:pw@"+server.Addr)
	redistest.Eventually(t, "an answer", func() bool { _, _, _, _, err := l.Read(t.Context(), ""); return errors.Is(err, ErrForbidden) })
	server.Do(append([]any{"ACL", "SETUSER", "limited"}, wordsOf(ledgerPermissions)...)...)
	if done, err := l.Write(t.Context(), "", "1 a", []string{"1 a\n{}", "1 b\n{}"}, map[string]string{"x": "y", "z": ""}); !done || err != nil {
		t.Errorf("written with the permissions that the message names: %t, %v; want no error", done, err)
	}
	if _, _, _, values, err := l.Read(t.Context(), ""); len(values) != 1 || err != nil {
		t.Errorf("read %v, %v; want the value", values, err)
	}
}

func wordsOf(text string) (all []any) {
	for _, one := range strings.Fields(text) {
		all = append(all, one)
	}
	return all
}
