package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// terminal is the terminal of the process, if both its input and its output are one.
type terminal struct{ in, out *os.File }

// terminalOf returns nil if the input or the output is no terminal.
func terminalOf(a *app) *terminal {
	in, isIn := a.stdin.(*os.File)
	out, isOut := a.stdout.(*os.File)
	if !isIn || !isOut || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
		return nil
	}
	return &terminal{in, out}
}

const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the alternate screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	interrupt   = 3 // the byte of Ctrl-C
)

// refresh shows what draw writes, again after each pause, until the user presses q or Ctrl-C. It cuts what the screen has
// no room for. If draw fails, it shows the error, but the first error ends it.
func (t *terminal) refresh(a *app, pause time.Duration, draw func(io.Writer) error) (err error) {
	before, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return err
	}
	fmt.Fprint(t.out, enterScreen)
	defer func() {
		fmt.Fprint(t.out, leaveScreen)
		err = errors.Join(err, term.Restore(int(t.in.Fd()), before))
	}()
	quit := make(chan struct{})
	go func() { // ends with the process, because reading from a terminal cannot be aborted
		key := make([]byte, 1)
		for {
			if _, err := t.in.Read(key); err != nil || key[0] == 'q' || key[0] == interrupt {
				close(quit)
				return
			}
		}
	}()
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for drawn := false; ; {
		var screen bytes.Buffer
		if err := draw(&screen); err != nil && !drawn {
			return err
		} else if err != nil {
			screen.Reset()
			fmt.Fprintf(&screen, "%v    (q ends)", err)
		}
		drawn = true
		width, height, err := term.GetSize(int(t.out.Fd()))
		if err != nil {
			return err
		}
		if width == 0 || height == 0 { // a terminal that does not know its size, such as a serial console
			width, height = 80, 24
		}
		fmt.Fprint(t.out, fit(screen.String(), width, height))
		select {
		case <-quit:
			return nil
		case <-a.ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// fit returns the text that replaces a screen of this size by the first lines of text.
func fit(text string, width, height int) string {
	var out strings.Builder
	out.WriteString("\x1b[H")
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines[:min(len(lines), height)] {
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:max(0, width-1)]) + "…"
		}
		if i > 0 {
			out.WriteString("\r\n")
		}
		out.WriteString(line + "\x1b[K")
	}
	return out.String() + "\x1b[J"
}

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
