package backend

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Once makes a Group one that is taken once: what it was answered is remembered, in the same step in
// which it is taken, and answered again for as long as it is remembered. So a caller that got no
// answer can ask again. What took nothing is not remembered: a denial is decided anew.
//
// It is for few: each costs the room of a bucket.
type Once struct {
	// ID names the Group, among all that are taken once.
	ID [16]byte
	// Of is a digest of what the Group asks. With another one, the ID is reused: ErrReused. (A Store
	// of several nodes may not notice, where the other Group's buckets are on another node: to it
	// they are different.)
	Of [32]byte
	// For is how long it is remembered.
	For algorithms.Micros
}

// Took tells whether a Group that was answered took anything, so that it is remembered.
func Took(charges []Charge, decisions []Decision) bool {
	all := true
	for i := range charges {
		d := &decisions[i]
		if d.Err != nil || charges[i].Ask.Look {
			return false
		}
		if charges[i].Limit.ChargesDenied() && charges[i].Ask.Cost > 0 {
			return true
		}
		all = all && d.Allowed
	}
	return all
}

// OnceID is the ID of what parts name: equal parts have the same, different ones different IDs.
func OnceID(parts ...string) (id [16]byte) {
	digest := Digest(parts...)
	copy(id[:], digest[:])
	return id
}

// Digest is the SHA-256 of parts, each preceded by its length.
func Digest(parts ...string) [32]byte {
	var text []byte
	for _, part := range parts {
		text = append(binary.AppendUvarint(text, uint64(len(part))), part...)
	}
	return sha256.Sum256(text)
}
