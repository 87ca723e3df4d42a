package descriptors

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// A key is a prefix, which says whose bucket it is, and the values that tell the limit's buckets
// apart, each preceded by its length: equal descriptors give equal keys, different ones different
// keys. Values that would make a key longer than maxValues are replaced by their SHA-256, so that
// a client cannot make memory grow by sending long values.
const maxValues = 128

const (
	formValues = 'v' // values follow
	formDigest = 'd' // the SHA-256 of the values follows
)

// Prefix builds the start of the keys of one limit's buckets. what tells namespaces apart
// ("limit": named limits, "path": inline ones, "override": limits that come with a request), id
// the limits within it. Changing the algorithm starts afresh, so it is part of the key.
func Prefix(domain, what, id string, kind algorithms.Kind) []byte {
	key := []byte{'1', 'a' + byte(kind)} // the version of this layout
	for _, s := range []string{domain, what, id} {
		key = appendValue(key, s)
	}
	return key
}

// AppendKey appends to dst the key of p's bucket for a descriptor. It also returns the hash of
// the values, from which a fixed window takes its phase: of the value itself where there is one,
// of the length-prefixed values where there are more. Other limits take nothing from it: it is 0.
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

// AppendKeyOf is AppendKey for values that are given as they are, as an API client does.
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
