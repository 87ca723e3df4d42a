package redis

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// malformed has replies that no command of this package expects.
var malformed = []string{
	"*0\r\n", "*-1\r\n", "$-1\r\n", "$0\r\n\r\n", "+\r\n", "+x\r\n", "-\r\n", "-x\r\n", "-MOVED\r\n", "-MOVED 1\r\n", "-ASK 99999 :0\r\n",
	":\r\n", ":x\r\n", ":-1\r\n", ":9223372036854775808\r\n", "$x\r\n", "$5\r\nab", "\r\n", "\n", "\x00", "_\r\n", "#t\r\n", "%1\r\n", ">1\r\n+x\r\n",
	"*1\r\n*0\r\n", "*1\r\n$-1\r\n", "*1\r\n*-1\r\n", "*1\r\n:1\r\n", "*1\r\n-x\r\n", "*2\r\n$-1\r\n$-1\r\n", "*3\r\n:1\r\n:2\r\n:3\r\n",
	"*3\r\n$-1\r\n$-1\r\n$-1\r\n", "*2\r\n*1\r\n*1\r\n*0\r\n+x\r\n", "*2\r\n$0\r\n\r\n$0\r\n\r\n", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nx\r\n",
	// messages
	"*1\r\n$9\r\nsubscribe\r\n", "*2\r\n$9\r\nsubscribe\r\n$1\r\na\r\n", "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n$1\r\n1\r\n",
	"*3\r\n$9\r\nsubscribe\r\n:1\r\n*0\r\n", "*1\r\n$7\r\nmessage\r\n", "*3\r\n$7\r\nmessage\r\n$-1\r\n$-1\r\n", "*3\r\n$7\r\nmessage\r\n:1\r\n$1\r\nx\r\n",
	"*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n*1\r\n:1\r\n", "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n*1\r\n$-1\r\n",
	"*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$0\r\n\r\n", "*4\r\n$8\r\npmessage\r\n:1\r\n:1\r\n:1\r\n", "*1\r\n$4\r\npong\r\n", "*2\r\n$4\r\npong\r\n:1\r\n",
	"*2\r\n$8\r\npmessage\r\n$1\r\na\r\n", "*3\r\n*0\r\n*0\r\n*0\r\n",
	// the layout of a Cluster
	"*1\r\n*1\r\n:1\r\n", "*1\r\n*2\r\n:0\r\n:1\r\n", "*1\r\n*3\r\n:0\r\n:16383\r\n*0\r\n", "*1\r\n*3\r\n:-5\r\n:99999\r\n*2\r\n$-1\r\n:0\r\n",
	"*1\r\n*3\r\n:9\r\n:1\r\n*3\r\n$0\r\n\r\n:99999\r\n$-1\r\n", "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\n?\r\n:1\r\n$1\r\nx\r\n*3\r\n:1\r\n:1\r\n:1\r\n",
}

// fakeServer is a Redis, a Sentinel and a Cluster of one node. Every charge is allowed. While bad is set, it
// is the reply to the command of that name.
type fakeServer struct {
	addr     string
	listener net.Listener

	mu      sync.Mutex
	command string // this and the following fields are guarded by mu
	bad     func(good string) string
	endless string // sent without end after each command other than PING and HELLO
	conns   map[net.Conn]bool
}

func startFakeServer(t *testing.T) *fakeServer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeServer{addr: l.Addr().String(), listener: l, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[c] = true
			s.mu.Unlock()
			go s.serve(c)
		}
	}()
	return s
}

// answer makes the server answer a command with bad from now on. It ends all connections, so that the
// commands of a new connection come again, too.
func (s *fakeServer) answer(command string, bad func(good string) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.command, s.bad = command, bad
	for c := range s.conns {
		c.Close()
	}
}

func (s *fakeServer) serve(c net.Conn) {
	defer func() {
		c.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, c)
	}()
	r := bufio.NewReader(c)
	for {
		words, err := readCommand(r)
		if err != nil || len(words) == 0 {
			return
		}
		name := strings.ToLower(words[0])
		if name == "sentinel" || name == "cluster" {
			name += " " + strings.ToLower(words[1])
		}
		text := s.reply(name, words)
		s.mu.Lock()
		if s.bad != nil && (name == s.command || s.command == "") {
			text = s.bad(text)
		} else if s.bad != nil && s.command == "a message" && name == "subscribe" {
			text += s.bad("*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n" + bulks("main 127.0.0.1 1 127.0.0.1 2"))
		}
		endless := s.endless
		s.mu.Unlock()
		for endless != "" && name != "ping" && name != "hello" && err == nil {
			_, err = io.WriteString(c, endless)
		}
		if _, err := io.WriteString(c, text); err != nil {
			return
		}
	}
}

func bulks(texts ...string) (reply string) {
	for _, text := range texts {
		reply += fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
	}
	return reply
}

func (s *fakeServer) reply(name string, words []string) string {
	host, port, _ := net.SplitHostPort(s.addr)
	switch name {
	case "ping":
		return "+PONG\r\n"
	case "hello":
		return "-ERR unknown command 'hello'\r\n"
	case "info":
		return bulks("# Replication\r\nrole:master\r\nredis_version:7.2.0\r\n")
	case "evalsha", "eval":
		switch {
		case strings.HasPrefix(words[3], "rl:{ledger}secret"):
			return bulks("secret")
		case strings.HasPrefix(words[3], "rl:{ledger}"):
			return "*7\r\n" + bulks("2 b", "1", "1") + "*1\r\n" + bulks("2 b\n{}") + bulks("0") + ":2\r\n*4\r\n" + bulks("head", "2 b", "id", "value")
		}
		return bulks(string(encode(doubles(nil, 1e15), &backend.Decision{Decision: algorithms.Decision{Allowed: true}})))
	case "cluster slots":
		return "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n" + bulks(host) + ":" + port + "\r\n" + bulks("0123456789012345678901234567890123456789")
	case "sentinel get-master-addr-by-name":
		return "*2\r\n" + bulks(host, port)
	case "sentinel sentinels":
		return "*1\r\n*6\r\n" + bulks("name", "other", "ip", "", "port", "26379")
	case "subscribe":
		text := ""
		for i, channel := range words[1:] {
			text += "*3\r\n" + bulks("subscribe", channel) + fmt.Sprintf(":%d\r\n", i+1)
		}
		return text
	case "time":
		return "*2\r\n" + bulks("1700000000", "5")
	case "hmget":
		return "*1\r\n" + bulks("1")
	case "hscan":
		return "*2\r\n" + bulks("0") + "*2\r\n" + bulks("id", "1700000000000 report")
	case "hset", "pexpire", "hdel", "del", "wait", "exists":
		return ":1\r\n"
	case "get":
		return bulks("\x01")
	case "command":
		return "*0\r\n"
	default:
		return "+OK\r\n"
	}
}

// everyCall makes each kind of call of a Store and of a Ledger.
func everyCall(ctx context.Context, s *Store, l *Ledger) {
	_ = s.Report(ctx, "id", "report")
	_, _ = s.Fleet(ctx)
	_ = s.Examine(ctx, 0)
	_ = s.Prove(ctx)
	_, _ = l.Secret(ctx, "x")
	_, _, _, _, _ = l.Read(ctx, "1 a")
	_, _ = l.Write(ctx, "2 b", "3 c", []string{"3 c\n{}"}, map[string]string{"id": ""})
}

// Nothing that a server sends ends the process. Requests are answered meanwhile, and are decided again once the server
// behaves.
func TestMalformedRepliesAreErrors(t *testing.T) {
	both := []string{"", "hello", "client", "auth", "select", "ping", "evalsha", "eval", "info", "time", "hmget", "hscan", "command"}
	for form, test := range map[string]struct {
		url      string
		commands []string
	}{
		"one server": {"redis://:p@%s/1", both},
		"Sentinels": {
			"redis+sentinel://:p@%s/main?sentinel_password=q",
			[]string{"", "hello", "auth", "info", "sentinel get-master-addr-by-name", "sentinel sentinels", "subscribe", "a message", "ping"},
		},
		"a Cluster": {"redis+cluster://:p@%s", append([]string{"cluster slots", "cluster info", "set", "get"}, both...)},
	} {
		for _, command := range test.commands {
			t.Run(form+"/"+command, func(t *testing.T) {
				t.Parallel()
				f := startFakeServer(t)
				c := Config{URL: fmt.Sprintf(test.url, f.addr), Timeout: 20 * ms}
				s := open(t, c)
				l, err := OpenLedger(c, "ledger")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { l.Close() })
				for _, reply := range malformed {
					f.answer(command, func(string) string { return reply })
					underMalformed(t, s, l, fmt.Sprintf("%q", reply))
				}
				random := rand.New(rand.NewPCG(1, 2))
				for range 20 {
					f.answer(command, func(good string) string { return mutated(random, good) })
					underMalformed(t, s, l, "a changed reply")
				}
				f.answer("", nil)
				redistest.Eventually(t, "requests are decided again", func() bool {
					d := takeAll(s, limited(1).Charges)
					return d[0].Err == nil && d[0].Allowed
				})
			})
		}
	}
}

func underMalformed(t *testing.T, s *Store, l *Ledger, reply string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*ms)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		everyCall(ctx, s, l)
		takeAll(s, limited(1).Charges)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s: a call does not end", reply)
	}
}

// mutated returns good with a few random changes.
func mutated(r *rand.Rand, good string) string {
	const special = "\r\n*$:+-_0129 x"
	b := []byte(good)
	for range 1 + r.IntN(3) {
		at := r.IntN(len(b) + 1)
		switch r.IntN(4) {
		case 0:
			b = b[:at]
		case 1:
			b = append(b[:at:at], append([]byte{special[r.IntN(len(special))]}, b[at:]...)...)
		case 2:
			if at < len(b) {
				b[at] = special[r.IntN(len(special))]
			}
		default:
			to := min(len(b), at+r.IntN(8))
			b = append(b[:at:at], b[to:]...)
		}
	}
	return string(b)
}
