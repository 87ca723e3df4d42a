package reservation

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// Secrets returns the secrets that ids are signed with at this moment: the first one signs, and all are accepted. It
// returns none while they are not known.
type Secrets func() []string

// Keys implements limiter.IDs: it encodes what a request reserved of several limits as one signed text. The text has at
// most MaxID bytes, whatever the client sent, because it contains the keys of buckets, which are bounded.
type Keys struct {
	secrets Secrets
	current atomic.Pointer[ring]
	// unique starts the ID of each reservation of this process, and made counts them.
	unique [8]byte
	made   atomic.Uint64
}

// MaxID bounds the length of an id in bytes.
const MaxID = 4096

// formGroup is the version of the layout of what a request reserved of several limits.
const formGroup = 2

// NewKeys makes Keys that sign with secrets.
func NewKeys(secrets Secrets) *Keys {
	k := &Keys{secrets: secrets}
	_, _ = rand.Read(k.unique[:]) // never fails
	return k
}

// ring is a list of secrets, with what signs by each.
type ring struct {
	secrets []string
	macs    []*sync.Pool // of hash.Hash
}

// ring returns the present secrets.
func (k *Keys) ring() *ring {
	secrets, r := k.secrets(), k.current.Load()
	if r != nil && slices.Equal(r.secrets, secrets) {
		return r
	}
	r = &ring{secrets: slices.Clone(secrets)}
	for _, secret := range r.secrets {
		key := signingKey(secret)
		r.macs = append(r.macs, &sync.Pool{New: func() any { return hmac.New(sha256.New, key[:]) }})
	}
	k.current.Store(r)
	return r
}

// sign appends the signature of b by secret i.
func (r *ring) sign(dst []byte, i int, b []byte) []byte {
	mac := r.macs[i].Get().(hash.Hash)
	defer r.macs[i].Put(mac)
	mac.Reset()
	mac.Write(b)
	n := len(dst)
	return mac.Sum(dst)[:n+signatureLen]
}

// Append implements limiter.IDs.
func (k *Keys) Append(dst []byte, r *limiter.Reserved) []byte {
	ring := k.ring()
	if len(ring.secrets) == 0 {
		return dst
	}
	copy(r.ID[:8], k.unique[:])
	binary.BigEndian.PutUint64(r.ID[8:], k.made.Add(1))
	var room [512]byte
	b := appendGroup(room[:0], r)
	b = ring.sign(b, 0, b)
	return base64.RawURLEncoding.AppendEncode(dst, b)
}

// Open implements limiter.IDs.
func (k *Keys) Open(id string, r *limiter.Reserved) bool {
	if len(id) > MaxID {
		return false
	}
	var room [512]byte
	b, err := base64.RawURLEncoding.Strict().AppendDecode(room[:0], []byte(id))
	if err != nil || len(b) <= signatureLen || b[0] != formGroup {
		return false
	}
	b, sum := b[:len(b)-signatureLen], b[len(b)-signatureLen:]
	ring := k.ring()
	var sumRoom [sha256.Size]byte
	for i := range ring.secrets {
		if hmac.Equal(sum, ring.sign(sumRoom[:0], i, b)) {
			return decodeGroup(b, r)
		}
	}
	return false
}

const (
	hasSlot = 1 << iota
	hasHash
	hasCell
)

func appendGroup(b []byte, r *limiter.Reserved) []byte {
	b = append(append(b, formGroup), r.ID[:]...)
	b = binary.BigEndian.AppendUint64(b, r.Domain)
	b = append(b, byte(len(r.Parts)))
	for i := range r.Parts {
		p := &r.Parts[i]
		b = binary.BigEndian.AppendUint64(b, p.Limit)
		has := byte(0)
		if p.Slot != 0 {
			has |= hasSlot
		}
		if p.Hash != 0 {
			has |= hasHash
		}
		if p.Cell != 0 {
			has |= hasCell
		}
		b = append(b, has)
		if p.Slot != 0 {
			b = binary.BigEndian.AppendUint64(b, p.Slot)
		}
		if p.Hash != 0 {
			b = binary.BigEndian.AppendUint64(b, p.Hash)
		}
		if p.Cell != 0 {
			b = binary.BigEndian.AppendUint64(b, p.Cell)
		}
		for _, n := range [...]uint64{uint64(p.Count), uint64(p.Times), uint64(p.At), uint64(p.Inflow.Units), uint64(p.Inflow.Span)} {
			b = binary.AppendUvarint(b, n)
		}
		b = append(binary.AppendUvarint(b, uint64(len(p.Key))), p.Key...)
	}
	return b
}

// decodeGroup decodes what appendGroup wrote. The signature of b is verified.
func decodeGroup(b []byte, r *limiter.Reserved) bool {
	f := fields{rest: b[1:]}
	copy(r.ID[:], f.bytes(len(r.ID)))
	r.Domain = f.uint64()
	parts := f.bytes(1)
	r.Parts = r.Parts[:0]
	for n := 0; len(parts) > 0 && n < int(parts[0]) && !f.short; n++ {
		p := limiter.ReservedPart{Limit: f.uint64()}
		has := f.bytes(1)
		if f.short {
			return false
		}
		if has[0]&hasSlot != 0 {
			p.Slot = f.uint64()
		}
		if has[0]&hasHash != 0 {
			p.Hash = f.uint64()
		}
		if has[0]&hasCell != 0 {
			p.Cell = f.uint64()
		}
		p.Count, p.Times, p.At = int64(f.number()), int64(f.number()), algorithms.Micros(f.number())
		p.Inflow = algorithms.Inflow{Units: int64(f.number()), Span: int64(f.number())}
		p.Key = append(p.Key, f.text()...)
		r.Parts = append(r.Parts, p)
		if p.Count < 0 || p.Times < 1 {
			return false
		}
	}
	return !f.short && len(r.Parts) > 0
}

// bytes decodes n bytes.
func (f *fields) bytes(n int) []byte {
	if n > len(f.rest) {
		f.short, f.rest = true, nil
		return nil
	}
	b := f.rest[:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) uint64() uint64 {
	if b := f.bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}
