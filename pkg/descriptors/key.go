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

// Limit returns the part of a result of Prefix that does not depend on the algorithm.
func Limit(prefix string) string { return prefix[2:] }

// Keys makes the keys of the buckets of one limit.
type Keys struct {
	// Prefix is the start of the keys.
	Prefix string
	// Open lists the positions of the entries whose values identify a bucket.
	Open []int
	// Whole means that all keys and values of the descriptor identify a bucket, not only the entries in Open.
	Whole bool
}

// Append appends to dst the key of the bucket of a descriptor. If hashed is true, it also returns a hash: of a single
// value, or else of the values with their lengths. If k is Whole, the keys and values of all entries take the place of
// the values.
func (k *Keys) Append(dst []byte, entries []Entry, hashed bool) (key []byte, hash uint64) {
	dst = append(append(dst, k.Prefix...), formValues)
	values := len(dst)
	if k.Whole {
		for i := range entries {
			dst = appendValue(appendValue(dst, entries[i].Key), entries[i].Value)
		}
	} else {
		for _, i := range k.Open {
			dst = appendValue(dst, entries[i].Value)
		}
	}
	switch {
	case !hashed:
	case len(k.Open) == 1 && !k.Whole:
		hash = xxhash.Sum64String(entries[k.Open[0]].Value)
	default:
		hash = xxhash.Sum64(dst[values:])
	}
	return foldKey(dst, values), hash
}

// AppendOf does what Append does, but list has the values that identify the bucket. If k is Whole, list has the
// key and the value of each entry.
func (k *Keys) AppendOf(dst []byte, list []string, hashed bool) (key []byte, hash uint64) {
	dst = append(append(dst, k.Prefix...), formValues)
	values := len(dst)
	for _, v := range list {
		dst = appendValue(dst, v)
	}
	switch {
	case !hashed:
	case len(list) == 1:
		hash = xxhash.Sum64String(list[0])
	default:
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
