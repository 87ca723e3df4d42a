package simulate

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	// blockSize is the size of the read buffer in bytes. The buffer grows for longer lines. Its complete lines become
	// one string. Each line is a substring, and so needs no allocation.
	blockSize = 64 << 10
	// maxLine bounds the bytes of a line with its newline, and so the memory for reading.
	maxLine = 1 << 20
)

var errLongLine = errors.New("line is longer than 1 MiB")

type lines struct {
	from  io.Reader
	buf   []byte // the start of a line whose end has not been read yet
	block string // the lines that have been read and not returned
	done  bool   // the input has ended
	// number is the number of the last line returned, from 1.
	number int64
}

// newLines reads r, which may be compressed with gzip.
func newLines(r io.Reader) (*lines, error) {
	in := bufio.NewReaderSize(r, 512) // a read that is larger than this buffer does not use it
	magic, err := in.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	l := &lines{from: in, buf: make([]byte, 0, blockSize)}
	if bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		if l.from, err = gzip.NewReader(bufio.NewReaderSize(in, blockSize)); err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
	}
	return l, nil
}

// next returns the next line without its newline (\n or \r\n), or io.EOF.
func (l *lines) next() (string, error) {
	for {
		if i := strings.IndexByte(l.block, '\n'); i >= 0 {
			line := l.block[:i]
			l.block = l.block[i+1:]
			l.number++
			return strings.TrimSuffix(line, "\r"), nil
		}
		if l.done {
			if l.block == "" {
				return "", io.EOF
			}
			line := strings.TrimSuffix(l.block, "\r")
			l.block = ""
			l.number++
			return line, nil
		}
		if err := l.fill(); err != nil {
			return "", err
		}
	}
}

// fill reads until block has a whole line. At the end of the input, block gets the rest, which may lack a newline.
func (l *lines) fill() error {
	for {
		if len(l.buf) == cap(l.buf) {
			if len(l.buf) >= maxLine {
				l.number++
				return errLongLine
			}
			l.buf = append(make([]byte, 0, 2*cap(l.buf)), l.buf...)
		}
		start := len(l.buf)
		n, err := l.from.Read(l.buf[start:cap(l.buf)])
		l.buf = l.buf[:start+n]
		if errors.Is(err, io.EOF) {
			l.block, l.buf, l.done = string(l.buf), nil, true
			return nil
		}
		if err != nil {
			return err
		}
		if i := bytes.LastIndexByte(l.buf[start:], '\n'); i >= 0 {
			end := start + i + 1
			l.block = string(l.buf[:end])
			l.buf = l.buf[:copy(l.buf, l.buf[end:])]
			return nil
		}
	}
}
