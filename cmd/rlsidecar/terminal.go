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
