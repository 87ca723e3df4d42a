package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Ledger stores a few thousand values that all processes share, with a version and a log of changes. The
// caller defines the meaning of the values. All keys are in one slot, so one script can make a change. After the
// key prefix, the names are:
//
//	{NAME}head    a hash with the fields version, mac, checkpoint, checkpoint_mac and signature
//	{NAME}values  a hash with a field for each ID
//	{NAME}log     a stream: the entry of version N has the ID N-0 and the fields body and mac
//	{NAME}secret  a hash with the field secret
//
// Calls of a Ledger are slow. They use their own connections, so that no decision waits for them.
type Ledger struct {
	store                     *Store
	head, values, log, secret string
}

// ledgerTimeout is the timeout of a call of a Ledger. It is long because the answer may be large.
const ledgerTimeout = time.Second

// OpenLedger opens the ledger with the given name, in the Redis of c.
func OpenLedger(c Config, name string) (*Ledger, error) {
	c.Timeout, c.WaitReplicas, c.Changed, c.connections = ledgerTimeout, 0, nil, 2
	s, err := Open(c)
	if err != nil {
		return nil, err
	}
	start := s.config.KeyPrefix + "{" + name + "}"
	return &Ledger{s, start + "head", start + "values", start + "log", start + "secret"}, nil
}

// Close closes the connections.
func (l *Ledger) Close() error { return l.store.Close() }

// LedgerHead is the state of a Ledger.
type LedgerHead struct {
	// Version is the number of changes so far. MAC is the MAC of the newest entry.
	Version uint64
	MAC     string
	// Checkpoint is the version of the newest entry that was removed from the log. CheckpointMAC is the MAC of
	// that entry, and Signature is the signature of the checkpoint.
	Checkpoint               uint64
	CheckpointMAC, Signature string
	// Now is the time of the server.
	Now algorithms.Micros
}

// LedgerEntry is an entry of the log.
type LedgerEntry struct {
	Version   uint64
	Body, MAC string
}

// LedgerChange describes a change for Append.
type LedgerChange struct {
	// Head is the head that the change is based on. Append does nothing if the ledger has another head.
	Head  LedgerHead
	Entry LedgerEntry
	// ID gets Value. If Value is "", ID is removed. The IDs in Expired are removed, too.
	ID, Value string
	Expired   []string
	// If Trim is true, Checkpoint, its MAC and its signature are stored, and the entries up to and including
	// Checkpoint are removed.
	Trim                     bool
	Checkpoint               uint64
	CheckpointMAC, Signature string
}

//go:embed ledger_head.lua
var ledgerHeadLua string

//go:embed ledger_append.lua
var ledgerAppendLua string

//go:embed ledger_restore.lua
var ledgerRestoreLua string

var ledgerHead, ledgerAppend, ledgerRestore = goredis.NewScript(ledgerHeadLua), goredis.NewScript(ledgerAppendLua), goredis.NewScript(ledgerRestoreLua)

//go:embed ledger_secret.lua
var ledgerSecretLua string

var ledgerSecret = goredis.NewScript(ledgerSecretLua)

// Secret returns the secret that all processes share. If Redis has none yet, Secret stores the given one and returns
// it.
func (l *Ledger) Secret(ctx context.Context, initial string) (string, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	secret, err := ledgerSecret.Run(ctx, l.store.client, []string{l.secret}, initial).Text()
	if err != nil {
		return "", l.failed(err)
	}
	return secret, nil
}

// Head returns the head of the ledger, with the server's time.
func (l *Ledger) Head(ctx context.Context) (h LedgerHead, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	texts, err := ledgerHead.Run(ctx, l.store.client, []string{l.head}).StringSlice()
	if err != nil {
		return h, l.failed(err)
	}
	if len(texts) != 7 {
		return h, fmt.Errorf("redis: the state of the adjustments has %d parts", len(texts))
	}
	var numbers [4]uint64
	for i, at := range []int{0, 2, 5, 6} {
		if numbers[i], err = strconv.ParseUint(texts[at], 10, 63); err != nil {
			return h, fmt.Errorf("redis: the state of the adjustments cannot be read: %w", err)
		}
	}
	return LedgerHead{
		Version: numbers[0], MAC: texts[1], Checkpoint: numbers[1], CheckpointMAC: texts[3], Signature: texts[4],
		Now: algorithms.Micros(numbers[2])*algorithms.Second + algorithms.Micros(numbers[3]),
	}, nil
}

// Append makes a change if the ledger still has the head c.Head, and reports whether it did. After an error
// the outcome is unknown.
func (l *Ledger) Append(ctx context.Context, c *LedgerChange) (done bool, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	args := []any{c.Head.Version, c.Head.MAC, c.Entry.Version, c.Entry.MAC, c.Entry.Body, c.ID, c.Value, "", c.CheckpointMAC, c.Signature}
	if c.Trim {
		args[7] = c.Checkpoint
	}
	for _, id := range c.Expired {
		args = append(args, id)
	}
	n, err := ledgerAppend.Run(ctx, l.store.client, []string{l.head, l.values, l.log}, args...).Int()
	return n == 1, l.failed(err)
}

// Restore writes a head and values into an empty ledger, for example after a server has lost its data. It
// returns false if the ledger is not empty: then another process was faster.
func (l *Ledger) Restore(ctx context.Context, h LedgerHead, values map[string]string) (done bool, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	args := []any{h.Version, h.MAC, h.Checkpoint, h.CheckpointMAC, h.Signature}
	for id, value := range values {
		args = append(args, id, value)
	}
	n, err := ledgerRestore.Run(ctx, l.store.client, []string{l.head, l.values}, args...).Int()
	return n == 1, l.failed(err)
}

// Values calls visit for each ID and its value. If a value changes meanwhile, visit may get the old value or
// the new one. oldest is the smallest version that the ledger had meanwhile: if it is less than a version
// that was read before, the server has lost data, and values may be missing.
func (l *Ledger) Values(ctx context.Context, visit func(id, value string)) (oldest uint64, err error) {
	const pageSize = 500 // values; together they have some hundred KB
	oldest = math.MaxUint64
	for cursor := "0"; ; {
		var before, values, after *goredis.Cmd // see recovering
		page, cancel := l.bound(ctx)
		_, err := l.store.client.Pipelined(page, func(pipe goredis.Pipeliner) error {
			before = pipe.Do(page, "hmget", l.head, "version")
			values = pipe.Do(page, "hscan", l.values, cursor, "count", pageSize)
			after = pipe.Do(page, "hmget", l.head, "version")
			return nil
		})
		cancel()
		if err != nil {
			return 0, l.failed(err)
		}
		for _, cmd := range []*goredis.Cmd{before, after} {
			version, err := versionOf(cmd.Val())
			if err != nil {
				return 0, err
			}
			oldest = min(oldest, version)
		}
		next, pairs := pageOf(values.Val())
		for i := 0; i+1 < len(pairs); i += 2 {
			visit(fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1]))
		}
		if cursor = next; cursor == "0" {
			return oldest, nil
		} else if cursor == "" {
			return 0, errors.New("redis: the reply to HSCAN has no cursor")
		}
	}
}

// versionOf returns the version in the reply to HMGET; 0 if the ledger is empty.
func versionOf(reply any) (version uint64, err error) {
	parts, _ := reply.([]any)
	if len(parts) != 1 {
		return 0, fmt.Errorf("redis: the version of the adjustments has %d parts", len(parts))
	}
	if parts[0] == nil {
		return 0, nil
	}
	if version, err = strconv.ParseUint(fmt.Sprint(parts[0]), 10, 63); err != nil {
		return 0, fmt.Errorf("redis: the state of the adjustments cannot be read: %w", err)
	}
	return version, nil
}

// pageOf returns the cursor and the elements in the reply to HSCAN. If the reply has another form, the cursor is "".
func pageOf(reply any) (cursor string, elements []any) {
	if parts, _ := reply.([]any); len(parts) == 2 {
		cursor, _ = parts[0].(string)
		elements, _ = parts[1].([]any)
	}
	return cursor, elements
}

// From returns up to n entries, starting with the given version, oldest first.
func (l *Ledger) From(ctx context.Context, version uint64, n int) ([]LedgerEntry, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	found, err := l.store.client.XRangeN(ctx, l.log, entryID(version), "+", int64(n)).Result()
	return l.entries(found, err)
}

// Before returns up to n entries older than the given version, newest first. If version is 0, it starts with
// the newest entry.
func (l *Ledger) Before(ctx context.Context, version uint64, n int) ([]LedgerEntry, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	from := "+"
	switch version {
	case 0:
	case 1:
		return nil, nil
	default:
		from = entryID(version - 1)
	}
	found, err := l.store.client.XRevRangeN(ctx, l.log, from, "-", int64(n)).Result()
	return l.entries(found, err)
}

func (l *Ledger) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, l.store.clock.Now().Add(ledgerTimeout))
}

func entryID(version uint64) string { return strconv.FormatUint(version, 10) + "-0" }

func (l *Ledger) entries(found []goredis.XMessage, err error) ([]LedgerEntry, error) {
	if err != nil {
		return nil, l.failed(err)
	}
	list := make([]LedgerEntry, len(found))
	for i, m := range found {
		number, _, _ := strings.Cut(m.ID, "-")
		version, err := strconv.ParseUint(number, 10, 63)
		if err != nil {
			return nil, fmt.Errorf("redis: an entry of the audit of adjustments cannot be read: %w", err)
		}
		body, _ := m.Values["body"].(string)
		mac, _ := m.Values["mac"].(string)
		list[i] = LedgerEntry{version, body, mac}
	}
	return list, nil
}

// ErrForbidden means that the Redis user has no permission for a command that a Ledger needs.
var ErrForbidden = errors.New("the user may not run what this feature needs; it needs " + ledgerPermissions)

// ledgerPermissions has all permissions that a Ledger needs. Limits need some of them, too.
const ledgerPermissions = "+evalsha +eval +time +hmget +hset +hdel +hscan +exists +xadd +xrange +xrevrange +xtrim"

func (l *Ledger) failed(err error) error {
	if isForbidden(err) {
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	return err
}

// refusedOfLedger returns the commands of a Ledger that the user may not run. key must contain a string: then each
// of the commands fails or changes nothing.
func refusedOfLedger(ctx context.Context, client *goredis.Client, key string) (names []string) {
	cmds, _ := client.Pipelined(ctx, func(pipe goredis.Pipeliner) error { // each command has its own error
		pipe.Exists(ctx, key)
		pipe.HMGet(ctx, key, "f")
		pipe.HSet(ctx, key, "f", "")
		pipe.HDel(ctx, key, "f")
		pipe.Do(ctx, "hscan", key, 0, "count", 1)
		pipe.XAdd(ctx, &goredis.XAddArgs{Stream: key, ID: "1-0", Values: []string{"f", ""}})
		pipe.Do(ctx, "xrange", key, "-", "+", "count", 1)
		pipe.Do(ctx, "xrevrange", key, "+", "-", "count", 1)
		pipe.XTrimMinID(ctx, key, "0-0")
		return nil
	})
	for _, cmd := range cmds {
		if isForbidden(cmd.Err()) {
			names = append(names, cmd.Name())
		}
	}
	return names
}
