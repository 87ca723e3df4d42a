package statsd

import (
	"io"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type source struct {
	mu       sync.Mutex
	counters map[string]uint64
	timings  []time.Duration
}

func (s *source) add(name string, n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counters[name] += n
}

func (s *source) Counters() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.counters)
}

func (s *source) Timings() (string, []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.timings
	s.timings = nil
	return "response_time", list
}

type server struct {
	address string
	packet  net.PacketConn
	stream  net.Listener
}

func listen(t *testing.T, network string) *server {
	t.Helper()
	s, err := &server{}, error(nil)
	if network == "udp" {
		if s.packet, err = net.ListenPacket("udp", "127.0.0.1:0"); err == nil {
			s.address = s.packet.LocalAddr().String()
			t.Cleanup(func() { s.packet.Close() })
		}
	} else if s.stream, err = net.Listen("tcp", "127.0.0.1:0"); err == nil {
		s.address = s.stream.Addr().String()
		t.Cleanup(func() { s.stream.Close() })
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// next returns the lines of one flush, sorted. They are from one connection, or from one packet.
func (s *server) next(t *testing.T) []string {
	t.Helper()
	var text []byte
	if s.packet != nil {
		text = make([]byte, 64<<10)
		_ = s.packet.SetReadDeadline(time.Now().Add(time.Minute))
		n, _, err := s.packet.ReadFrom(text)
		if err != nil {
			t.Fatal(err)
		}
		text = text[:n]
	} else {
		_ = s.stream.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
		conn, err := s.stream.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if text, err = io.ReadAll(conn); err != nil {
			t.Fatal(err)
		}
	}
	return slices.Sorted(strings.SplitSeq(strings.TrimSuffix(string(text), "\n"), "\n"))
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func flusher(t *testing.T, c Config, log *zap.Logger) func() {
	t.Helper()
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	c.Log, c.Every = log, time.Hour
	s := newSink(c)
	return func() { s.report(s.flush(t.Context())) }
}

func TestMetricsArriveOverUDPAndTCP(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		receiver := listen(t, network)
		counts := &source{counters: map[string]uint64{"a": 3, "b": 1}, timings: []time.Duration{1500 * time.Microsecond}}
		flush := flusher(t, Config{Address: receiver.address, Network: network, Source: counts, Tags: map[string]string{"zone": "eu:1", "app": "rl"}}, zap.NewNop())
		flushed := make(chan struct{})
		turn := func() []string {
			go func() { flush(); flushed <- struct{}{} }()
			defer func() { <-flushed }()
			return receiver.next(t)
		}
		const tags = ".__app=rl.__zone=eu_1"
		expect(t, turn(), "a"+tags+":3|c", "b"+tags+":1|c", "response_time"+tags+":1.500000|ms")
		counts.add("a", 2)
		expect(t, turn(), "a"+tags+":2|c") // only the difference to the previous flush is sent
	}
}

func TestDogStatsDMetricsAndTags(t *testing.T) {
	receiver := listen(t, "udp")
	counts := &source{counters: map[string]uint64{
		"ratelimit.service.rate_limit.edge.user_bob.total_hits": 3,
		"ratelimit.service.config_load_success":                 1,
		"ratelimit_server.Check.total_requests":                 4,
	}}
	flush := flusher(t, Config{
		Address: receiver.address, Network: "udp", Dog: true, Source: counts, Tags: map[string]string{"zone": "eu"},
		Rewrites: []Rewrite{
			{Pattern: regexp.MustCompile(`^ratelimit\.service\.rate_limit\.(.*)\.(.*)\.(.*)$`), Name: "rl.$3", Tags: map[string]string{"domain": "$1", "key": "$2|$9"}},
			{Pattern: regexp.MustCompile(`rate_limit`), Name: "never.first"},
			{Pattern: regexp.MustCompile(`config_load_(.*)`), Name: "config.$1"},
		},
	}, zap.NewNop())
	flush()
	expect(t, receiver.next(t),
		"config.success:1|c|#zone:eu",
		"ratelimit_server.Check.total_requests:4|c|#zone:eu",
		"rl.total_hits:3|c|#zone:eu,domain:edge,key:user_bob_")
}

func TestManyMetricsArriveWhole(t *testing.T) {
	receiver := listen(t, "tcp")
	counts := &source{counters: map[string]uint64{}}
	for i := range 20_000 {
		counts.counters["ratelimit.service.rate_limit.edge.user_"+strings.Repeat("x", i%200)+string(rune('a'+i%26))+time.Duration(i).String()] = 1
	}
	flush := flusher(t, Config{Address: receiver.address, Network: "tcp", Source: counts}, zap.NewNop())
	done := make(chan struct{})
	go func() { defer close(done); flush() }()
	if n := len(receiver.next(t)); n != 20_000 {
		t.Errorf("%d lines; want 20_000", n)
	}
	<-done
}

func TestUnsentCountsAreSentLater(t *testing.T) {
	receiver := listen(t, "tcp")
	counts := &source{counters: map[string]uint64{"a": 3}}
	core, logs := observer.New(zap.InfoLevel)
	flush := flusher(t, Config{Address: receiver.address, Network: "tcp", Source: counts}, zap.New(core))
	receiver.stream.Close()
	flush()
	counts.add("a", 4)
	flush()
	if logs.Len() != 1 {
		t.Errorf("%d lines in the log; want 1", logs.Len())
	}
	again, err := net.Listen("tcp", receiver.address)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	receiver.stream = again
	done := make(chan struct{})
	go func() { defer close(done); flush() }()
	expect(t, receiver.next(t), "a:7|c")
	<-done
	if logs.Len() != 2 {
		t.Errorf("%d lines in the log; want 2", logs.Len())
	}
}

func TestWrongConfigs(t *testing.T) {
	for _, c := range []Config{{Address: "host", Network: "udp"}, {Address: "host:", Network: "udp"}, {Address: "h:1", Network: "unix"}} {
		if c.Check() == nil {
			t.Errorf("got %+v; want an error from Check", c)
		}
	}
}
