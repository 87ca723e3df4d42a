package redis

import (
	"bytes"
	"fmt"
	"runtime/debug"
)

const (
	// The largest reply that the sidecar accepts, without and with a small memory limit (replyBytes). The largest reply
	// of a correct server is a page of the audit, of a few megabytes.
	maxReplyBytes, minReplyBytes = 64 << 20, 4 << 20
	maxReplyDepth                = 16 // the reply to COMMAND has 8
	// maxReplyText is the largest size of a text or an error. Servers send short ones. They are logged.
	maxReplyText = 1 << 10
	// elementBytes is what an element of an array costs in memory, beyond its bytes.
	elementBytes = 32
)

// replyBytes returns the largest size of a reply for a memory limit in bytes (math.MaxInt64 if there is none): a
// sixteenth, because several connections may get such a reply at the same time.
func replyBytes(memory int64) int { return int(min(max(memory/16, minReplyBytes), maxReplyBytes)) }

// replyBounds follows the replies on one connection, because go-redis allocates memory for as many elements and bytes
// as a reply announces, and reads nested arrays recursively. With most set, it is ready for the first byte of a connection.
// The connection uses RESP2: https://redis.io/docs/latest/develop/reference/protocol-spec/
type replyBounds struct {
	most    int    // the largest size of a reply
	line    []byte // the bytes of an incomplete line
	payload int    // the bytes of a bulk string, with its CR and LF, that have not arrived
	missing []int  // for each open array, the number of its elements that are not complete
	bytes   int    // the size of the current reply so far, including announced bytes and elements
	err     error  // the first error; each further call of add returns it, too
}

func newReplyBounds() replyBounds { return replyBounds{most: replyBytes(debug.SetMemoryLimit(-1))} }

const maxHeader = 24 // "*", a 64-bit number, CR and LF

// add examines b, the next bytes of the connection. After an error the connection must not be used.
func (r *replyBounds) add(b []byte) error {
	if r.err == nil {
		r.err = r.scan(b)
	}
	return r.err
}

func (r *replyBounds) scan(b []byte) error {
	for len(b) > 0 {
		if r.payload > 0 {
			n := min(r.payload, len(b))
			b, r.payload = b[n:], r.payload-n
			if r.payload == 0 {
				r.complete()
			}
			continue
		}
		n := bytes.IndexByte(b, '\n') + 1
		ended := n > 0
		if !ended {
			n = len(b)
		}
		r.bytes += n
		r.line = append(r.line, b[:min(n, maxReplyText+1)]...)
		b = b[n:]
		text := false
		switch r.line[0] {
		case '+', '-', ':':
			text = true
		case '$', '*':
		default:
			return fmt.Errorf("the server sent a reply of the unknown type %q", r.line[0])
		}
		switch {
		case r.bytes > r.most:
			return fmt.Errorf("the server sent a reply of more than %d bytes", r.most)
		case !text && len(r.line) > maxHeader:
			return fmt.Errorf("the server sent a reply without a length: %.20q", r.line)
		case len(r.line) > maxReplyText:
			return fmt.Errorf("the server sent a text or an error of more than %d bytes: %.100q", maxReplyText, r.line)
		case !ended:
			return nil
		case text:
			r.line = r.line[:0]
			r.complete()
		default:
			if err := r.header(); err != nil {
				return err
			}
		}
	}
	return nil
}

// header examines the complete line of a bulk string or an array.
func (r *replyBounds) header() error {
	line := r.line
	r.line = line[:0]
	if string(line[1:]) == "-1\r\n" { // nil
		r.complete()
		return nil
	}
	n := 0
	digits, crlf := bytes.CutSuffix(line[1:], []byte("\r\n"))
	for _, d := range digits {
		if d < '0' || d > '9' {
			crlf = false
			break
		}
		n = min(10*n+int(d-'0'), r.most+1)
	}
	if !crlf || len(digits) == 0 {
		return fmt.Errorf("the server sent a reply without a length: %q", line)
	}
	if line[0] == '$' {
		if r.bytes += n; r.bytes > r.most {
			return fmt.Errorf("the server announced a reply of more than %d bytes: %q", r.most, line)
		}
		r.payload = n + 2 // with CR and LF
		return nil
	}
	if n == 0 {
		r.complete()
		return nil
	}
	if n > (r.most-r.bytes)/elementBytes {
		return fmt.Errorf("the server announced a reply of more than %d elements: %q", r.most/elementBytes, line)
	}
	r.bytes += n * elementBytes
	if len(r.missing) == maxReplyDepth {
		return fmt.Errorf("the server sent a reply of more than %d nested arrays", maxReplyDepth)
	}
	r.missing = append(r.missing, n)
	return nil
}

// complete counts a complete element, and the arrays that it completes.
func (r *replyBounds) complete() {
	for len(r.missing) > 0 {
		last := len(r.missing) - 1
		if r.missing[last]--; r.missing[last] > 0 {
			return
		}
		r.missing = r.missing[:last]
	}
	r.bytes = 0
}
