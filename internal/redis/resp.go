package redis

import (
	"bytes"
	"fmt"
	"strconv"
	"unsafe"
)

// maxScriptReply is the largest reply of the script: for a group of the largest size, with the heads of its records.
const maxScriptReply = headSize + 2*maxGroup*answerSize

type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError marks refusal as a reply, as go-redis does.
func (refusal) RedisError() {}

// appendCommand appends a command in the protocol RESP2.
func appendCommand(dst []byte, args []any) []byte {
	dst = appendSize(dst, '*', int64(len(args)))
	for _, arg := range args {
		switch arg := arg.(type) {
		case string:
			dst = append(appendSize(dst, '$', int64(len(arg))), arg...)
		case *string:
			dst = append(appendSize(dst, '$', int64(len(*arg))), *arg...)
		case int:
			dst = appendNumber(dst, int64(arg))
		case int64:
			dst = appendNumber(dst, arg)
		default:
			panic(fmt.Sprintf("redis: an argument is a %T", arg))
		}
		dst = append(dst, "\r\n"...)
	}
	return dst
}

func appendNumber(dst []byte, n int64) []byte {
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], n, 10)
	return append(appendSize(dst, '$', int64(len(text))), text...)
}

func appendSize(dst []byte, kind byte, n int64) []byte {
	if n >= 10 && n < 100 { // that of most keys
		return append(dst, kind, '0'+byte(n/10), '0'+byte(n%10), '\r', '\n')
	}
	return append(strconv.AppendInt(append(dst, kind), n, 10), "\r\n"...)
}

// reply is a reply in the protocol RESP2. Every form of a reply has all fields, so a reply of another form than the
// caller expects has zero fields where the expected form has values.
type reply struct {
	kind     byte    // the first byte of the reply
	text     string  // of a text, a number, an error or a bulk string
	elements []reply // of an array
	null     bool
}

// parseReply parses the first reply in have, whose arrays are nested at most depth deep. size is its length, or 0 if bytes
// are missing. The texts share the memory of have. An error means that the bytes are no reply to a command of this package.
func parseReply(have []byte, depth int) (r reply, size int, err error) {
	line, rest, ok := bytes.Cut(have, []byte("\r\n"))
	if !ok {
		return r, 0, nil
	}
	invalid := func() (reply, int, error) {
		return reply{}, 0, fmt.Errorf("redis: invalid reply: %.20q", have)
	}
	if len(line) == 0 || len(line) > maxReplyText {
		return invalid()
	}
	r.kind, size = line[0], len(have)-len(rest)
	if r.kind == '+' || r.kind == '-' || r.kind == ':' {
		r.text = string(line[1:])
		return r, size, nil
	}
	n, err := strconv.Atoi(string(line[1:]))
	switch {
	case n == -1 && depth > 0:
		r.null = true
		return r, size, nil
	case err != nil || n < 0 || n > maxScriptReply:
		return invalid()
	case r.kind == '$' && len(rest) < n+2:
		return r, 0, nil
	case r.kind == '$':
		r.text = unsafe.String(unsafe.SliceData(rest), n)
		return r, size + n + 2, nil
	case r.kind != '*' || depth == 0:
		return invalid()
	}
	for range n {
		element, used, err := parseReply(have[size:], depth-1)
		if err != nil || used == 0 {
			return r, 0, err
		}
		r.elements, size = append(r.elements, element), size+used
	}
	return r, size, nil
}
