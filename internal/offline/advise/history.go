// Package advise finds the numbers of a limit from the requests of its clients. It keeps what each
// client requested, replays it with the arithmetic of pkg/algorithms, and reports how many clients
// and requests each number would have denied.
//
// A client needs n if n is the smallest number with which the limit denies none of its requests. A
// limit of n denies requests of exactly the clients that need more than n. The smallest limit that
// denies requests of at most the share s of K clients is therefore the need of the client at rank
// K - floor(s*K), counted from the client that needs least. Such an order statistic is robust: one
// client cannot move it by more than one rank, however much it requests.
//
// The need of a token bucket is the burstiness of R. L. Cruz, "A calculus for network delay, part I"
// (IEEE Transactions on Information Theory 37, 1991): no span of a client's requests exceeds a burst
// plus a rate times the length of the span.
package advise

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// DefaultMemory, in bytes, is room for about 40 million requests of a few hundred thousand clients.
	DefaultMemory = 192 << 20
	// clientSize is the number of bytes for a client in addition to its key, its name and its requests: the Client, its place in
	// the map, and the rounding of the allocator.
	clientSize = 220
	// The requests of one client may use about 1/oneClient of the memory. Without a bound, one abuser would displace all
	// other clients.
	oneClient = 8
)

// Memory bounds several histories together.
type Memory struct {
	maxBytes, used int64 // in bytes
	histories      []*History
}

// NewMemory returns a Memory that bounds its histories to maxBytes; 0 means DefaultMemory.
func NewMemory(maxBytes int64) *Memory {
	if maxBytes <= 0 {
		maxBytes = DefaultMemory
	}
	return &Memory{maxBytes: maxBytes}
}

// History has the requests of the clients of one limit. If memory is short, it keeps only the clients whose keys have a
// hash that ends in level zero bits. This is a sample in which each client has the same probability, whatever it
// requests (adaptive sampling: P. Flajolet, "On adaptive sampling", Computing 43, 1990).
type History struct {
	memory  *Memory
	level   uint
	clients map[string]*Client
	bytes   int64
}

// Client is one key of a limit.
type Client struct {
	// Shown is the key as printable text.
	Shown string
	// Hash is the hash of the key, from which fixed windows take their phase.
	Hash uint64
	// Denied reports whether the limit denied one of the client's requests in the replay of the whole configuration.
	Denied bool
	// Requests is the number of requests kept. Missed is the number of requests dropped because the client has used
	// its part of the memory.
	Requests, Missed int64

	first, last algorithms.Micros
	times       []byte // for each request the time since the previous one, times two; plus one if a cost other than 1 follows
}

// Sent returns the number of all requests of c.
func (c *Client) Sent() int64 { return c.Requests + c.Missed }

// New returns a new history that m bounds.
func (m *Memory) New() *History {
	h := &History{memory: m, clients: map[string]*Client{}}
	m.histories = append(m.histories, h)
	return h
}

// Client returns the client with a key, and reports whether it is new. The caller must call Describe for a new client.
// Client returns nil if the client is not in the sample.
func (h *History) Client(key []byte) (c *Client, added bool) {
	if h.level > 0 && !h.samples(xxhash.Sum64(key)) {
		return nil, false
	}
	if c = h.clients[string(key)]; c != nil {
		return c, false
	}
	c = &Client{}
	h.clients[string(key)] = c
	h.grow(clientSize + int64(len(key)))
	return c, true
}

func (h *History) Describe(c *Client, shown string, hash uint64) {
	c.Shown, c.Hash = shown, hash
	h.grow(int64(len(shown)))
}

// Add stores a request of c for cost units. Times must not go back. If c has used its part of the memory, Add only
// counts the request as missed.
func (h *History) Add(c *Client, now algorithms.Micros, cost int64) {
	before := cap(c.times)
	if int64(before) >= h.memory.maxBytes/oneClient {
		c.Missed++
		return
	}
	if c.Requests == 0 {
		c.first, c.last = now, now
	}
	c.Requests++
	word := uint64(now-c.last) << 1
	if cost == 1 {
		c.times = binary.AppendUvarint(c.times, word)
	} else {
		c.times = binary.AppendVarint(binary.AppendUvarint(c.times, word|1), cost)
	}
	c.last = now
	h.grow(int64(cap(c.times) - before))
}

// grow counts additional bytes. While there are too many, the largest history drops half of its clients.
func (h *History) grow(more int64) {
	h.bytes += more
	for m := h.memory; ; {
		if m.used += more; m.used <= m.maxBytes {
			return
		}
		largest := h
		for _, other := range m.histories {
			if other.bytes > largest.bytes {
				largest = other
			}
		}
		if len(largest.clients) <= 1 {
			return // Add bounds the memory of each client
		}
		more = -largest.halve()
	}
}

// halve keeps the clients of the next level, and returns the number of bytes that this frees.
func (h *History) halve() (freed int64) {
	h.level++
	for key, c := range h.clients {
		if !h.samples(xxhash.Sum64String(key)) {
			delete(h.clients, key)
			freed += clientSize + int64(len(key)+len(c.Shown)+cap(c.times))
		}
	}
	h.bytes -= freed
	return freed
}

func (h *History) samples(hash uint64) bool { return hash&(1<<h.level-1) == 0 }

type cursor struct {
	rest []byte
	at   algorithms.Micros
}

func (c *Client) cursor() cursor { return cursor{c.times, c.first} }

func (r *cursor) next() (at algorithms.Micros, cost int64, ok bool) {
	if len(r.rest) == 0 {
		return 0, 0, false
	}
	word, n := binary.Uvarint(r.rest)
	r.rest = r.rest[n:]
	r.at += algorithms.Micros(word >> 1)
	if word&1 == 0 {
		return r.at, 1, true
	}
	cost, n = binary.Varint(r.rest)
	r.rest = r.rest[n:]
	return r.at, cost, true
}
