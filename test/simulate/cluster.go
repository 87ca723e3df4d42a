package simulate

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// A Cluster starts with three masters. Slots move in blocks of 256, and their keys one by one, as MIGRATE
// moves them. A client gets ASK for a key that has left its master, and MOVED after the whole block has
// moved. If a master dies, its replica replaces it at another address. All nodes have the same clock.

const (
	slots       = 16384
	blocks      = 64
	ofBlock     = slots / blocks
	foreignKey  = "ERR Script attempted to access a non local key in a cluster node"
	migrateStep = 300 * time.Microsecond
)

// slotOf returns the slot of a key, by the specification of Redis Cluster.
func slotOf(key string) int {
	if from := strings.IndexByte(key, '{'); from >= 0 {
		if n := strings.IndexByte(key[from+1:], '}'); n > 0 {
			key = key[from+1:][:n]
		}
	}
	sum := uint16(0)
	for i := range len(key) {
		sum = sum<<8 ^ slotSums[byte(sum>>8)^key[i]]
	}
	return int(sum % slots)
}

// slotSums has the CRC16 (XMODEM) of each byte.
var slotSums = func() (sums [256]uint16) {
	for b := range sums {
		sum := uint16(b) << 8
		for range 8 {
			if sum&0x8000 != 0 {
				sum = sum<<1 ^ 0x1021
			} else {
				sum <<= 1
			}
		}
		sums[b] = sum
	}
	return sums
}()

// layout maps each block to its master, and to the master that it is moving to, or nil.
type layout struct {
	owner, target [blocks]*server
}

func (w *world) newCluster() {
	w.layout = &layout{}
	for range 3 {
		w.addNode()
	}
	for b := range blocks {
		w.layout.owner[b] = w.servers[b*3/blocks]
	}
}

// addNode adds a node without data, with the clock of the others.
func (w *world) addNode() *server {
	s := newServer(w, fmt.Sprintf("r%d", len(w.servers)))
	if len(w.servers) > 0 {
		s.clock, s.ppm, s.lag = w.servers[0].clock, w.servers[0].ppm, w.servers[0].lag
	}
	w.servers = append(w.servers, s)
	return s
}

// slots returns the reply to CLUSTER SLOTS.
func (l *layout) slots() (all []slotRange) {
	for b, s := range l.owner {
		if n := len(all); n > 0 && all[n-1].Addr == s.name+":6379" {
			all[n-1].To += ofBlock
		} else {
			all = append(all, slotRange{From: b * ofBlock, To: b*ofBlock + ofBlock - 1, Addr: s.name + ":6379"})
		}
	}
	return all
}

// elsewhere returns the error with which s refuses a command with these keys, or nil if s runs the command.
// All keys are in one slot.
func (s *server) elsewhere(keys []string, asking bool) error {
	l := s.w.layout
	if l == nil {
		return nil
	}
	slot := slotOf(keys[0])
	b := slot / ofBlock
	missing := 0
	for _, key := range keys {
		if s.get(key) == nil {
			missing++
		}
	}
	switch {
	case l.owner[b] == s && (l.target[b] == nil || missing == 0):
		return nil
	case l.owner[b] == s && missing < len(keys), l.target[b] == s && asking && missing > 0 && len(keys) > 1:
		s.w.seen(sawTryAgain)
		return errorReply("TRYAGAIN Multiple keys request during rehashing of slot")
	case l.owner[b] == s:
		s.w.seen(sawAsk)
		return errorReply(fmt.Sprintf("ASK %d %s:6379", slot, l.target[b].name))
	case l.target[b] == s && asking:
		return nil
	default:
		s.w.seen(sawMoved)
		return errorReply(fmt.Sprintf("MOVED %d %s:6379", slot, l.owner[b].name))
	}
}

func keysOf(args []any) (keys []string) {
	switch name := args[0].(string); name {
	case "eval", "evalsha":
		for _, key := range args[3 : 3+args[2].(int64)] {
			keys = append(keys, key.(string))
		}
	case "wait", "asking", "cluster", "info":
	default:
		keys = append(keys, args[1].(string))
	}
	return keys
}

// masterOf returns the node that has a key, or the owner of its block if no node has the key.
func (w *world) masterOf(key string) *server {
	b := slotOf(key) / ofBlock
	if t := w.layout.target[b]; t != nil && t.get(key) != nil {
		return t
	}
	return w.layout.owner[b]
}

// migrate moves a random block with keys from the master from to a random master, or does nothing if the block cannot
// move now.
func (w *world) migrate(rng *rand.Rand, from *server) {
	keys := slices.Sorted(maps.Keys(from.keys))
	to := w.layout.owner[rng.IntN(blocks)]
	if len(keys) == 0 || to == from || !from.up || !to.up {
		return
	}
	b := slotOf(keys[rng.IntN(len(keys))]) / ofBlock
	if w.layout.owner[b] != from || w.layout.target[b] != nil {
		return
	}
	w.note("block %d moves from %s to %s", b, from.name, to.name)
	w.seen(faultMigrate)
	w.layout.target[b] = to
	var step func()
	step = func() {
		for _, key := range slices.Sorted(maps.Keys(from.keys)) {
			if slotOf(key)/ofBlock == b {
				to.put(key, from.keys[key])
				from.put(key, nil)
				w.afterPlain(migrateStep, nil, step)
				return
			}
		}
		w.note("block %d has moved", b)
		w.layout.owner[b], w.layout.target[b] = to, nil
	}
	w.afterPlain(time.Duration(rng.Int64N(int64(20*time.Millisecond))), nil, step)
}

func (l *layout) moving(s *server) bool {
	for b := range blocks {
		if l.target[b] != nil && (l.target[b] == s || l.owner[b] == s) {
			return true
		}
	}
	return false
}

// replace stops s, and makes a replica a master at another address after span. Then s runs again, without keys and blocks.
func (w *world) replace(s *server, span time.Duration) {
	if w.layout.moving(s) || !s.up {
		return
	}
	w.note("%s dies, a replica takes over after %v", s.name, span)
	s.up = false
	w.afterPlain(span, nil, func() {
		if s.up { // the old master has restarted before a replica took over
			return
		}
		w.seen(faultReplaced)
		next := w.addNode()
		w.takeOver(s, next)
		for b := range blocks {
			if w.layout.owner[b] == s {
				w.layout.owner[b] = next
			}
		}
		w.note("%s is the master now", next.name)
		s.up, s.keys = true, map[string]*value{}
		s.replicate(len(s.replicas))
		s.epoch++
	})
}
