package simulate

import (
	"errors"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/target"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// nginx reads the combined format, and the common format, which ends after $bytes:
//
//	$remote_addr - $remote_user [$time_local] "$request" $status $bytes "$referer" "$user_agent"
//
// nginx and Apache write bytes that are not plain text as \xHH. The reader decodes them.
type nginx struct {
	templates Templates
	domain    string
	record    record
	clock     localTime
}

var errNotNginx = errors.New(`not in the combined format: $remote_addr - $remote_user [$time_local] "$request" $status …`)

func (p *nginx) read(line string, c *limiter.Call) (algorithms.Micros, error) {
	address, rest, ok := strings.Cut(line, " ")
	before, rest, ok2 := strings.Cut(rest, " [")
	if !ok || !ok2 || address == "" {
		return 0, errNotNginx
	}
	when, rest, ok := strings.Cut(rest, `] "`)
	if !ok {
		return 0, errNotNginx
	}
	at, err := p.clock.parse(when)
	if err != nil {
		return 0, err
	}
	request, rest, ok := quoted(rest)
	if !ok {
		return 0, errNotNginx
	}
	p.record.reset()
	p.record[host] = address
	_, name, _ := strings.Cut(before, " ") // skips the identd name, which is not used
	p.record[user] = present(unescape(name))
	p.record.request(unescape(request))
	p.record[path] = target.Path(p.record[path])
	code, rest, _ := strings.Cut(strings.TrimPrefix(rest, " "), " ")
	p.record[status] = present(code)
	_, rest, _ = strings.Cut(rest, ` "`) // skips the number of bytes
	if referer, rest, ok := quoted(rest); ok {
		p.templates.set(p.record, "referer", present(unescape(referer)))
		if agent, _, ok := quoted(strings.TrimPrefix(rest, ` "`)); ok {
			p.templates.set(p.record, "user-agent", present(unescape(agent)))
		}
	}
	c.Request.Domain = p.domain
	p.templates.apply(p.record, c)
	return at, nil
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

func (r record) target(text string) { r[path], r[query] = target.Split(text) }

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
				high, low := target.HexDigit(text[i+1]), target.HexDigit(text[i+2])
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
	l.text, l.at = strings.Clone(text), at
	return at, nil
}
