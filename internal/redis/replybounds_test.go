package redis

import (
	"fmt"
	"math"
	"net"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The result does not depend on how the bytes are divided among reads. Errors are logged, so they are short.
func TestRepliesAreBounded(t *testing.T) {
	text := func(kind string, size int) string {
		return "+x\r\n" + kind + strings.Repeat("1", size-len(kind)-2) + "\r\n"
	}
	nested := func(depth int) string { return strings.Repeat("*1\r\n", depth) + ":1\r\n" }
	for reply, want := range map[string]string{
		"+OK\r\n:-5\r\n-ERR no\r\n":                          "",
		"$3\r\na\r\n\r\n+OK\r\n":                             "",
		"$0\r\n\r\n*0\r\n*-1\r\n$-1\r\n+OK\r\n":              "",
		"*3\r\n*2\r\n:1\r\n$-1\r\n*0\r\n$2\r\n*9\r\n+OK\r\n": "",
		nested(maxReplyDepth) + nested(maxReplyDepth):        "",
		nested(maxReplyDepth + 1):                            "nested arrays",
		"*99999999999\r\n":                                   "elements",
		"*99999999999999999999999999\r\n":                    "without a length",
		"*18446744073709551617\r\n":                          "elements",
		"*2\r\n*2097149\r\n":                                 "",
		"*2\r\n*2097150\r\n":                                 "elements",
		"*2\r\n+a\r\n+b\r\n*2097151\r\n":                     "",
		"$67108864\r\n":                                      "bytes", // the line with the length counts too
		"$99999999999\r\n":                                   "bytes",
		"*2\r\n$40000000\r\n" + strings.Repeat("x", 40_000_002) + "$40000000\r\n": "bytes",
		text("+", maxReplyText):        "",
		text("+", maxReplyText+1):      "more than 1024 bytes",
		text("-ERR ", 100<<10):         "more than 1024 bytes",
		text(":", maxReplyText):        "",
		text(":", maxReplyText+1):      "more than 1024 bytes",
		"*\r\n":                        "without a length",
		"*-2\r\n":                      "without a length",
		"*1x\r\n":                      "without a length",
		"*1\n":                         "without a length",
		"*" + strings.Repeat("0", 100): "without a length",
		"|1\r\n":                       "unknown type '|'",
		"%1\r\n":                       "unknown type '%'",
		"*1\r\n\r\n":                   "unknown type '\\r'",
	} {
		pieces := []int{1, 2, 3, 7, len(reply)}
		if len(reply) > 1<<20 {
			pieces = []int{len(reply), 1 << 20}
		}
		for _, piece := range pieces {
			r := replyBounds{most: 64 << 20}
			var err error
			for rest := []byte(reply); len(rest) > 0 && err == nil; rest = rest[min(piece, len(rest)):] {
				err = r.add(rest[:min(piece, len(rest))])
			}
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 500) {
				t.Errorf("%.60q in pieces of %d: got %v; want an error with %q", reply, piece, err, want)
			}
		}
	}
}

func TestTheBoundOfAReplyFollowsTheMemoryLimit(t *testing.T) {
	for memory, want := range map[int64]int{1: 4 << 20, 64 << 20: 4 << 20, 512 << 20: 32 << 20, 1 << 40: 64 << 20, math.MaxInt64: 64 << 20} {
		if got := replyBytes(memory); got != want {
			t.Errorf("with %d bytes of memory a reply may have %d bytes; want %d", memory, got, want)
		}
	}
	before := debug.SetMemoryLimit(64 << 20)
	defer debug.SetMemoryLimit(before)
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	go func() { _, _ = far.Write([]byte("$60000000\r\n")) }()
	if _, err := newConn(near, new(atomic.Uint32), 0).Read(make([]byte, 100)); err == nil || !strings.Contains(err.Error(), "4194304 bytes") {
		t.Errorf("a reply of 60 MB with a memory limit of 64 MiB: got the error %v; want one that names the bound", err)
	}
}

func TestReadsFailAtAReplyWithoutBounds(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	c := newConn(near, new(atomic.Uint32), 0)
	defer c.Close()
	go func() { _, _ = far.Write([]byte("*99999999999\r\n$1\r\n")) }()
	for range 2 {
		if n, err := c.Read(make([]byte, 100)); n != 0 || err == nil || !strings.Contains(err.Error(), "elements") {
			t.Fatalf("got %d bytes and the error %v; want no bytes and an error about elements", n, err)
		}
		go func() { _, _ = far.Write([]byte("+OK\r\n")) }()
	}
}

// A program in the place of Redis can make requests fail, but cannot end the process.
func TestAFalseRedisCannotEndTheProcess(t *testing.T) {
	for _, reply := range []string{"*99999999999\r\n", "$99999999999\r\n", "*1\r\n", "|1\r\n+a\r\n+b\r\n"} {
		for _, url := range []string{"redis://%s", "redis+sentinel://%s/main", "redis+cluster://%s"} {
			t.Run(url[:strings.Index(url, ":")]+fmt.Sprintf("%.4q", reply), func(t *testing.T) {
				t.Parallel()
				f := startFakeServer(t)
				f.mu.Lock()
				f.endless = strings.Repeat(reply, 1<<12)
				f.mu.Unlock()
				s := away(t, Config{URL: fmt.Sprintf(url, f.addr), Timeout: deadline})
				l := startLoad(t, 2, s)
				time.Sleep(300 * ms)
				l.stop()
				if share := l.share(l.began, time.Now(), nil); share > 0 {
					t.Errorf("%.1f %% were decided; want none", 100*share)
				}
			})
		}
	}
}
