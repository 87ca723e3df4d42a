// Package accesslog learns from the access logs of proxies that requests have ended, or that they still run.
//
// NGINX, HAProxy and Caddy write one line for each end of a request. Lines receives these lines. Envoy also reports
// requests that run for long, over gRPC. Service receives these reports. Both read nothing but the signed ids of slots,
// so neither a client nor another sender can make them return the slots of a request.
package accesslog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	// wantedBuffer is the receive buffer of a UDP socket, in bytes. With the default of Linux, 3 to 10 % of the lines were
	// lost at 7,000 to 12,000 lines a second, and none with wantedBuffer.
	wantedBuffer = 16 << 20
	// maxLine bounds the length of a line. An id has at most 4 KiB.
	maxLine = 8 << 10
	// maxSenders bounds the number of TCP connections.
	maxSenders = 64
)

// Lines receives lines over UDP or TCP.
type Lines struct {
	packets net.PacketConn // nil for TCP
	socket  net.Listener   // nil for UDP
	senders sync.WaitGroup

	mu     sync.Mutex
	closed bool                  // guarded by mu
	conns  map[net.Conn]struct{} // guarded by mu
}

// CheckAddress returns an error unless address is udp://HOST:PORT or tcp://HOST:PORT with a loopback address.
func CheckAddress(address string) error {
	_, _, err := split(address)
	return err
}

func split(address string) (network, hostPort string, err error) {
	network, hostPort, _ = strings.Cut(address, "://")
	if network != "udp" && network != "tcp" {
		return "", "", fmt.Errorf("%q is not udp://127.0.0.1:PORT or tcp://127.0.0.1:PORT", address)
	}
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		return "", "", err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return "", "", fmt.Errorf("%q can be reached from other machines; use a loopback address, such as 127.0.0.1", address)
	}
	return network, hostPort, nil
}

// Listen opens a socket at address, which CheckAddress accepts.
func Listen(address string) (*Lines, error) {
	network, hostPort, err := split(address)
	if err != nil {
		return nil, err
	}
	l := &Lines{conns: map[net.Conn]struct{}{}}
	if network == "tcp" {
		l.socket, err = net.Listen(network, hostPort)
	} else if l.packets, err = net.ListenPacket(network, hostPort); err == nil {
		grow(l.packets.(*net.UDPConn))
	}
	return l, err
}

// Addr returns the address of the socket.
func (l *Lines) Addr() net.Addr {
	if l.packets != nil {
		return l.packets.LocalAddr()
	}
	return l.socket.Addr()
}

// SmallBuffer returns the size of the receive buffer in bytes if lines may be lost because it is too small, and
// otherwise 0.
func (l *Lines) SmallBuffer() int {
	if l.packets == nil {
		return 0
	}
	if size := bufferOf(l.packets.(*net.UDPConn)); size < wantedBuffer {
		return size
	}
	return 0
}

// Serve calls ended with the text at the end of each line that can be an id, until Close. That text is "" if there is
// none, or if the line is too long. Lines that end in "-" are of requests without slots, and are ignored. ended must
// not block, and may be called by several goroutines at once.
func (l *Lines) Serve(ended func(id string)) error {
	defer l.senders.Wait()
	var err error
	if l.packets != nil {
		err = l.receive(ended)
	} else {
		err = l.accept(ended)
	}
	if l.mu.Lock(); l.closed {
		err = nil
	}
	l.mu.Unlock()
	return err
}

// Close ends Serve.
func (l *Lines) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.packets != nil {
		l.packets.Close()
		return
	}
	l.socket.Close()
	for c := range l.conns {
		c.Close()
	}
}

func (l *Lines) receive(ended func(id string)) error {
	packet := make([]byte, 64<<10)
	for {
		n, _, err := l.packets.ReadFrom(packet)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(packet[:n]) {
			report(line, ended)
		}
	}
}

func (l *Lines) accept(ended func(id string)) error {
	for {
		c, err := l.socket.Accept()
		// Temporary is deprecated, but for Accept it means that a retry may help, as with too many open files
		if t, ok := errors.AsType[net.Error](err); ok && t.Temporary() {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		if !l.add(c) {
			c.Close()
			continue
		}
		l.senders.Go(func() {
			defer l.remove(c)
			readLines(c, ended)
		})
	}
}

func (l *Lines) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.conns) == maxSenders {
		return false
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *Lines) remove(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	c.Close()
}

// readLines reads until r ends. A last line without an end may be incomplete, and is ignored.
func readLines(r io.Reader, ended func(id string)) {
	in := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		if err == nil {
			report(line, ended)
			continue
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			if _, err = in.ReadSlice('\n'); err == nil {
				ended("")
			}
		}
		if err != nil {
			return
		}
	}
}

// report calls ended with the id of a line, unless the id is "-", which proxies write for a value that is missing.
func report(line []byte, ended func(id string)) {
	if id := idOf(line); id != "-" {
		ended(id)
	}
}

// idOf returns the characters at the end of line that an id may have. In a line of JSON, a quote and a brace may follow.
func idOf(line []byte) string {
	line = bytes.TrimRight(line, "\r\n ")
	line = bytes.TrimSuffix(line, []byte(`"}`))
	start := len(line)
	for start > 0 && isOfID(line[start-1]) {
		start--
	}
	return string(line[start:])
}

func isOfID(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}
