package admin

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/clientip"
	"github.com/rlsidecar/rlsidecar/internal/httpauth"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// attemptsAtOnce is how many wrong tokens a client may try at once. It may try one a second in the long run.
	attemptsAtOnce = 10
	// allAttemptsAtOnce and allAttemptsPerSecond are the bounds of all clients together. They do not apply to clients
	// that are known.
	allAttemptsAtOnce, allAttemptsPerSecond = 100, 10
	// knownFor is how long a client is known after it has sent the right token.
	knownFor = 12 * 3600 * algorithms.Second
	// maxClients bounds the clients that are remembered. It exceeds the number of clients that allAttemptsPerSecond
	// allows to try a wrong token before the bucket of the first of them is full again.
	maxClients = 1024
)

// attempts bounds the wrong tokens that clients may try, in a form or in a header. A client that has tried too many is
// refused, with the right token too, because an answer would otherwise tell which token is right. Other clients are not
// refused: each has a bucket of its own, and a client that has sent the right token before does not share a bucket with
// others.
type attempts struct {
	now       func() time.Time
	each, all algorithms.Limit

	mu      sync.Mutex
	clients map[string]attempting // guarded by mu
	shared  algorithms.State      // the bucket of all clients that are not known; guarded by mu
}

type attempting struct {
	bucket algorithms.State
	known  algorithms.Micros // when the client last sent the right token; 0 means never
	last   algorithms.Micros
}

func newAttempts(now func() time.Time) *attempts {
	return &attempts{
		now: now, each: perSecond(attemptsAtOnce, 1), all: perSecond(allAttemptsAtOnce, allAttemptsPerSecond),
		clients: map[string]attempting{},
	}
}

func perSecond(capacity, rate int64) algorithms.Limit {
	limit, err := algorithms.Compile(algorithms.Spec{Kind: algorithms.TokenBucket, Rate: rate, Period: algorithms.Second, Capacity: &capacity})
	if err != nil {
		panic(err) // cannot happen, because the numbers are constants
	}
	return limit
}

// try calls isRight, which compares a token of the client at address remote. It returns the result. If the client has
// tried too many wrong tokens, it does not call isRight, and returns how long the client must wait.
func (a *attempts) try(remote string, isRight func() bool) (right bool, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := algorithms.Micros(a.now().UnixMicro())
	name := client(remote)
	c, remembered := a.clients[name]
	known := c.known > 0 && now-c.known < knownFor
	charged, d := a.each.Take(c.bucket, now, algorithms.Charge{Cost: 1})
	shared, ofAll := a.all.Take(a.shared, now, algorithms.Charge{Cost: 1})
	switch {
	case !d.Allowed:
		return false, time.Duration(d.RetryAfter) * time.Microsecond
	case !known && !ofAll.Allowed:
		return false, time.Duration(ofAll.RetryAfter) * time.Microsecond
	}
	c.last = now
	if right = isRight(); right {
		c.known = now
	} else {
		c.bucket = charged
		if !known {
			a.shared = shared
		}
	}
	if !remembered && len(a.clients) >= maxClients {
		dropOldest(a.clients, func(c attempting) int64 { return int64(c.last) })
	}
	a.clients[name] = c
	return right, 0
}

// client returns a name for the clients of one address. For IPv6 the name is the first half of the address, because a
// host can choose the other half.
func client(remote string) string {
	addr, _ := clientip.Peer(remote)
	network, ok := clientip.Network(addr, 64)
	if !ok { // the client of a Unix socket
		return "local"
	}
	return network
}

// headers returns a handler that passes a request to the handler next unless the request has a bearer token and its
// client has tried too many wrong ones.
func (a *access) headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token, ok := httpauth.BearerToken(r); ok {
			isRight := func() bool { return httpauth.IsToken(token, a.token) || httpauth.IsToken(token, a.readToken) }
			if _, wait := a.attempts.try(r.RemoteAddr, isRight); wait > 0 {
				setRetryAfter(w, wait)
				http.Error(w, "too many wrong tokens came from this address; wait, and send the right one", http.StatusTooManyRequests)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func setRetryAfter(w http.ResponseWriter, wait time.Duration) {
	w.Header().Set("Retry-After", strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10))
}
