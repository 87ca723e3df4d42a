package simulate

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// nginx reads the combined format, and the common format, which ends after $bytes. The duration, and the time of
// the end with milliseconds, may follow the combined format:
//
//	$remote_addr - $remote_user [$time_local] "$request" $status $bytes "$referer" "$user_agent" $request_time $msec
//
// nginx and Apache write bytes that are not plain text as \xHH. The reader decodes them.
type nginx struct {
	*accessLog
	clock localTime
}

var errNotNginx = errors.New(`not in the combined format: $remote_addr - $remote_user [$time_local] "$request" $status …`)

func (p *nginx) parse(line string) (at algorithms.Micros, end outcome, err error) {
	end.real = -1
	address, rest, ok := strings.Cut(line, " ")
	before, rest, ok2 := strings.Cut(rest, " [")
	if !ok || !ok2 || address == "" {
		return 0, end, errNotNginx
	}
	when, rest, ok := strings.Cut(rest, `] "`)
	if !ok {
		return 0, end, errNotNginx
	}
	if at, err = p.clock.parse(when); err != nil {
		return 0, end, err
	}
	request, rest, ok := quoted(rest)
	if !ok {
		return 0, end, errNotNginx
	}
	p.record.reset()
	p.record[host] = address
	_, name, _ := strings.Cut(before, " ") // skips the identd name, which is not used
	p.record[user] = present(unescape(name))
	p.record.request(unescape(request))
	if p.templates.routes == nil { // routes decode the path
		p.record[path] = canonical.Path(p.record[path])
	}
	code, rest, _ := strings.Cut(strings.TrimPrefix(rest, " "), " ")
	p.record[status] = present(code)
	_, rest, _ = strings.Cut(rest, ` "`) // skips the number of bytes
	if referer, rest, ok := quoted(rest); ok {
		p.templates.set(p.record, "referer", present(unescape(referer)))
		if agent, rest, ok := quoted(strings.TrimPrefix(rest, ` "`)); ok {
			p.templates.set(p.record, "user-agent", present(unescape(agent)))
			if p.durations {
				at, end = startOf(at, strings.Fields(rest))
			}
		}
	}
	return at, end, nil
}

// startOf returns the start of a request, and its end, from $time_local and from the fields after the user agent.
func startOf(local algorithms.Micros, fields []string) (start algorithms.Micros, end outcome) {
	end.real = -1
	if len(fields) == 0 {
		return local, end
	}
	if end.after, end.later = duration(fields[0], algorithms.Second); !end.later {
		return local, end
	}
	last := local
	if len(fields) > 1 {
		// The time of the line has whole seconds, so all short requests of a second would be in flight together.
		if exact, ok := duration(fields[1], algorithms.Second); ok {
			last = exact
		}
	}
	return max(0, last-end.after), end
}

// duration reads a number of units.
func duration(text string, unit algorithms.Micros) (algorithms.Micros, bool) {
	n, err := strconv.ParseFloat(text, 64)
	if n *= float64(unit); err != nil || !(n >= 0 && n < float64(algorithms.MaxTime/2)) { // so written, it refuses NaN
		return 0, false
	}
	return algorithms.Micros(math.Round(n)), true
}

// request stores the parts of a request line, which has the form METHOD target PROTOCOL. It stores nothing for other
// content: the log has "-" for a connection without a request, and binary bytes for TLS on a port without TLS.
func (r record) request(line string) {
	verb, rest, ok := strings.Cut(line, " ")
	if !ok {
		return
	}
	i := strings.LastIndexByte(rest, ' ')
	if i < 0 || !strings.HasPrefix(rest[i+1:], "HTTP/") {
		return
	}
	r[method], r[protocol] = verb, rest[i+1:]
	r.target(rest[:i])
}

func (r record) target(text string) {
	r[path], r[query] = canonical.Split(text)
	if i := strings.IndexByte(text, '#'); i >= 0 {
		r[fragment] = text[i:]
	}
}

// quoted returns the text up to the first quote that no backslash escapes, and the text after that quote. ok is false
// if there is no such quote.
func quoted(text string) (inside, rest string, ok bool) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return text[:i], text[i+1:], true
		}
	}
	return "", "", false
}

// In a log, "-" means that a value is missing.
func present(text string) string {
	if text == "-" {
		return ""
	}
	return text
}

// unescape decodes \xHH, and removes a backslash before any other character.
func unescape(text string) string {
	i := strings.IndexByte(text, '\\')
	if i < 0 {
		return text
	}
	out := append(make([]byte, 0, len(text)), text[:i]...)
	for ; i < len(text); i++ {
		c := text[i]
		if c == '\\' && i+1 < len(text) {
			i++
			c = text[i]
			if c == 'x' && i+2 < len(text) {
				high, low := canonical.HexDigit(text[i+1]), canonical.HexDigit(text[i+2])
				if high >= 0 && low >= 0 {
					c = byte(high<<4 | low)
					i += 2
				}
			}
		}
		out = append(out, c)
	}
	return string(out)
}

// localTime parses [$time_local]. It caches the last result, because a busy server logs the same second
// thousands of times.
type localTime struct {
	text string
	at   algorithms.Micros
}

func (l *localTime) parse(text string) (algorithms.Micros, error) {
	if text == l.text {
		return l.at, nil
	}
	t, err := time.Parse("02/Jan/2006:15:04:05 -0700", text)
	if err != nil {
		return 0, errNotNginx
	}
	at := algorithms.Micros(t.UnixMicro())
	if err := checkTime(at); err != nil {
		return 0, err
	}
	l.text, l.at = text, at
	return at, nil
}
