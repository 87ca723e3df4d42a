package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

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
// Calls of a Ledger are slow. They use their own connections, so that no decision waits for them.
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
	c.Timeout, c.WaitReplicas, c.Changed, c.connections = ledgerTimeout, 0, nil, 2
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
var ledgerReadLua string

//go:embed ledger_write.lua
var ledgerWriteLua string

//go:embed ledger_secret.lua
var ledgerSecretLua string

var ledgerRead, ledgerWrite, ledgerSecret = goredis.NewScript(ledgerReadLua), goredis.NewScript(ledgerWriteLua), goredis.NewScript(ledgerSecretLua)

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
	reply, err := ledgerRead.Run(ctx, l.store.client, []string{l.set, l.changes}, known, cursor).Slice()
	if err != nil {
		return nil, l.failed(err)
	}
	if n := len(reply); n != 3 && n != 4 && n != 7 {
		return nil, fmt.Errorf("redis: the reply with the adjustments has %d parts", n)
	}
	var numbers [2]int64
	for i := range numbers {
		if numbers[i], err = strconv.ParseInt(fmt.Sprint(reply[1+i]), 10, 54); err != nil {
			return nil, fmt.Errorf("redis: the time in the reply with the adjustments cannot be read: %w", err)
		}
	}
	p := &ledgerPage{head: fmt.Sprint(reply[0]), now: algorithms.Micros(numbers[0])*algorithms.Second + algorithms.Micros(numbers[1])}
	if len(reply) > 3 {
		p.changes = textsOf(reply[3])
	}
	if len(reply) > 4 {
		p.cursor, p.values = fmt.Sprint(reply[4]), textsOf(reply[6])
		if p.size, err = strconv.Atoi(fmt.Sprint(reply[5])); err != nil {
			return nil, fmt.Errorf("redis: the number of adjustments cannot be read: %w", err)
		}
	} else if p.head != known && len(p.changes) == 0 {
		return nil, errors.New("redis: the reply has no adjustments")
	}
	return p, nil
}

func textsOf(reply any) []string {
	elements, _ := reply.([]any)
	texts := make([]string, len(elements))
	for i, e := range elements {
		texts[i] = fmt.Sprint(e)
	}
	return texts
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
	n, err := ledgerWrite.Run(ctx, l.store.client, []string{l.set, l.changes}, args...).Int()
	return n == 1, l.failed(err)
}

func (l *Ledger) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, l.store.clock.Now().Add(ledgerTimeout))
}

// ErrForbidden means that the Redis user has no permission for a command that a Ledger needs.
var ErrForbidden = errors.New("the user may not run what this feature needs; it needs " + ledgerPermissions)

// ledgerPermissions has all permissions that a Ledger needs. Limits need some of them, too.
const ledgerPermissions = "+evalsha +eval +time +hmget +hscan +hlen +hset +hdel +lrange +lpush +ltrim"

func (l *Ledger) failed(err error) error {
	if isForbidden(err) {
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	return err
}
