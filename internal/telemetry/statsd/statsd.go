// Package statsd sends counters to a statsd server, in its plain form or DogStatsD's, every so often.
// It reads totals and sends what was added since the last time, so that counting costs nothing more,
// and a server that is away or stuck delays nobody. Over TCP what it missed is sent once it is back;
// what was on the way when a connection broke is not sent twice.
package statsd

import (
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
	"sync"
	"time"

	"github.com/DataDog/datadog-go/v5/statsd"
	"go.uber.org/zap"
)

// Config says what is sent, where and how.
type Config struct {
	// Address is host:port. Network is tcp or udp.
	Address, Network string
	// Dog is DogStatsD's form: tags have a place of their own. In the plain form they are a part of
	// the name, as the reference server's library has it: name.__key=value.
	Dog bool
	// Tags go with every metric.
	Tags map[string]string
	// Rewrites make name and tags of a name, in DogStatsD's form; the first that matches counts.
	Rewrites []Rewrite
	// Every is the time between two flushes; 0: 10 s.
	Every  time.Duration
	Source Source
	Log    *zap.Logger
}

// Check returns what is wrong with c itself.
func (c *Config) Check() error {
	if _, port, err := net.SplitHostPort(c.Address); err != nil || port == "" {
		return fmt.Errorf("statsd: the address is %q; write host:port", c.Address)
	}
	if c.Network != "tcp" && c.Network != "udp" {
		return fmt.Errorf("statsd: the protocol is %q; write tcp or udp", c.Network)
	}
	return nil
}

// Source is what is counted.
type Source interface {
	// Counters are the totals that are not 0.
	Counters() []Counter
	// Timings are some of those since they were last asked for, in bounded number.
	Timings() (name string, list []time.Duration)
}

// Counter is a total.
type Counter struct {
	Name  string
	Total uint64
}

// Rewrite makes tags of parts of names.
type Rewrite struct {
	Pattern *regexp.Regexp
	// Name, and the values of Tags, may have $1 for what the first group matched, and so on.
	Name string
	Tags map[string]string
}

const (
	// patience bounds a flush.
	patience = 5 * time.Second
	// payload is what fits in a packet on any network.
	payload = 1432
	// atOnce bounds the metrics handed over before they are on the wire; the client drops what
	// exceeds its queue.
	atOnce = 500
)

// Run flushes until ctx ends, and then once more.
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
		k, v := clean(key), clean(c.Tags[key])
		s.tags = append(s.tags, k+":"+v)
		s.suffix += ".__" + k + "=" + v
	}
	return s
}

type sink struct {
	config Config
	tags   []string // DogStatsD's form
	suffix string   // plain form
	sent   map[string]uint64
	failed bool
}

// report logs that flushes fail, and that they no longer do.
func (s *sink) report(err error) {
	switch {
	case err != nil && !s.failed:
		s.config.Log.Warn("metrics cannot be sent to statsd", zap.String("statsd", s.config.Address), zap.Error(err))
	case err == nil && s.failed:
		s.config.Log.Info("metrics are sent to statsd again", zap.String("statsd", s.config.Address))
	}
	s.failed = err != nil
}

// flush sends what was added since the last flush that found the server. Each has a connection of
// its own: one that was idle may be gone, and would swallow what is written first.
func (s *sink) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, s.config.Network, s.config.Address)
	if err != nil {
		return err
	}
	until, _ := ctx.Deadline()
	_ = conn.SetDeadline(until) // a connection that is just open takes it
	var mu sync.Mutex
	client, err := statsd.NewWithWriter(conn,
		statsd.WithMaxBytesPerPayload(payload), statsd.WithSenderQueueSize(2*atOnce), statsd.WithWorkersCount(1),
		statsd.WithoutTelemetry(), statsd.WithoutOriginDetection(), statsd.WithoutClientSideAggregation(),
		statsd.WithErrorHandler(func(e error) {
			mu.Lock()
			defer mu.Unlock()
			err = cmp.Or(err, e)
		}))
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	metrics := 0
	next := func() {
		if metrics++; metrics%atOnce == 0 {
			_ = client.Flush() // its errors are the handler's
		}
	}
	counters := s.config.Source.Counters()
	totals := make(map[string]uint64, len(counters))
	for _, c := range counters {
		totals[c.Name] = c.Total
		if more := c.Total - min(c.Total, s.sent[c.Name]); more > 0 {
			name, tags := s.named(c.Name)
			_ = client.Count(name, int64(more), tags, 1) // the only error is of a client that is closed
			next()
		}
	}
	s.sent = totals
	name, list := s.config.Source.Timings()
	name, tags := s.named(name)
	for _, d := range list {
		_ = client.TimeInMilliseconds(name, float64(d.Microseconds())/1000, tags, 1)
		next()
	}
	_ = client.Close() // flushes, and closes conn
	mu.Lock()
	defer mu.Unlock()
	return err
}

// named is a name as it is sent.
func (s *sink) named(name string) (string, []string) {
	if !s.config.Dog {
		return name + s.suffix, nil
	}
	for i := range s.config.Rewrites {
		r := &s.config.Rewrites[i]
		if groups := r.Pattern.FindStringSubmatch(name); groups != nil {
			tags := slices.Clone(s.tags)
			for _, key := range slices.Sorted(maps.Keys(r.Tags)) {
				tags = append(tags, clean(key)+":"+clean(expand(r.Tags[key], groups)))
			}
			return clean(expand(r.Name, groups)), tags
		}
	}
	return name, s.tags
}

var variable = regexp.MustCompile(`\$\d+`)

// expand puts groups in the place of $0, $1…; those that there are not are empty.
func expand(text string, groups []string) string {
	return variable.ReplaceAllStringFunc(text, func(v string) string {
		if n, err := strconv.Atoi(v[1:]); err == nil && n < len(groups) {
			return groups[n]
		}
		return ""
	})
}

var cleaner = strings.NewReplacer(":", "_", "|", "_", "#", "_", ",", "_", "\n", "_")

// clean is text without what ends a name or a tag.
func clean(text string) string { return cleaner.Replace(text) }
