package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Ledger stores a few thousand values that all processes share, with a head, which names their version, and the last
// changes. The caller defines the meaning of the texts. All keys are in one slot, so one script can make a change. After
// the key prefix, the names are:
//
//	{NAME}set      a hash with a field for each ID, and the field head
//	{NAME}changes  a list of changes, the newest first
//	{NAME}secret   a hash with the field secret
//
// Calls of a Ledger are slow. They use a connection of their own, so that no decision waits for them.
type Ledger struct {
	store                *Store
	set, changes, secret string
}

const (
	// ledgerTimeout is the timeout of a call of a Ledger. It is long because the answer may be large.
	ledgerTimeout = time.Second
	// ledgerChanges is the number of changes that a Ledger keeps.
	ledgerChanges = 1000
	ledgerHead    = "head"
)

// OpenLedger opens the ledger with the given name, in the Redis of c.
func OpenLedger(c Config, name string) (*Ledger, error) {
	c.Timeout, c.WaitReplicas, c.Changed = ledgerTimeout, 0, nil
	s, err := Open(c)
	if err != nil {
		return nil, err
	}
	start := s.config.KeyPrefix + "{" + name + "}"
	return &Ledger{s, start + "set", start + "changes", start + "secret"}, nil
}

// Close closes the connections.
func (l *Ledger) Close() error { return l.store.Close() }

//go:embed ledger_read.lua
var ledgerRead string

//go:embed ledger_write.lua
var ledgerWrite string

//go:embed ledger_secret.lua
var ledgerSecret string

// Secret returns the secret that all processes share. If Redis has none yet, Secret stores the given one and returns
// it.
func (l *Ledger) Secret(ctx context.Context, initial string) (string, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	r, err := l.run(ctx, ledgerSecret, []string{l.secret}, initial)
	if err != nil {
		return "", err
	}
	return r.text, nil
}

// Read returns the head ("" if the ledger is empty), and the time of the server. If the head is not known, it returns
// changes, the newest first: those up to that of known if the ledger has them, and then values is nil; otherwise the
// last changes, and all values by ID.
func (l *Ledger) Read(ctx context.Context, known string) (head string, now algorithms.Micros, changes []string, values map[string]string, err error) {
	const attempts = 20
	for range attempts {
		first, err := l.page(ctx, known, firstCursor)
		if err != nil {
			return "", 0, nil, nil, err
		}
		if first.cursor == "" {
			return first.head, first.now, first.changes, nil, nil
		}
		values, err := l.values(ctx, first)
		if err != nil || values != nil {
			return first.head, first.now, first.changes, values, err
		}
	}
	return "", 0, nil, nil, errors.New("redis: the adjustments change faster than they can be read")
}

// values returns the values of page, which is the first one, and of those that follow. It returns nil if the ledger has
// changed meanwhile, or if values are missing, because Redis has lost its data and has got it again.
func (l *Ledger) values(ctx context.Context, page *ledgerPage) (map[string]string, error) {
	values, head := map[string]string{}, page.head
	for {
		for texts := page.values; len(texts) > 1; texts = texts[2:] {
			values[texts[0]] = texts[1]
		}
		if page.cursor == firstCursor {
			break
		}
		var err error
		if page, err = l.page(ctx, "", page.cursor); err != nil {
			return nil, err
		}
		if page.head != head {
			return nil, nil
		}
	}
	if len(values) != page.size {
		return nil, nil
	}
	delete(values, ledgerHead)
	return values, nil
}

const firstCursor = "0" // is also the cursor that follows the last page

// ledgerPage is a reply of ledger_read.lua. cursor is "" if there are no values.
type ledgerPage struct {
	head            string
	now             algorithms.Micros
	changes, values []string
	cursor          string
	size            int
}

func (l *Ledger) page(ctx context.Context, known, cursor string) (*ledgerPage, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	r, err := l.run(ctx, ledgerRead, []string{l.set, l.changes}, known, cursor)
	if err != nil {
		return nil, err
	}
	n := len(r.elements)
	if n != 3 && n != 4 && n != 7 {
		return nil, fmt.Errorf("redis: the reply with the adjustments has %d parts", n)
	}
	now, err := timeOf(r.elements[1:3])
	if err != nil {
		return nil, fmt.Errorf("redis: the time in the reply with the adjustments cannot be read: %w", err)
	}
	p := &ledgerPage{head: r.at(0), now: algorithms.Micros(now.UnixMicro())}
	if n > 3 {
		p.changes = r.elements[3].texts()
	}
	if n > 4 {
		p.cursor, p.values = r.at(4), r.elements[6].texts()
		if p.size, err = strconv.Atoi(r.at(5)); err != nil {
			return nil, fmt.Errorf("redis: the number of adjustments cannot be read: %w", err)
		}
	} else if p.head != known && len(p.changes) == 0 {
		return nil, errors.New("redis: the reply has no adjustments")
	}
	return p, nil
}

// Write replaces the head from ("" if the ledger must be empty) by the head to, appends changes, the oldest first, and
// sets values; the value "" removes an ID. It does all of it or, if from is not the head, nothing, and reports which.
// After an error the outcome is unknown.
func (l *Ledger) Write(ctx context.Context, from, to string, changes []string, values map[string]string) (done bool, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	args := []any{from, to, ledgerChanges, len(changes)}
	for _, change := range changes {
		args = append(args, change)
	}
	for id, value := range values {
		args = append(args, id, value)
	}
	r, err := l.run(ctx, ledgerWrite, []string{l.set, l.changes}, args...)
	if err != nil {
		return false, err
	}
	return r.text == "1", nil
}

// run runs a script, which gets the whole text each time.
func (l *Ledger) run(ctx context.Context, script string, keys []string, args ...any) (*reply, error) {
	command := []any{"eval", script, len(keys)}
	for _, key := range keys {
		command = append(command, key)
	}
	replies, err := l.store.call(ctx, keys[0], append(command, args...))
	switch {
	case isForbidden(err):
		return nil, fmt.Errorf("%w: %w", ErrForbidden, err)
	case err != nil:
		return nil, err
	}
	return &replies[0], nil
}

func (l *Ledger) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, l.store.clock.Now().Add(ledgerTimeout))
}

// ErrForbidden means that the Redis user has no permission for a command that a Ledger needs.
var ErrForbidden = errors.New("the user may not run what this feature needs; it needs " + ledgerPermissions)

// ledgerPermissions has all permissions that a Ledger needs. Limits need some of them, too.
const ledgerPermissions = "+evalsha +eval +time +hmget +hscan +hlen +hset +hdel +lrange +lpush +ltrim"

// ledgerCommands returns the commands of a Ledger. The key must contain a string: then each of them fails or changes
// nothing.
func ledgerCommands(key string) [][]any {
	return [][]any{
		{"hmget", key, "f"}, {"hscan", key, 0, "count", 1}, {"hlen", key}, {"hset", key, "f", ""}, {"hdel", key, "f"},
		{"lrange", key, 0, 0}, {"lpush", key, ""}, {"ltrim", key, 0, 0},
	}
}
