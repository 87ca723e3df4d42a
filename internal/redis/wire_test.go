package redis

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

type peer struct {
	net.Conn // the server's end of the connection

	reply func(args []string) string
	calls atomic.Int64
}

func (p *peer) serve() {
	for r := bufio.NewReader(p.Conn); ; {
		args, err := readCommand(r)
		if err != nil {
			return
		}
		p.calls.Add(1)
		if text := p.reply(args); text != "" {
			_, _ = io.WriteString(p.Conn, text)
		}
	}
}

func readCommand(r *bufio.Reader) (args []string, err error) {
	size := func() (n int, err error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := size()
	for range n {
		length, err := size()
		if err != nil {
			return nil, err
		}
		text := make([]byte, length+2)
		if _, err := io.ReadFull(r, text); err != nil {
			return nil, err
		}
		args = append(args, string(text[:length]))
	}
	return args, err
}

// echoed returns the answer of a script that decides like echo.
func echoed(args []string) string {
	declared, _ := strconv.Atoi(args[2])
	charges := args[3+declared+2]
	text := doubles(nil, 1)
	for ; len(charges) > 16; charges = charges[32:] {
		cost := int64(math.Float64frombits(binary.LittleEndian.Uint64([]byte(charges[16:24]))))
		text = encode(text, &backend.Decision{Decision: algorithms.Decision{Allowed: true, Remaining: cost}})
	}
	return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
}

// nodeTo returns a node with its own connections to the server of client.
func nodeTo(tb testing.TB, client *goredis.Client) *node {
	tb.Helper()
	n := newNode(&wire{options: *client.Options(), alive: func() {}}, keys{prefix: "rl:"}, nil)
	tb.Cleanup(n.wire.close)
	return n
}

func limited(sizes ...int) *backend.Batch {
	b, limit := batchOf(sizes...), limitOf(1000)
	for i := range b.Charges {
		b.Charges[i].Limit = limit
	}
	return b
}
