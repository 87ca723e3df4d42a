package descriptors

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// A key is a prefix, which identifies the limit, and the values that identify the bucket, each preceded by its length.
// So equal descriptors have equal keys and different ones have different keys. If the values are longer than
// maxValues, their SHA-256 replaces them, so that clients cannot exhaust memory with long values.
const maxValues = 128

const (
	formValues = 'v' // values follow
	formDigest = 'd' // the SHA-256 of the values follows
)

// Prefix returns the prefix of the keys of one limit. The parameter what is a namespace: "limit" for named limits,
// "path" for inline ones, "override" for limits that come with a request. The parameter id identifies the limit within it.
// The algorithm is part of the key, because a bucket cannot be converted to another algorithm.
func Prefix(domain, what, id string, kind algorithms.Kind) string {
	key := []byte{'1', 'a' + byte(kind)} // the version of this layout
	for _, s := range []string{domain, what, id} {
		key = appendValue(key, s)
	}
	return string(key)
}

// AppendKey appends to dst the key of p's bucket for a descriptor. It also returns the hash from which a fixed window
// derives its phase: the hash of the value if there is one, or of the length-prefixed values if there are several. For
// other algorithms the hash is 0.
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

// AppendKeyOf is AppendKey for a list of values instead of entries.
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
