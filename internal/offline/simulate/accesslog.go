package simulate

import (
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// accessLog reads the lines of an access log.
type accessLog struct {
	templates Templates
	domain    string
	durations bool // the durations of requests are read, and the time of a request is that of its start
	record    record
	// parse fills the record, and returns the time of a request and its outcome.
	parse func(line string) (at algorithms.Micros, end outcome, err error)
}

// newAccessLog returns an accessLog for the format Nginx or Envoy.
func newAccessLog(format Format, t Templates, domain string, durations bool) *accessLog {
	l := &accessLog{templates: t, domain: domain, durations: durations, record: t.record()}
	l.parse = (&nginx{accessLog: l}).parse
	if format == Envoy {
		l.parse = (&envoy{accessLog: l, names: map[string]string{}}).parse
	}
	return l
}

// read implements reader.
func (l *accessLog) read(line string, c *limiter.Call) (algorithms.Micros, outcome, error) {
	at, end, err := l.parse(line)
	if err != nil {
		return 0, end, err
	}
	c.Request.Domain = l.domain
	l.templates.apply(l.record, c)
	return at, end, nil
}

// startOf returns the time of the request of a line.
func (l *accessLog) startOf(line string) (algorithms.Micros, error) {
	at, _, err := l.parse(line)
	return at, err
}
