package simulate

import (
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// accessLog reads the lines of an access log.
type accessLog struct {
	*logFields
	format logFormat
	domain string
}

// logFields has the parts of a line. An accessLog and its format share them.
type logFields struct {
	templates Templates
	record    record
	durations bool // the durations of requests are read, and the time of a request is that of its start
}

// logFormat is the format of the lines.
type logFormat interface {
	// parse fills the record, and returns the time of a request and its outcome.
	parse(line string) (at algorithms.Micros, end outcome, err error)
}

// newAccessLog returns an accessLog for the format Nginx or Envoy.
func newAccessLog(format Format, t Templates, domain string, durations bool) *accessLog {
	fields := &logFields{templates: t, record: t.record(), durations: durations}
	l := &accessLog{logFields: fields, domain: domain, format: &nginx{logFields: fields}}
	if format == Envoy {
		l.format = &envoy{logFields: fields, names: map[string]string{}}
	}
	return l
}

// read implements reader.
func (l *accessLog) read(line string, c *limiter.Call) (algorithms.Micros, outcome, error) {
	at, end, err := l.format.parse(line)
	if err != nil {
		return 0, end, err
	}
	c.Request.Domain = l.domain
	l.templates.apply(l.record, c)
	return at, end, nil
}

// startOf returns the time of the request of a line.
func (l *accessLog) startOf(line string) (algorithms.Micros, error) {
	at, _, err := l.format.parse(line)
	return at, err
}
