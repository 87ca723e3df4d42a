package nonblock

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func eachPair(t *testing.T, test func(*testing.T, *Conn, net.Conn)) {
	t.Helper()
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "s")} {
		t.Run(network, func(t *testing.T) {
			l, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			nc, peer := connect(t, l)
			test(t, Wrap(nc), peer)
		})
	}
}

func connect(t *testing.T, l net.Listener) (accepted, peer net.Conn) {
	t.Helper()
	peer, err := net.Dial(l.Addr().Network(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	if accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return accepted, peer
}

func TestAllThatIsWrittenArrives(t *testing.T) {
	sent := make([]byte, 30<<20) // more than the kernel buffers
	for i := range sent {
		sent[i] = byte(i * i >> 8)
	}
	eachPair(t, func(t *testing.T, c *Conn, peer net.Conn) {
		go func() {
			if n, err := c.Write(sent); n != len(sent) || err != nil {
				t.Errorf("wrote %d bytes, %v; want %d and no error", n, err, len(sent))
			}
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(10 * time.Millisecond) // by then the write usually waits for room in the socket
		have, err := io.ReadAll(peer)
		if !bytes.Equal(have, sent) || err != nil {
			t.Errorf("the peer read %d bytes, %v; want the %d bytes that were written", len(have), err, len(sent))
		}
		go func() {
			_, _ = peer.Write(sent)
			peer.Close()
		}()
		have, err = io.ReadAll(c)
		if !bytes.Equal(have, sent) || err != nil {
			t.Errorf("read %d bytes, %v; want the %d bytes that the peer wrote", len(have), err, len(sent))
		}
	})
}

func TestEndedSeesACloseBehindUnreadBytes(t *testing.T) {
	eachPair(t, func(t *testing.T, c *Conn, peer net.Conn) {
		if _, err := peer.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := c.Await(); err != nil {
			t.Fatal(err)
		}
		if c.Ended() {
			t.Error("Ended is true although the peer has not closed")
		}
		peer.Close()
		for !c.Ended() {
			time.Sleep(time.Millisecond)
		}
		c.Close()
		if !c.Ended() {
			t.Error("Ended is false although c is closed")
		}
	})
}

func TestWriteOnceDoesNotWait(t *testing.T) {
	eachPair(t, func(t *testing.T, c *Conn, peer net.Conn) {
		b, sum := make([]byte, 1<<20), 0
		for {
			n, err := c.WriteOnce(b)
			if err != nil {
				t.Fatal(err)
			}
			if sum += n; n == 0 {
				break
			}
		}
		if n, err := io.ReadFull(peer, make([]byte, sum)); err != nil {
			t.Errorf("the peer read %d of %d bytes, %v", n, sum, err)
		}
		if n, err := c.Write([]byte("x")); n != 1 || err != nil { // waits until the kernel has noticed that there is room
			t.Errorf("%d bytes written, %v; want 1 and no error", n, err)
		}
	})
}

func TestErrors(t *testing.T) {
	eachPair(t, func(t *testing.T, c *Conn, peer net.Conn) {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after the deadline: got %v; want ErrDeadlineExceeded", err)
		}
		_ = c.SetDeadline(time.Time{})
		b := make([]byte, 30<<20)
		_ = c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		n, err := c.Write(b)
		if n <= 0 || n >= len(b) || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the peer does not read: wrote %d bytes, %v; want a part and ErrDeadlineExceeded", n, err)
		}
		_ = c.SetDeadline(time.Time{})
		peer.Close()
		var failed *net.OpError
		for err = nil; err == nil; _, err = c.Write([]byte("x")) {
		}
		if !errors.As(err, &failed) || !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the peer has closed the connection: got %v; want EPIPE or ECONNRESET in a net.OpError", err)
		}
	})
	eachPair(t, func(t *testing.T, c *Conn, _ net.Conn) {
		time.AfterFunc(10*time.Millisecond, func() { c.Close() })
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed during a Read: got %v; want net.ErrClosed", err)
		}
		if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed before a Write: got %v; want net.ErrClosed", err)
		}
	})
}

func TestNothingIsAllocated(t *testing.T) {
	eachPair(t, func(t *testing.T, c *Conn, peer net.Conn) {
		b, echo := make([]byte, 100), make([]byte, 100)
		if n := testing.AllocsPerRun(100, func() {
			_, _ = c.Write(b)
			_, _ = io.ReadFull(peer, echo)
			_, _ = peer.Write(echo)
			_, _ = c.Read(b)
		}); n > 0 {
			t.Errorf("%v allocations for a Write and a Read; want 0", n)
		}
	})
}

func TestListener(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listener(plain)
	nc, _ := connect(t, l)
	if _, is := nc.(*Conn); !is {
		t.Errorf("Accept returned a %T; want a *Conn", nc)
	}
	l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestOtherConnectionsAreNotWrapped(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if Wrap(a) != nil {
		t.Error("Wrap of a pipe returned a Conn; want nil")
	}
}

func TestAwait(t *testing.T) {
	eachPair(t, func(t *testing.T, c *Conn, peer net.Conn) {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if err := c.Await(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after the deadline: got %v; want ErrDeadlineExceeded", err)
		}
		_ = c.SetReadDeadline(time.Time{})
		time.AfterFunc(10*time.Millisecond, func() { _, _ = peer.Write([]byte("ab")) })
		if err := c.Await(); err != nil {
			t.Error(err)
		}
		b := make([]byte, 4)
		if n, err := c.Read(b); n != 2 || err != nil || string(b[:2]) != "ab" {
			t.Errorf("got %q, %v; want \"ab\" and no error", b[:n], err)
		}
		peer.Close()
		if err := c.Await(); err != nil {
			t.Errorf("after the peer has closed: got %v; want no error", err)
		}
	})
}
