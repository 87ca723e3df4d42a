package descriptors

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// A key consists of a prefix, which identifies the limit, and of the values that identify the bucket. Each value is
// preceded by its length. So lists of values have equal keys only if the lists are equal. If the values with their
// lengths have more than maxValues bytes, their SHA-256 replaces them, so that clients cannot exhaust memory with
// long values.
const maxValues = 128

const (
	formValues = 'v' // the values follow
	formDigest = 'd' // the SHA-256 of the values follows
)

// Prefix returns the prefix of the keys of one limit. namespace is "limit" for named limits, "path" for limits inside
// a descriptor, "override" for limits that a descriptor of a request contains, and "inline" for limits that an
// application defines in its call. id identifies the limit within the namespace. The algorithm is part of the prefix,
// because a bucket cannot be converted to another algorithm.
func Prefix(domain, namespace, id string, kind algorithms.Kind) string {
	key := []byte{'1', 'a' + byte(kind)} // the version of this layout, and the algorithm
	for _, s := range []string{domain, namespace, id} {
		key = appendValue(key, s)
	}
	return string(key)
}

// AppendKey appends to dst the key of p's bucket for a descriptor. It also returns the hash from which a
// fixed window derives its phase: the hash of a single value, or else of the values with their lengths. For a
// policy that is Whole, the keys and values of all entries take the place of the values. For other algorithms the
// hash is 0.
func (p *Policy) AppendKey(dst []byte, entries []Entry) (key []byte, hash uint64) {
	if p.Whole {
		return p.appendWhole(dst, entries)
	}
	dst = append(append(dst, p.Prefix...), formValues)
	values := len(dst)
	for _, i := range p.Open {
		dst = appendValue(dst, entries[i].Value)
	}
	switch {
	case p.Limit.Kind != algorithms.FixedWindow:
	case len(p.Open) == 1:
		hash = xxhash.Sum64String(entries[p.Open[0]].Value)
	default:
		hash = xxhash.Sum64(dst[values:])
	}
	return foldKey(dst, values), hash
}

// AppendKeyOf does what AppendKey does, but key lists the values that identify the bucket. For a policy that is
// Whole, key has the key and the value of each entry.
func (p *Policy) AppendKeyOf(dst []byte, key []string) ([]byte, uint64) {
	dst = append(append(dst, p.Prefix...), formValues)
	values := len(dst)
	for _, v := range key {
		dst = appendValue(dst, v)
	}
	var hash uint64
	switch {
	case p.Limit.Kind != algorithms.FixedWindow:
	case len(key) == 1:
		hash = xxhash.Sum64String(key[0])
	default:
		hash = xxhash.Sum64(dst[values:])
	}
	return foldKey(dst, values), hash
}

func (p *Policy) appendWhole(dst []byte, entries []Entry) (key []byte, hash uint64) {
	dst = append(append(dst, p.Prefix...), formValues)
	values := len(dst)
	for i := range entries {
		dst = appendValue(appendValue(dst, entries[i].Key), entries[i].Value)
	}
	if p.Limit.Kind == algorithms.FixedWindow {
		hash = xxhash.Sum64(dst[values:])
	}
	return foldKey(dst, values), hash
}

func foldKey(dst []byte, values int) []byte {
	if len(dst)-values <= maxValues {
		return dst
	}
	digest := sha256.Sum256(dst[values:])
	dst[values-1] = formDigest
	return append(dst[:values], digest[:]...)
}

func appendValue(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// KeyText describes the key of a bucket in readable form, such as "limit send of domain edge, key bob". It is
// for programs that handle keys, such as wrappers of a Store. For a key without this layout, KeyText returns
// the result of Printable.
func KeyText(key []byte) string {
	text, ok := keyText(key)
	if !ok {
		return Printable(string(key))
	}
	return text
}

func keyText(key []byte) (text string, ok bool) {
	if len(key) < 2 || key[0] != '1' {
		return "", false
	}
	rest := key[2:]
	var parts [3]string // the domain, the namespace and the id
	for i := range parts {
		if parts[i], rest, ok = cutValue(rest); !ok {
			return "", false
		}
	}
	text = "limit " + Printable(parts[2]) + " of domain " + Printable(parts[0])
	if parts[1] != "limit" {
		text += " (" + Printable(parts[1]) + ")"
	}
	switch {
	case len(rest) == 1+sha256.Size && rest[0] == formDigest:
		return text + fmt.Sprintf(", key with digest %x", rest[1:]), true
	case len(rest) == 0 || rest[0] != formValues:
		return "", false
	}
	separator := ", key "
	for rest = rest[1:]; len(rest) > 0; separator = "," {
		var value string
		if value, rest, ok = cutValue(rest); !ok {
			return "", false
		}
		text += separator + Printable(value)
	}
	return text, true
}

// cutValue returns the first value in b, and the bytes after it. ok is false if b does not start with a value in the
// form of appendValue.
func cutValue(b []byte) (value string, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return "", nil, false
	}
	b = b[size:]
	return string(b[:n]), b[n:], true
}
