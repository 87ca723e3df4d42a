package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/rlstest"
)

// budgets is a configuration whose limits reserve an estimate of 100 units, one of them with a maximum debt.
const budgets = `
domain: ai
limits:
  tokens: {algorithm: fixed_window, rate: 1000000, period: 300d, settle: {estimate: 100, most: 500}}
  few: {algorithm: fixed_window, rate: 1000, period: 300d, settle: {estimate: 100, max_debt: 200}}
descriptors:
  - {key: user, limit: tokens}
  - {key: poor, limit: few}
`

// settler is a sidecar, with clients that act as its proxy and as its applications.
type settler struct {
	*process
	t     *testing.T
	addr  string
	proxy rls.RateLimitServiceClient
}

func startSettler(t *testing.T, args ...string) *settler {
	t.Helper()
	s := &settler{t: t, addr: loopback()}
	s.process = serve(t, s.addr, append([]string{"--config", fileOf(t, "limits.yaml", budgets)}, args...)...)
	s.proxy = rls.NewRateLimitServiceClient(dial(t, s.addr+":8081"))
	return s
}

// send returns an error if the call fails or is denied.
func (s *settler) send(texts ...string) (*rls.RateLimitResponse, error) {
	r := rlstest.Request("ai", texts...)
	answer, err := s.proxy.ShouldRateLimit(s.t.Context(), r)
	if err == nil && answer.OverallCode != rls.RateLimitResponse_OK {
		err = fmt.Errorf("denied: %v", answer.Statuses)
	}
	return answer, err
}

func (s *settler) start(descriptor string) (string, error) {
	answer, err := s.send(descriptor)
	if err != nil {
		return "", err
	}
	return answer.DynamicMetadata.Fields["settle"].GetStringValue(), nil
}

func (s *settler) mustStart(descriptor string) string {
	s.t.Helper()
	id, err := s.start(descriptor)
	if err != nil || id == "none" || id == "" {
		s.t.Fatalf("%s: got id %q, %v; want the id of a reservation", descriptor, id, err)
	}
	return id
}

func (s *settler) done(id string, cost int) error {
	_, err := s.send(fmt.Sprintf("settle=%s;hits=%d", id, cost), "settle_end="+id+";hits=0")
	return err
}

func (s *settler) post(path, body string) (code int, answer string) {
	return post("http://"+s.addr+":8080"+path, body)
}

func (s *settler) reserve(limit, key string, count int) string {
	s.t.Helper()
	code, text := s.post("/v1/limit", fmt.Sprintf(`{"name":%q,"key":%q,"count":%d,"reserve":true}`, limit, key, count))
	var output struct{ Reservation string }
	if err := json.Unmarshal([]byte(text), &output); err != nil || code != 200 || output.Reservation == "" {
		s.t.Fatalf("got %d %s; want status 200 and a reservation", code, text)
	}
	return output.Reservation
}

func (s *settler) settle(id string, count int) (code int, answer string) {
	return s.post("/v1/limit", fmt.Sprintf(`{"reservation":%q,"count":%d}`, id, count))
}

func (s *settler) mustSettle(id string, count int) {
	s.t.Helper()
	if code, answer := s.settle(id, count); code != 200 {
		s.t.Errorf("settle to %d: got %d %s; want status 200", count, code, answer)
	}
}

func (s *settler) left(limit, key string) int {
	s.t.Helper()
	left := -1
	eventually(s.t, "the bucket can be read", func() bool { left = unitsLeft(s.addr, "ai", limit, key); return left >= 0 })
	return left
}

func (s *settler) want(limit, key string, want int) {
	s.t.Helper()
	if left := s.left(limit, key); left != want {
		s.t.Errorf("%s has %d of %s left, want %d", key, left, limit, want)
	}
}

const firstKey, secondKey = "the first key of reservations", "the second key of reservations"

// keyLine replaces the blanks in key, because blanks separate the keys of a file.
func keyLine(key string) string { return strings.ReplaceAll(key, " ", "-") + "\n" }

func TestAChangedKeyFileKeepsReservations(t *testing.T) {
	t.Parallel()
	path := fileOf(t, "keys", keyLine(firstKey))
	s := startSettler(t, "--settle-key-file", path)
	byProxy, byProgram := s.mustStart("user=proxy"), s.reserve("tokens", "program", 100)
	writeFile(t, path, keyLine(secondKey)+keyLine(firstKey))
	eventually(t, "the new keys are read", func() bool {
		s.mustStart("user=other")
		return strings.Contains(s.output.String(), "were read again")
	})
	if err := s.done(byProxy, 37); err != nil {
		t.Error(err)
	}
	s.mustSettle(byProgram, 37)
	s.want("tokens", "proxy", 1_000_000-37)
	s.want("tokens", "program", 1_000_000-37)
	if text := s.output.String(); strings.Contains(text, strings.TrimSpace(keyLine(firstKey))) {
		t.Error("the log shows a key")
	}
}

func TestSidecarsShareAKeyThroughRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	url := "redis://" + redis.Addr
	a, b := startSettler(t, "--redis-url", url, "--backend-timeout", "5s"), startSettler(t, "--redis-url", url, "--backend-timeout", "5s")
	crossed := func(user string) {
		t.Helper()
		if err := b.done(a.mustStart("user="+user), 30); err != nil {
			t.Error(err)
		}
		b.mustSettle(a.mustStart("user="+user), 4)
		a.mustSettle(b.reserve("tokens", user, 50), 20)
		a.want("tokens", user, 1_000_000-54)
	}
	crossed("bob")
	byProxy, byProgram := a.mustStart("user=flushed"), a.reserve("tokens", "flushed", 400)
	redis.Do("FLUSHALL") // both sidecars have the key with which the ids are signed, but the bucket of the reservations is new
	crossed("eve")
	b.mustStart("user=flushed")
	if err := b.done(byProxy, 0); err != nil {
		t.Error(err)
	}
	b.mustSettle(byProgram, 0)
	b.want("tokens", "flushed", 1_000_000-100) // The new bucket was never charged, so it gets no refund.
}

func TestReservationsWithoutPermissionForTheSharedKey(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	redis.Do("ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-hmget", "-hset")
	s := startSettler(t, "--redis-url", "redis://limited:pw@"+redis.Addr, "--backend-timeout", "5s")
	if err := s.done(s.mustStart("user=bob"), 3); err != nil { // The sidecar accepts ids that it has signed itself.
		t.Error(err)
	}
	s.want("tokens", "bob", 1_000_000-3)
	eventually(t, "the condition is reported", func() bool {
		_, text := fetch("http://" + s.addr + ":6070/api/conditions")
		return strings.Contains(text, "settle-key-not-shared") && strings.Contains(text, "--settle-key-file")
	})
}

// TestClientsThatAbuseReservations sends many requests at the same time, with which a hostile client of a proxy or of an
// application could try to avoid its limit.
func TestClientsThatAbuseReservations(t *testing.T) {
	t.Parallel()
	s := startSettler(t)
	t.Run("repeats a settlement", func(t *testing.T) {
		byProxy, byProgram := s.mustStart("user=repeats"), s.reserve("tokens", "repeats", 200)
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				if err := s.done(byProxy, 30); err != nil {
					t.Error(err)
				}
				if code, answer := s.settle(byProgram, 50); code != 200 && code != http.StatusConflict {
					t.Errorf("got %d %s; want status 200 or 409", code, answer)
				}
			})
		}
		all.Wait()
		s.want("tokens", "repeats", 1_000_000-80)
		_ = s.done(byProxy, 0)
		_ = s.done(byProgram, 0)
		if code, answer := s.settle(byProgram, 0); code != http.StatusConflict {
			t.Errorf("got %d %s; want status 409", code, answer)
		}
		s.want("tokens", "repeats", 1_000_000-80)
	})
	t.Run("never settles, in thousands of streams", func(t *testing.T) {
		buckets := metric(s.addr, "rlsidecar_memory_keys ")
		var all sync.WaitGroup
		var mu sync.Mutex
		allowed := 0
		for range 20 {
			all.Go(func() {
				for range 100 {
					if _, err := s.start("poor=endless"); err == nil {
						mu.Lock()
						allowed++
						mu.Unlock()
					}
				}
			})
		}
		all.Wait()
		if allowed != 10 {
			t.Errorf("%d reservations of 100 units are open in a bucket of 1000, want 10", allowed)
		}
		if more := metric(s.addr, "rlsidecar_memory_keys ") - buckets; more > 10 {
			t.Errorf("unsettled reservations use %g buckets, want at most 10", more)
		}
	})
}
