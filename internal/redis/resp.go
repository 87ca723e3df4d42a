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

// reply is a reply in the protocol RESP2 that is no array.
type reply struct {
	kind byte   // the first byte of the reply
	text string // of a text, a number, an error or a bulk string
}

// parseReply parses the first reply in have. size is its length, or 0 if bytes are missing. The text of a bulk string shares
// the memory of have. An error means that the bytes are no reply to a command of this package.
func parseReply(have []byte) (r reply, size int, err error) {
	line, rest, ok := bytes.Cut(have, []byte("\r\n"))
	if !ok {
		return r, 0, nil
	}
	size = len(have) - len(rest)
	if len(line) > 0 && len(line) <= maxReplyText {
		r.kind = line[0]
	}
	switch r.kind {
	case '+', '-', ':':
		r.text = string(line[1:])
		return r, size, nil
	case '$':
		switch n, err := strconv.Atoi(string(line[1:])); {
		case err != nil || n < 0 || n > maxScriptReply:
		case len(rest) < n+2:
			return r, 0, nil
		default:
			r.text = unsafe.String(unsafe.SliceData(rest), n)
			return r, size + n + 2, nil
		}
	}
	return reply{}, 0, fmt.Errorf("redis: invalid reply: %.20q", have)
}
