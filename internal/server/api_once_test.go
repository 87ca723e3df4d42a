package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

const tokens = `
domain: d
limits:
  tokens: {algorithm: token_bucket, rate: 1000, period: 365d, max_reserved: 500}
  pass:   {algorithm: token_bucket, rate: 3, period: 365d, on_backend_failure: allow}
`

func TestSidecarsChargeOnceAndSettleForEachOther(t *testing.T) {
	redis := redistest.Start(t)
	token := func(c *Config) { c.APIToken = "s3cret" }
	var all []*instance
	for range 3 {
		all = append(all, start(t, tokens, onRedis("redis://"+redis.Addr), token))
	}
	post := func(i int, body string) (int, string) {
		return post(t, all[i%3].HTTP, "/v1/limit", body, "Authorization", "Bearer s3cret")
	}
	var wg sync.WaitGroup
	answers := [10]sync.Map{}
	for worker := range 6 {
		wg.Go(func() {
			for id := range 10 {
				code, answer := post(worker+id, fmt.Sprintf(`{"name":"tokens","count":10,"request_id":"%d"}`, id))
				if code != 200 {
					t.Errorf("got %d %s; want code 200", code, answer)
				}
				answers[id].Store(answer, true)
			}
		})
	}
	wg.Wait()
	for id := range answers {
		n := 0
		answers[id].Range(func(any, any) bool { n++; return true })
		if n != 1 {
			t.Errorf("id %d had %d different answers; want 1", id, n)
		}
	}
	left := func(want string) {
		t.Helper()
		if _, answer := post(0, `{"name":"tokens","count":0}`); !strings.Contains(answer, `"remaining":`+want+`,`) {
			t.Errorf("%s, want %s remaining", answer, want)
		}
	}
	left("900")
	_, answer := post(0, `{"name":"tokens","count":800,"reserve":true,"request_id":"work"}`)
	var parsed struct{ Reservation string }
	if err := json.Unmarshal([]byte(answer), &parsed); err != nil || parsed.Reservation == "" {
		t.Fatalf("got %s (%v); want JSON with the id of a reservation", answer, err)
	}
	for i := range 6 {
		if code, answer := post(i, `{"reservation":"`+parsed.Reservation+`","count":300}`); code != 200 {
			t.Errorf("got %d %s; want code 200", code, answer)
		}
	}
	left("600")
}

func TestASlowRedisIsNotWaitedFor(t *testing.T) {
	redis := redistest.Start(t)
	slow := startSlow(t, redis.Addr)
	x := start(t, tokens, func(c *Config) { c.Redis = Redis{URL: "redis://" + slow.addr, Timeout: 20 * time.Millisecond} })
	eventually(t, "it answers", func() bool {
		code, _ := post(t, x.HTTP, "/v1/limit", `{"name":"tokens","key":"a"}`)
		return code == 200
	})
	slow.blocked.Store(true)
	for body, want := range map[string]int{
		`{"name":"tokens","key":"a"}`: 503, `{"name":"tokens","key":"a","request_id":"r"}`: 503,
		`{"name":"tokens","key":"a","count":2,"reserve":true}`: 503, `{"name":"pass"}`: 200,
	} {
		code, answer := post(t, x.HTTP, "/v1/limit", body)
		if code != want || want == 200 && (!strings.Contains(answer, `"degraded":true`) || strings.Contains(answer, "reservation")) {
			t.Errorf("%s: %d %s, want %d", body, code, answer, want)
		}
	}
	// The deadline of these requests ended before Redis answered, so Redis may or may not have their ids. A repeated
	// request must be answered in both cases.
	slow.blocked.Store(false)
	eventually(t, "it answers again", func() bool {
		code, _ := post(t, x.HTTP, "/v1/limit", `{"name":"tokens","key":"a","request_id":"r"}`)
		return code == 200
	})
}

// slowProxy is a proxy to a server. It delays the server's answers while blocked is true.
type slowProxy struct {
	addr    string
	blocked atomic.Bool
}

func startSlow(t *testing.T, server string) *slowProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &slowProxy{addr: l.Addr().String()}
	var wg sync.WaitGroup
	t.Cleanup(func() { s.blocked.Store(false); l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.pass(client, server) })
		}
	})
	return s
}

func (s *slowProxy) pass(client net.Conn, server string) {
	defer client.Close()
	up, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	go func() { _, _ = io.Copy(up, client); up.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := up.Read(buf)
		for s.blocked.Load() {
			time.Sleep(time.Millisecond)
		}
		if _, failed := client.Write(buf[:n]); err != nil || failed != nil {
			return
		}
	}
}

// Two sidecars with buckets of their own have the same key. An id that one of them settled refunds nothing at the other.
func TestAnIDIsSettledOnlyWhereTheBucketIs(t *testing.T) {
	token := func(c *Config) { c.APIToken = "s3cret" }
	one, other := start(t, tokens, token), start(t, tokens, token)
	_, answer := post(t, one.HTTP, "/v1/limit", `{"name":"tokens","count":800,"reserve":true}`, "Authorization", "Bearer s3cret")
	var parsed struct{ Reservation string }
	if err := json.Unmarshal([]byte(answer), &parsed); err != nil || parsed.Reservation == "" {
		t.Fatalf("got %s (%v); want JSON with the id of a reservation", answer, err)
	}
	for x, want := range map[*instance]int{one: 200, other: 404} {
		if code, answer := post(t, x.HTTP, "/v1/limit", `{"reservation":"`+parsed.Reservation+`","count":0}`, "Authorization", "Bearer s3cret"); code != want {
			t.Errorf("got %d %s; want code %d", code, answer, want)
		}
	}
}
