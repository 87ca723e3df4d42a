package shared_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rlsidecar/rlsidecar/internal/adjust"
	"github.com/rlsidecar/rlsidecar/internal/adjust/shared"
	"github.com/rlsidecar/rlsidecar/internal/redis"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var secret = []byte("a secret of the audit")

func keeper(t *testing.T, url, dir string) *shared.Keeper {
	t.Helper()
	l, err := redis.OpenLedger(redis.Config{URL: url}, "adjustments")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	k, err := shared.New(shared.Config{Ledger: l, Chain: adjust.NewChain(secret), Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// block returns an operation that blocks a key for an hour.
func block(key, by string) adjust.Operation {
	a := &adjust.Adjustment{
		Target: adjust.Target{Domain: "d", Limit: "calls", Key: []string{key}}, Change: adjust.Change{Block: true},
		Algorithm: algorithms.TokenBucket, Author: by, Reason: "test",
	}
	a.ID = a.Target.ID()
	return adjust.Operation{ID: by, Author: by, Reason: "test", Target: a.ID, After: a, For: time.Hour}
}

func change(t *testing.T, k *shared.Keeper, o adjust.Operation) *adjust.Entry {
	t.Helper()
	e, err := k.Change(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// poll polls until a poll succeeds, because a restarted server is dialed a little later.
func poll(t *testing.T, k *shared.Keeper) {
	t.Helper()
	redistest.Eventually(t, "a poll", func() bool { return k.Poll(t.Context()) == nil })
}

// follows checks that one Keeper gets the changes of another one, on any kind of Redis.
func follows(t *testing.T, url string) {
	t.Helper()
	a, b := keeper(t, url, ""), keeper(t, url, "")
	poll(t, a)
	hostile := block("\xff\x00{}\r\n"+strings.Repeat("k", 4000), "ann")
	change(t, a, hostile)
	poll(t, b)
	if n := b.Set().Len(); n != 1 || b.Set().Head != a.Set().Head || len(adjust.Differences(a.Set(), b.Set())) > 0 {
		t.Fatalf("the other one knows %d adjustments; want 1, and an equal set", n)
	}
	for i := range 5 {
		change(t, b, block(fmt.Sprint(i), "bob"))
	}
	change(t, b, adjust.Operation{ID: "x", Author: "bob", Reason: "over", Target: hostile.Target})
	poll(t, a) // this poll reads the entries
	fresh := keeper(t, url, "")
	poll(t, fresh) // this poll reads the values
	for _, k := range []*shared.Keeper{a, fresh} {
		if d := adjust.Differences(b.Set(), k.Set()); len(d) > 0 || k.Set().Len() != 5 || k.Set().Head.Version != 7 {
			t.Errorf("version %d, %d adjustments, %d differ; want version 7, 5 adjustments, none of which differs", k.Set().Head.Version, k.Set().Len(), len(d))
		}
	}
	entries, err := fresh.Audit(t.Context(), 0, 3)
	if err != nil || len(entries) != 3 || entries[0].After != nil || entries[0].Before == nil || entries[0].Reason != "over" {
		t.Errorf("the audit: %v, %v; want 3 entries, the deletion first", entries, err)
	}
	if page, err := fresh.Audit(t.Context(), 2, 3); err != nil || len(page) != 1 || page[0].Version != 1 {
		t.Errorf("before version 2: %v, %v; want version 1 only", page, err)
	}
	if n, err := fresh.Verify(t.Context()); n != 7 || err != nil {
		t.Errorf("verified %d, %v; want 7 and no error", n, err)
	}
	if drift := time.UnixMicro(int64(a.Now())).Sub(time.Now()).Abs(); drift > time.Minute {
		t.Errorf("the clock is off by %v; want at most a minute", drift)
	}
}

func TestSidecarsFollowEachOther(t *testing.T) {
	t.Parallel()
	follows(t, "redis://"+redistest.Start(t).Addr)
}

func TestInACluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a cluster")
	}
	follows(t, redistest.StartCluster(t, 3).URL())
}

func TestWithSentinels(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts Sentinels")
	}
	follows(t, redistest.StartSentinels(t).URL())
}

func TestASidecarStartsWhileAdjustmentsChange(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	url, far := "redis://"+server.Addr, "redis://"+distant(t, server.Addr)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	operators := []*shared.Keeper{keeper(t, url, ""), keeper(t, url, ""), keeper(t, url, ""), keeper(t, url, "")}
	for i, k := range operators {
		change(t, k, block(fmt.Sprint(i), "op"))
	}
	for i, k := range operators {
		wg.Go(func() {
			for j := 0; ctx.Err() == nil; j++ {
				_, _ = k.Change(ctx, block(fmt.Sprint(i), fmt.Sprint(j))) // other goroutines may make more changes meanwhile
			}
		})
	}
	var started []*shared.Keeper
	for range 5 {
		k := keeper(t, far, "")
		poll(t, k)
		started = append(started, k)
	}
	stop()
	wg.Wait()
	last := keeper(t, url, "")
	poll(t, last)
	for _, k := range started {
		poll(t, k)
		if d := adjust.Differences(k.Set(), last.Set()); len(d) != 0 || k.Set().Len() != 4 {
			t.Fatalf("a sidecar that started between changes has %d adjustments, of which %v differ; want 4, and none", k.Set().Len(), d)
		}
	}
}

// distant returns the address of a proxy of server that delays each part of an answer by 5 ms.
func distant(t *testing.T, server string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			go func() { _, _ = io.Copy(upstream, client); upstream.Close() }()
			go func() {
				defer client.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := upstream.Read(buf)
					time.Sleep(5 * time.Millisecond)
					if _, bad := client.Write(buf[:n]); err != nil || bad != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// Redis loses its data between the moments at which b reads the version and the adjustments, and a restores both before b
// reads the version again. b must not use the empty ledger as the adjustments of that version.
func TestDataIsLostWhileItIsRead(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	url := "redis://" + server.Addr
	a := keeper(t, url, "")
	change(t, a, block("bob", "ann"))
	client := server.Client()
	lose := sync.OnceFunc(func() { client.FlushAll(t.Context()) })
	restore := sync.OnceFunc(func() { _ = a.Poll(t.Context()) })
	b := keeper(t, "redis://"+around(t, server.Addr, "hscan", lose, restore), "")
	if err := b.Poll(t.Context()); err == nil || !strings.Contains(err.Error(), "lost") {
		t.Errorf("got the error %v, want one that contains \"lost\"", err)
	}
	poll(t, b)
	if b.Set().Len() != 1 {
		t.Errorf("b knows %d adjustments, want 1", b.Set().Len())
	}
}

// around returns the address of a server that passes requests and answers on. It calls onRequest before it passes on a
// request with the given command, and onAnswer before it passes on the answer.
func around(t *testing.T, server, command string, onRequest, onAnswer func()) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			var sent atomic.Bool
			pass := func(to, from net.Conn, see func(text []byte)) {
				defer to.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := from.Read(buf)
					see(buf[:n])
					if _, bad := to.Write(buf[:n]); err != nil || bad != nil {
						return
					}
				}
			}
			go pass(upstream, client, func(text []byte) {
				if bytes.Contains(text, []byte(command)) {
					onRequest()
					sent.Store(true)
				}
			})
			go pass(client, upstream, func([]byte) {
				if sent.Swap(false) {
					onAnswer()
				}
			})
		}
	}()
	return l.Addr().String()
}

func TestSimultaneousChangesAreAllAudited(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Start(t).Addr
	const operators, changes = 4, 10
	var wg sync.WaitGroup
	for i := range operators {
		k := keeper(t, url, "")
		wg.Go(func() {
			for j := range changes {
				if _, err := k.Change(t.Context(), block("bob", fmt.Sprint(i, ".", j))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	k := keeper(t, url, "")
	poll(t, k)
	if n, err := k.Verify(t.Context()); n != operators*changes || err != nil {
		t.Errorf("verified %d, %v; want %d and no error", n, err, operators*changes)
	}
	entries, err := k.Audit(t.Context(), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	authors := map[string]bool{}
	for i, e := range entries {
		authors[e.Author] = true
		if i > 0 && entries[i-1].Before.Author != e.After.Author {
			t.Errorf("entry %d replaces what %s set, and not what %s set just before", entries[i-1].Version, entries[i-1].Before.Author, e.After.Author)
		}
	}
	if all := k.Set().All(); len(authors) != operators*changes || len(all) != 1 || all[0].Author != entries[0].Author {
		t.Errorf("%d authors; in force is %v; want %d authors, and the newest change in force", len(authors), all, operators*changes)
	}
	late := block("bob", "late")
	seen := uint64(3)
	late.Expect = &seen
	if _, err := k.Change(t.Context(), late); !errors.Is(err, adjust.ErrConflict) {
		t.Errorf("a change that expects an old version: %v; want adjust.ErrConflict", err)
	}
}

// While Redis is unreachable, the known adjustments must stay in force until they expire, and a change must
// fail. If Redis restarts without data, the Keeper must write the adjustments again.
func TestRedisKilledAndRestarted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	url, dir := "redis://"+server.Addr, t.TempDir()
	a := keeper(t, url, dir)
	change(t, a, block("bob", "ann"))
	server.Kill()
	if err := a.Poll(t.Context()); err == nil || a.Set().Len() != 1 || a.Status().Err == nil {
		t.Errorf("%v, %d known, status %v; want an error, 1 known, and an error in the status", err, a.Set().Len(), a.Status().Err)
	}
	if _, err := a.Change(t.Context(), block("eve", "ann")); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("a change while Redis is unreachable: %v; want an error that contains \"nothing was changed\"", err)
	}
	alone := keeper(t, url, dir) // this sidecar starts while Redis is unreachable
	if alone.Set().Len() != 1 || alone.Set().All()[0].Target.Key[0] != "bob" {
		t.Error("a start without Redis does not know who is blocked")
	}
	server.Restart()
	poll(t, a)
	fresh := keeper(t, url, "")
	poll(t, fresh)
	if fresh.Set().Len() != 1 || fresh.Set().Head.Version != 1 {
		t.Errorf("after Redis lost its data: version %d, %d known; want version 1, and 1 known", fresh.Set().Head.Version, fresh.Set().Len())
	}
	change(t, fresh, block("eve", "bob"))
	poll(t, alone)
	if n, err := alone.Verify(t.Context()); n != 1 || err != nil || alone.Set().Len() != 2 {
		t.Errorf("verified %d, %v; %d known; want 1 entry after the checkpoint, no error, and 2 known", n, err, alone.Set().Len())
	}
}

func TestValuesThatAreNotSoundAreLeftOut(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	url := "redis://" + server.Addr
	a := keeper(t, url, "")
	good := block("bob", "ann")
	change(t, a, good)
	text, err := json.Marshal(a.Set().All()[0])
	if err != nil {
		t.Fatal(err)
	}
	server.Do("HSET", "rl:{adjustments}values", "another id", text, "ab", "{", "cd", `{"domain":"d"}`)
	b := keeper(t, url, "")
	poll(t, b)
	if b.Set().Len() != 1 || b.Set().Find(good.Target) == nil || b.Status().Errors == 0 {
		t.Errorf("%d known, %d errors; want only the valid one, and an error", b.Set().Len(), b.Status().Errors)
	}
	server.Do("XADD", "rl:{adjustments}log", "9-0", "body", "{}", "mac", "x")
	if _, err := b.Verify(t.Context()); err != nil {
		t.Errorf("an entry beyond the head does not count yet: %v; want no error", err)
	}
}

func TestMissingPermissionsAreReported(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Do("ACL", "SETUSER", "limited", "on", ">pw", "~rl:*", "+evalsha", "+eval", "+time", "+mget", "+get", "+psetex", "+ping")
	k := keeper(t, "redis://limited:pw@"+server.Addr, "")
	redistest.Eventually(t, "an answer", func() bool { return errors.Is(k.Poll(t.Context()), redis.ErrForbidden) })
	if err := k.Status().Err; err == nil || !strings.Contains(err.Error(), "+hscan") {
		t.Errorf("got %v; want an error that contains \"+hscan\"", err)
	}
	server.Do("ACL", "SETUSER", "whole", "on", ">pw", "~rl:*", "+evalsha", "+eval", "+time", "+hmget", "+hset", "+hdel", "+hscan", "+exists", "+xadd", "+xrange", "+xrevrange", "+xtrim", "+ping")
	whole := keeper(t, "redis://whole:pw@"+server.Addr, "")
	poll(t, whole)
	change(t, whole, block("bob", "ann"))
	if n, err := whole.Verify(context.Background()); n != 1 || err != nil {
		t.Errorf("verified %d, %v; want 1 and no error", n, err)
	}
}
