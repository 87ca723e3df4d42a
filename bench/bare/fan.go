package bare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fanScript reads and writes its keys. Its reply has as many bytes as the reply with which rlsidecar's script allows
// all charges.
const fanScript = `
redis.call('MGET', unpack(KEYS))
for i = 1, #KEYS do redis.call('PSETEX', KEYS[i], 60000, 'a state of twenty bytes') end
return string.rep('x', 8 + 33 * #KEYS)`

// chargeSize is the number of bytes of one charge in rlsidecar's calls, without the optional longest wait and time.
const chargeSize = 32

// Fan sends charges to several servers for the time d, with as few system calls as possible. In each round it
// sends each server one call with an equal share of the charges, and then waits for all replies. It returns
// the processor time of its thread for one charge.
func Fan(ctx context.Context, addresses []string, charges int, d time.Duration) (cpu time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var f fan
	defer f.close()
	for i, address := range addresses {
		n := (charges + i) / len(addresses)
		if err := f.dial(ctx, address, n); err != nil {
			return 0, err
		}
	}
	rounds, before := 0, threadTime()
	for end := time.Now().Add(d); time.Now().Before(end); rounds++ {
		if err := f.round(); err != nil {
			return 0, err
		}
	}
	return (threadTime() - before) / time.Duration(rounds*charges), ctx.Err()
}

type fan struct {
	calls  []fanCall
	waits  []unix.PollFd
	buffer [64 << 10]byte
}

type fanCall struct {
	fd        int
	frame     []byte
	replySize int
	replyLeft int // bytes that have not arrived yet
}

func (f *fan) close() {
	for _, c := range f.calls {
		_ = unix.Close(c.fd)
	}
}

func (f *fan) dial(ctx context.Context, address string, n int) error {
	c, err := Dial(ctx, address)
	if err != nil {
		return err
	}
	defer c.Close()
	sha, err := c.Text("SCRIPT", "LOAD", fanScript)
	if err != nil {
		return err
	}
	for tag := 0; ; tag++ { // tries tags, because a master of a Redis Cluster accepts only keys of its own slots
		words := []string{"EVALSHA", sha, strconv.Itoa(n)}
		for i := range n {
			words = append(words, fmt.Sprintf("{%d}:a-key-of-thirty-bytes:%06d", tag, i))
		}
		words = append(words, string(bytes.Repeat([]byte{1}, n*chargeSize)))
		if _, err = c.Text(words...); err == nil {
			c.command(words...)
			break
		}
		if !strings.Contains(err.Error(), "MOVED") {
			return err
		}
	}
	size := 8 + 33*n
	frame, answer := bytes.Clone(c.out), len("$\r\n\r\n")+len(strconv.Itoa(size))+size
	raw, err := c.nc.(*net.TCPConn).File()
	if err != nil {
		return err
	}
	defer raw.Close()
	fd, err := unix.Dup(int(raw.Fd()))
	if err != nil {
		return err
	}
	f.calls = append(f.calls, fanCall{fd: fd, frame: frame, replySize: answer})
	return unix.SetNonblock(fd, true)
}

func (f *fan) round() error {
	for i := range f.calls {
		c := &f.calls[i]
		c.replyLeft = c.replySize
		if n, err := unix.Write(c.fd, c.frame); err != nil || n < len(c.frame) {
			return errors.Join(err, errors.New("redis did not take a call at once"))
		}
	}
	for {
		f.waits = f.waits[:0]
		for _, c := range f.calls {
			if c.replyLeft > 0 {
				f.waits = append(f.waits, unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN})
			}
		}
		if len(f.waits) == 0 {
			return nil
		}
		if _, err := unix.Poll(f.waits, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for _, w := range f.waits {
			if err := f.read(w); err != nil {
				return err
			}
		}
	}
}

func (f *fan) read(w unix.PollFd) error {
	if w.Revents == 0 {
		return nil
	}
	n, err := unix.Read(int(w.Fd), f.buffer[:])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return err
	case n == 0 || f.buffer[0] == '-':
		return fmt.Errorf("redis: %q", f.buffer[:min(n, 200)])
	}
	for i := range f.calls {
		if c := &f.calls[i]; c.fd == int(w.Fd) {
			c.replyLeft -= n
		}
	}
	return nil
}

func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}
