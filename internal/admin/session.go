package admin

import (
	"crypto/rand"
	"crypto/sha256"
	"math"
	"sync"
	"time"
)

const (
	// maxSessions bounds the number of sessions. A further session replaces the one that was unused for
	// longest.
	maxSessions = 64
	// sessionIdle is how long a session may be unused. sessionLife is the longest duration of a session.
	sessionIdle, sessionLife = time.Hour, 12 * time.Hour
)

type session struct {
	csrf     string
	token    [sha256.Size]byte // fingerprint of the token that the browser sent
	mayWrite bool
	began    time.Time
	used     time.Time // when the session was last used; guarded by sessions.mu
	author   string    // the name given with the last change; guarded by sessions.mu
}

// sessions holds all sessions in memory only, so a restart ends them. The browser has the id; this process
// stores only the id's hash.
type sessions struct {
	now func() time.Time

	mu  sync.Mutex
	all map[[sha256.Size]byte]*session // guarded by mu
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, all: map[[sha256.Size]byte]*session{}}
}

func fingerprint(text string) [sha256.Size]byte { return sha256.Sum256([]byte(text)) }

func (s *sessions) begin(token string, mayWrite bool) (id string) {
	now := s.now()
	id = rand.Text() + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.all) >= maxSessions {
		dropOldest(s.all, func(one *session) int64 { return one.used.UnixNano() })
	}
	s.all[fingerprint(id)] = &session{csrf: rand.Text(), token: fingerprint(token), mayWrite: mayWrite, began: now, used: now}
	return id
}

// dropOldest deletes the entry of all that was used the longest time ago.
func dropOldest[K comparable, V any](all map[K]V, used func(V) int64) {
	var oldest K
	first := int64(math.MaxInt64)
	for key, one := range all {
		if at := used(one); at <= first {
			oldest, first = key, at
		}
	}
	delete(all, oldest)
}

// find returns the session with this id, or nil if it does not exist or has ended. person means that a person,
// not the script of the page, has sent the request. Only such a request prolongs the session.
func (s *sessions) find(id string, person bool) *session {
	now, hash := s.now(), fingerprint(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.all[hash]
	if one == nil {
		return nil
	}
	if now.Sub(one.used) >= sessionIdle || now.Sub(one.began) >= sessionLife {
		delete(s.all, hash)
		return nil
	}
	if person {
		one.used = now
	}
	return one
}

func (s *sessions) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, fingerprint(id))
}

func (s *sessions) author(of *session) string {
	if of == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return of.author
}

func (s *sessions) setAuthor(of *session, name string) {
	if of == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of.author = name
}
