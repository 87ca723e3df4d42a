// Package statsd periodically sends counters to a StatsD server, in the plain format or in the DogStatsD
// format. It reads totals and sends the differences, so counting has no additional cost, and a server that
// does not answer delays nothing. Over TCP, if no connection can be opened, the differences are sent later. If
// an open connection fails, the differences of that flush may be lost. They are never sent twice.
package statsd

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Config configures Run.
type Config struct {
	// Address is host:port. Network is "tcp" or "udp".
	Address, Network string
	// Dog selects the DogStatsD format, which has a field for tags. In the plain format tags are a part of the
	// name, as in the library of the reference server: name.__key=value.
	Dog bool
	// Tags are added to every metric.
	Tags map[string]string
	// Rewrites convert names to names with tags, in the DogStatsD format. The first Rewrite that matches a
	// name is applied.
	Rewrites []Rewrite
	// Every is the interval between flushes. 0 means 10 s.
	Every  time.Duration
	Source Source
	Log    *zap.Logger
}

// Check returns an error if c is invalid.
func (c *Config) Check() error {
	if _, port, err := net.SplitHostPort(c.Address); err != nil || port == "" {
		return fmt.Errorf("statsd: the address is %q; write host:port", c.Address)
	}
	if c.Network != "tcp" && c.Network != "udp" {
		return fmt.Errorf("statsd: the protocol is %q; write tcp or udp", c.Network)
	}
	return nil
}

// Source supplies the values.
type Source interface {
	// Counters returns the totals that are greater than 0, by their names.
	Counters() map[string]uint64
	// Timings returns a bounded sample of the durations since the last call.
	Timings() (name string, list []time.Duration)
}

// Rewrite converts parts of a name to tags.
type Rewrite struct {
	Pattern *regexp.Regexp
	// Name and the values of Tags may contain $1 for the text of the first group, $2 for the second, and so
	// on.
	Name string
	Tags map[string]string
}

const (
	// timeout bounds the duration of a flush.
	timeout = 5 * time.Second
	// payload bounds the bytes that are sent at once. That many fit into one packet if the MTU of the network is 1500
	// bytes, as on Ethernet.
	payload = 1432
)

// Run flushes periodically until ctx ends, and then once more.
func Run(ctx context.Context, c Config) {
	s := newSink(c)
	every := time.NewTicker(cmp.Or(c.Every, 10*time.Second))
	defer every.Stop()
	for {
		select {
		case <-every.C:
			s.report(s.flush(ctx))
		case <-ctx.Done():
			s.report(s.flush(context.WithoutCancel(ctx)))
			return
		}
	}
}

func newSink(c Config) *sink {
	s := &sink{config: c, sent: map[string]uint64{}}
	for _, key := range slices.Sorted(maps.Keys(c.Tags)) {
		if k, v := clean(key), clean(c.Tags[key]); c.Dog {
			s.tags += "," + k + ":" + v
		} else {
			s.tags += ".__" + k + "=" + v
		}
	}
	return s
}

type sink struct {
	config Config
	tags   string // in the form of the format, each after its separator
	sent   map[string]uint64
	failed bool
}

// report logs when flushes begin to fail, and when they begin to succeed again.
func (s *sink) report(err error) {
	switch {
	case err != nil && !s.failed:
		s.config.Log.Warn("metrics cannot be sent to statsd; check --statsd-address and RLSIDECAR_STATSD_PROTOCOL", zap.String("statsd", s.config.Address), zap.Error(err))
	case err == nil && s.failed:
		s.config.Log.Info("metrics are sent to statsd again", zap.String("statsd", s.config.Address))
	}
	s.failed = err != nil
}

// flush sends the differences since the last flush that opened a connection. It opens a new connection, because
// the first write to an idle connection may be lost.
func (s *sink) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, s.config.Network, s.config.Address)
	if err != nil {
		return err
	}
	until, _ := ctx.Deadline()
	_ = conn.SetDeadline(until)             // does not fail, because the connection is new
	w := bufio.NewWriterSize(conn, payload) // keeps the first error
	send := func(name, value string) {
		line := s.line(name, value)
		if len(line) > w.Available() {
			_ = w.Flush() // a packet has whole lines
		}
		_, _ = w.Write(line)
	}
	totals := s.config.Source.Counters()
	for counter, total := range totals {
		if more := total - min(total, s.sent[counter]); more > 0 {
			send(counter, strconv.FormatUint(more, 10)+"|c")
		}
	}
	s.sent = totals
	name, list := s.config.Source.Timings()
	for _, d := range list {
		send(name, strconv.FormatFloat(float64(d.Microseconds())/1000, 'f', 6, 64)+"|ms")
	}
	return errors.Join(w.Flush(), conn.Close())
}

func (s *sink) line(name, value string) []byte {
	if !s.config.Dog {
		return []byte(name + s.tags + ":" + value + "\n")
	}
	tags := s.tags
	for i := range s.config.Rewrites {
		r := &s.config.Rewrites[i]
		if groups := r.Pattern.FindStringSubmatch(name); groups != nil {
			name = clean(expand(r.Name, groups))
			for _, key := range slices.Sorted(maps.Keys(r.Tags)) {
				tags += "," + clean(key) + ":" + clean(expand(r.Tags[key], groups))
			}
			break
		}
	}
	if tags != "" {
		tags = "|#" + tags[1:]
	}
	return []byte(name + ":" + value + tags + "\n")
}

var variable = regexp.MustCompile(`\$\d+`)

// expand replaces $0, $1… by the items of groups. A missing group becomes "".
func expand(text string, groups []string) string {
	return variable.ReplaceAllStringFunc(text, func(v string) string {
		if n, err := strconv.Atoi(v[1:]); err == nil && n < len(groups) {
			return groups[n]
		}
		return ""
	})
}

var cleaner = strings.NewReplacer(":", "_", "|", "_", "#", "_", ",", "_", "\n", "_")

// clean replaces the characters in text that would end a name or a tag.
func clean(text string) string { return cleaner.Replace(text) }
