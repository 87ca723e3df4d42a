// Package simulate replays a trace or an access log in virtual time, and reports the requests that would have
// been denied. The limits, the arithmetic and the store are those of the sidecar. The time is that of the
// trace. Equal input gives equal output, even if the store is full. Memory is bounded, whatever the length of the
// input.
package simulate

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
)

type Format string

const (
	JSONL Format = "jsonl" // a trace
	Nginx Format = "nginx" // an access log in the combined format
	Envoy Format = "envoy" // an access log in Envoy's default format, or as lines of JSON
)

type Config struct {
	Snapshot *limiter.Snapshot
	// Name is the name of the input in messages.
	Name      string
	Input     io.Reader // may be compressed with gzip
	Format    Format
	Templates Templates
	// Domain is the domain for access logs, and for lines of a trace that name none.
	Domain string
	// Decisions receives one line of JSON for each request, and for each unreadable line of a log. It may be nil.
	Decisions io.Writer
	// MaxKeys bounds the buckets kept; 0 means memory.DefaultMaxKeys.
	MaxKeys int
	// Share is the largest share of the clients that a suggested limit may deny a request, in [0, 1).
	Share float64
	// HistoryBytes bounds the memory for requests that are kept to find suggestions; 0 means
	// advise.DefaultMemory.
	HistoryBytes int64

	// durations means that the requests of an access log last, and so are replayed in the order of their starts. Without
	// a concurrency limit, their durations have no effect.
	durations bool
}

// LineError is a mistake in the input.
type LineError struct {
	Name string
	Line int64
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("%s:%d: %v", e.Name, e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// reader reads the request of a line into c, and returns the time of the request and the end of its call.
type reader interface {
	read(line string, c *limiter.Call) (algorithms.Micros, outcome, error)
}

const (
	// sweepEvery is the number of lines between two sweeps.
	sweepEvery = 1 << 12
	// maxLine bounds the bytes of a line with its newline, and so the memory for reading.
	maxLine = 1 << 20
)

type replay struct {
	Config
	reader  reader
	lenient bool // the input is an access log: unreadable lines are counted, and time may step back
	limiter *limiter.Limiter
	store   *memory.Store
	now     algorithms.Micros
	swept   int64 // the number of the line after which buckets were deleted last
	call    limiter.Call
	done    limiter.Call // reused for calls that settle other calls
	open    queue[*openCall]
	startOf func(line string) (algorithms.Micros, error) // reads the time of a line of an access log
	tally   *tally
	out     *bufio.Writer // nil if no decisions are written
	line    []byte        // the buffer for one decision
	writes  decisions
}

// Run replays the whole input. A mistake in a trace is a *LineError and ends the run; the decisions before it
// have been written.
func Run(ctx context.Context, c Config) (*Report, error) {
	c.durations = hasConcurrency(c.Snapshot)
	r, err := newReplay(c)
	if err != nil {
		return nil, err
	}
	if c.Decisions != nil {
		r.out = bufio.NewWriterSize(c.Decisions, 64<<10)
	}
	if err = r.all(ctx); err == nil {
		err = r.settleDue(ctx, algorithms.MaxTime)
	}
	if r.out != nil {
		err = errors.Join(err, r.out.Flush())
	}
	if err != nil {
		return nil, err
	}
	if s := r.Templates.routes; s != nil {
		r.tally.leftOut = s.leftOut
	}
	return r.tally.report(ctx, r.Share)
}

func newReplay(c Config) (*replay, error) {
	r := &replay{Config: c, tally: newTally(c.Snapshot, c.HistoryBytes)}
	switch c.Format {
	case JSONL:
		r.reader = &trace{domain: c.Domain}
	case Nginx, Envoy:
		log := newAccessLog(c.Format, c.Templates, c.Domain, c.durations)
		r.reader, r.lenient, r.startOf = log, true, log.startOf
	default:
		return nil, fmt.Errorf("format %q is not known", c.Format)
	}
	r.store = memory.New(memory.Config{Clock: func() time.Time { return time.UnixMicro(int64(r.now)) }, MaxKeys: c.MaxKeys, Repeatable: true})
	r.store.SetOwners(r.tally.owners)
	r.limiter = limiter.New(r.store, limiter.Config{IDs: newIDs(), Now: func() algorithms.Micros { return r.now }, Estimates: &estimates{}})
	r.limiter.Swap(c.Snapshot)
	return r, nil
}

func (r *replay) all(ctx context.Context) error {
	lines, err := r.eachLine(ctx, r.sweep, func(line string, number int64) error {
		if err := r.one(ctx, line, number); err != nil {
			return &LineError{r.Name, number, err}
		}
		if err := r.write(); err != nil {
			return fmt.Errorf("write decisions: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.unread(lines)
}

func hasConcurrency(s *limiter.Snapshot) bool {
	return slices.ContainsFunc(s.Policies, func(p *limiter.Policy) bool { return p.Limit.Kind == algorithms.Concurrency })
}

// eachLine calls visit with each line of the input that is not empty, and sweep at intervals. It returns the number of
// all lines.
func (r *replay) eachLine(ctx context.Context, sweep func(number int64), visit func(line string, number int64) error) (lines int64, err error) {
	sorted := &byStart{startOf: r.startOf}
	sorted.visit = func(line string, number int64) error {
		if sorted.visited++; sorted.visited%sweepEvery == 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			sweep(sorted.visited)
		}
		return visit(line, number)
	}
	next := sorted.visit
	if r.durations && r.startOf != nil {
		next = sorted.add
	}
	in, err := decompressed(r.Input)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", r.Name, err)
	}
	for {
		text, err := in.ReadSlice('\n')
		ended := errors.Is(err, io.EOF)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return 0, &LineError{r.Name, lines + 1, errors.New("line is longer than 1 MiB")}
		case err != nil && !ended:
			return 0, fmt.Errorf("read %s: %w", r.Name, err)
		case len(text) > 0:
			lines++
		}
		if line := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r"); line != "" {
			if err := next(line, lines); err != nil {
				return 0, err
			}
		}
		if ended {
			return lines, sorted.release(0)
		}
	}
}

// decompressed returns a reader of r, which may be compressed with gzip. Its buffer has room for the longest line.
func decompressed(r io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, maxLine)
	magic, err := in.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return in, nil
	}
	from, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return bufio.NewReaderSize(from, maxLine), nil
}

// sweep deletes the buckets that equal new ones, if the store is more than half full. It visits all buckets, so it
// runs at most once in MaxKeys/4 lines.
func (r *replay) sweep(line int64) {
	stats := r.store.Stats()
	if stats.Keys <= stats.MaxKeys/2 || line-r.swept < int64(stats.MaxKeys/4) {
		return
	}
	r.swept = line
	r.store.Sweep()
}

// unread returns an error if no line of a log could be read, because the log probably has another format.
func (r *replay) unread(lines int64) error {
	if t := r.tally; t.Requests == 0 && t.unread > 0 {
		return &LineError{r.Name, t.unreadAt[0], fmt.Errorf("%w; no line of %d is", t.unreadErr, lines)}
	}
	return nil
}

func (r *replay) one(ctx context.Context, line string, number int64) error {
	c := &r.call
	c.Reset()
	at, end, err := r.reader.read(line, c)
	if err != nil {
		if !r.lenient {
			return err
		}
		c.Reset() // a line without a request gets a decision too, so that decisions match lines
		r.tally.skip(number, err)
		return nil
	}
	if at < r.now {
		if !r.lenient {
			return fmt.Errorf("time goes back: time_us is %d, and was %d before", at, r.now)
		}
		r.tally.steppedBack++
		at = r.now // logs are in the order of the ends of requests, so their starts may step back
	}
	if err := r.settleDue(ctx, at); err != nil {
		return err
	}
	r.now, c.Returns = at, true
	if len(c.Limits) == 0 {
		// A request with descriptors may wait up to the max_delay of a leaky bucket, like a request of a proxy.
		c.Request.MaxDelay = algorithms.MaxTime
	}
	if s := r.Templates.routes; s != nil && s.repeated {
		r.tally.repeated++
		c.Denied = true
	} else if s != nil && s.unrouted && !r.limiter.Current().Requires(c.Request.Domain) {
		r.tally.unrouted++
		c.Denied = !s.auth.Allow
	} else if err := r.limiter.Check(ctx, c); err != nil {
		return err
	}
	r.tally.count(at, c, end)
	if end.later {
		return r.settleLater(ctx, c, end)
	}
	if c.HasSlots() {
		r.tally.peaks.endless++
	}
	r.limiter.ReturnSlotsOf(c, limiter.ReporterSelf) // without a duration, a request ends at once
	return nil
}

func (r *replay) write() error {
	if r.out == nil {
		return nil
	}
	r.line = r.writes.append(r.line[:0], &r.call)
	_, err := r.out.Write(r.line)
	return err
}
