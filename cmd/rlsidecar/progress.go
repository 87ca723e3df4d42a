package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// progress reads a file, and shows on a terminal how much of it has been read, and the time left.
type progress struct {
	*os.File
	terminal   io.Writer
	size, read int64
	began      time.Time
	shown      time.Time // when the last line was shown
}

// withProgress returns file itself if its size is not known, or if the errors do not go to a terminal.
func withProgress(a *app, file *os.File) io.ReadCloser {
	terminal, ok := a.stderr.(*os.File)
	info, err := file.Stat()
	if !ok || !term.IsTerminal(int(terminal.Fd())) || err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return file
	}
	now := time.Now()
	return &progress{File: file, terminal: terminal, size: info.Size(), began: now, shown: now}
}

func (p *progress) Read(b []byte) (n int, err error) {
	n, err = p.File.Read(b)
	p.read += int64(n)
	if now := time.Now(); now.Sub(p.shown) > time.Second {
		p.shown = now
		fmt.Fprintf(p.terminal, "\r%s\x1b[K", progressOf(p.read, p.size, now.Sub(p.began)))
	}
	return n, err
}

// Close removes the line.
func (p *progress) Close() error {
	if p.shown != p.began {
		fmt.Fprint(p.terminal, "\r\x1b[K")
	}
	return p.File.Close()
}

// progressOf describes how much is done, and the time left if the rest takes as long as what was done after elapsed.
func progressOf(done, size int64, elapsed time.Duration) string {
	share := min(1, float64(done)/float64(size))
	text := fmt.Sprintf("%.0f %%", 100*share)
	if share > 0 {
		text += fmt.Sprintf(", %s left", time.Duration(float64(elapsed)*(1-share)/share).Round(time.Second))
	}
	return text
}
