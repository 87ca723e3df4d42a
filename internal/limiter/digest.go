package limiter

import (
	"crypto/sha256"
	"encoding/binary"
)

// IdempotencyID returns an ID for parts. Equal parts have equal IDs, and different parts have different
// IDs.
func IdempotencyID(parts ...string) (id [16]byte) {
	sum := digest(parts...)
	copy(id[:], sum[:])
	return id
}

// digest hashes the lengths too, so that the digests of ("ab", "c") and ("a", "bc") differ.
func digest(parts ...string) [32]byte {
	var room [256]byte
	text := room[:0]
	for _, part := range parts {
		text = append(binary.AppendUvarint(text, uint64(len(part))), part...)
	}
	return sha256.Sum256(text)
}
