package simulate

import (
	"errors"
	"net"
	"strings"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// envoy reads Envoy's default text format,
//
//	[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE%
//	%RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION%
//	%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%"
//	"%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%"
//
// and lines of JSON with the usual names (start_time, method, path, …). Members with other names count as request
// headers.
type envoy struct {
	*accessLog
	end   outcome           // of the last line
	names map[string]string // maps the spelling in a line to the normalized name
	in    scanner
}

var errNotEnvoy = errors.New("not in Envoy's default format, nor JSON with start_time")

// maxNames bounds envoy.names. The lines of one log format have far fewer different members.
const maxNames = 1000

func (p *envoy) parse(line string) (at algorithms.Micros, end outcome, err error) {
	p.record.reset()
	p.end = outcome{real: -1}
	if strings.HasPrefix(line, "{") {
		at, err = p.readJSON(line)
	} else {
		at, err = p.readText(line)
	}
	return at, p.end, err
}

// lasted stores the duration of the request, in milliseconds.
func (p *envoy) lasted(text string) {
	if p.durations {
		p.end.after, p.end.later = duration(text, algorithms.Second/1000)
	}
}

func (p *envoy) readText(line string) (algorithms.Micros, error) {
	when, rest, ok := strings.Cut(line, `] "`)
	if !ok || !strings.HasPrefix(when, "[") {
		return 0, errNotEnvoy
	}
	at, err := parseISO(when[1:])
	if err != nil {
		return 0, err
	}
	// Envoy does not escape quotes, so a quote does not mark the end of the path. The protocol does: HTTP/… or, if it
	// is not known, "-".
	end := strings.Index(rest, ` HTTP/`)
	if end < 0 {
		end = strings.Index(rest, ` -"`)
	}
	if end < 0 {
		return 0, errNotEnvoy
	}
	length := strings.IndexByte(rest[end:], '"')
	if length < 0 {
		return 0, errNotEnvoy
	}
	verb, target, _ := strings.Cut(rest[:end], " ")
	p.record[method] = present(verb)
	p.record.target(present(target))
	p.record[protocol] = present(rest[end+1 : end+length])
	rest = strings.TrimPrefix(rest[end+length+1:], " ")
	p.record[status], rest, _ = strings.Cut(rest, " ")
	numbers, rest, _ := strings.Cut(rest, ` "`)
	if n := strings.Fields(numbers); len(n) == 5 { // flags, bytes received, bytes sent, duration, upstream's time
		p.lasted(n[3])
	}
	for _, name := range [...]string{"x-forwarded-for", "user-agent", "x-request-id", "host"} {
		value, after, ok := strings.Cut(rest, `" "`)
		if !ok {
			break
		}
		p.header(name, value)
		rest = after
	}
	return at, nil
}

func (p *envoy) readJSON(line string) (at algorithms.Micros, err error) {
	s := &p.in
	s.reset(line)
	timed := false
	s.openObject()
	for s.more() {
		name := p.name(s.str())
		switch value := s.value(); {
		case value == "null":
		case !strings.HasPrefix(value, `"`):
			p.member(name, value)
		case name == "start-time":
			timed = true
			at, err = parseISO(unquoted(value))
		default:
			p.member(name, unquoted(value))
		}
	}
	if err := s.end(); err != nil {
		return 0, err
	}
	if !timed {
		return 0, errNotEnvoy
	}
	return at, err
}

func (p *envoy) member(name, value string) {
	switch value = present(value); name {
	case "method":
		p.record[method] = value
	case "path":
		p.record.target(value)
	case "protocol":
		p.record[protocol] = value
	case "duration":
		p.lasted(value)
		p.header(name, value)
	case "response-code":
		p.record[status] = value
	case "downstream-remote-address", "downstream-remote-address-without-port":
		p.record[host] = addressOf(value)
	case "authority":
		p.header("host", value)
	default:
		p.header(name, value)
	}
}

// header stores a request header. If the line has no downstream address, the client's address is the last one in
// X-Forwarded-For, because Envoy itself has added it.
func (p *envoy) header(name, value string) {
	value = present(value)
	p.templates.set(p.record, name, value)
	if name == "x-forwarded-for" && p.record[host] == "" {
		p.record[host] = strings.TrimSpace(value[strings.LastIndexByte(value, ',')+1:])
	}
}

func (p *envoy) name(text string) string {
	if name, ok := p.names[text]; ok {
		return name
	}
	name := headerName(text)
	if len(p.names) < maxNames {
		p.names[strings.Clone(text)] = name
	}
	return name
}

func addressOf(text string) string {
	if address, _, err := net.SplitHostPort(text); err == nil {
		return address
	}
	return text
}

func parseISO(text string) (algorithms.Micros, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0, errNotEnvoy
	}
	at := algorithms.Micros(t.UnixMicro())
	return at, checkTime(at)
}
