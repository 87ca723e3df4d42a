// Package reservation encodes reservations as text. The text contains all data of a reservation and is
// signed. So every process that has the same secret can settle the reservation, and none stores state for it.
// Proxies, the HTTP API and package ratelimit use the same text.
package reservation

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// ErrForged means that a text is not a reservation, or was signed with another secret.
var ErrForged = errors.New("is not a reservation, or was signed with another key")

// Secrets returns the secrets that sign ids. The first one signs new ids; ids that another one signed are
// accepted. Secrets returns none while they are not known.
type Secrets func() []string

// Keys implements limiter.IDs by encoding a reservation as one signed text. The id of a proxy's reservation
// has at most limiter.MaxID bytes, whatever the client sent, because it contains keys of buckets, whose
// length is bounded.
type Keys struct {
	secrets Secrets
	store   string
	current atomic.Pointer[ring]
	// unique is the start of the ID of each reservation of this process. made is the number of IDs created so
	// far.
	unique [8]byte
	made   atomic.Uint64
}

const (
	// MaxKey is the length in bytes of the longest key that the HTTP API reserves by name. The id of such a
	// reservation is shorter than maxText.
	MaxKey = 16 << 10
	// maxText bounds the length of an id, in bytes. A body with an id may have at most 64 KiB.
	maxText      = 48 << 10
	form         = 3 // the version of the layout
	signatureLen = 16
)

// OfStore makes k sign ids for one store only: Keys with the same secrets and another name of the store do not accept them.
// A store in this process needs it, because another process with the same secrets does not know which ids were
// settled here. Call it before the first use of k.
func (k *Keys) OfStore(name string) *Keys {
	k.store = "\x00" + name
	return k
}

// NewKeys returns Keys that sign with secrets.
func NewKeys(secrets Secrets) *Keys {
	k := &Keys{secrets: secrets}
	_, _ = rand.Read(k.unique[:]) // rand.Read never fails
	return k
}

// NewID implements limiter.IDs.
func (k *Keys) NewID() (id [16]byte) {
	copy(id[:8], k.unique[:])
	binary.BigEndian.PutUint64(id[8:], k.made.Add(1))
	return id
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

type ring struct {
	secrets []string
	macs    []*sync.Pool // for each secret, a pool of hash.Hash
}

func (k *Keys) ring() *ring {
	secrets, r := k.secrets(), k.current.Load()
	if r != nil && slices.Equal(r.secrets, secrets) {
		return r
	}
	r = &ring{secrets: slices.Clone(secrets)}
	for _, secret := range r.secrets {
		key := signingKey(secret + k.store)
		r.macs = append(r.macs, &sync.Pool{New: func() any { return hmac.New(sha256.New, key[:]) }})
	}
	k.current.Store(r)
	return r
}

// sign appends to dst the signature of b with the secret at index i.
func (r *ring) sign(dst []byte, i int, b []byte) []byte {
	mac := r.macs[i].Get().(hash.Hash)
	defer r.macs[i].Put(mac)
	mac.Reset()
	mac.Write(b)
	n := len(dst)
	return mac.Sum(dst)[:n+signatureLen]
}

func signingKey(secret string) [sha256.Size]byte {
	return sha256.Sum256([]byte("rlsidecar reservation\x00" + secret))
}

// Append implements limiter.IDs.
func (k *Keys) Append(dst []byte, r *limiter.Reserved) []byte {
	ring := k.ring()
	if len(ring.secrets) == 0 {
		return dst
	}
	if r.ID == ([16]byte{}) {
		r.ID = k.NewID()
	}
	room := buffers.Get().(*[]byte)
	defer buffers.Put(room)
	b := appendReserved((*room)[:0], r)
	b = ring.sign(b, 0, b)
	*room = b
	if base64.RawURLEncoding.EncodedLen(len(b)) > maxText {
		return dst
	}
	return base64.RawURLEncoding.AppendEncode(dst, b)
}

// Open implements limiter.IDs.
func (k *Keys) Open(id string, r *limiter.Reserved) bool {
	room := buffers.Get().(*[]byte)
	defer buffers.Put(room)
	b, sum := split((*room)[:0], id)
	ring := k.ring()
	all := b[:len(b)+len(sum)]
	for i := range ring.secrets {
		signed := ring.sign(all, i, b)
		if *room = signed; hmac.Equal(sum, signed[len(all):]) {
			return decode(b, r)
		}
	}
	return false
}

// Decode decodes id to r without verifying its signature. It returns ErrForged if id is malformed.
func Decode(id string, r *limiter.Reserved) error {
	b, _ := split(nil, id)
	if !decode(b, r) {
		return ErrForged
	}
	return nil
}

// split decodes id into the memory of room, and splits it into the encoded reservation and the signature.
// Both are empty if id is malformed.
func split(room []byte, id string) (b, sum []byte) {
	if len(id) > maxText {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.Strict().AppendDecode(room, []byte(id))
	if err != nil || len(b) <= signatureLen {
		return nil, nil
	}
	return b[:len(b)-signatureLen], b[len(b)-signatureLen:]
}

// These are flags of a part: it was reserved by name, or it is a slot. Lower flags belong to Slot, Hash and Cell.
const (
	isByName = 1 << 3
	isSlot   = 1 << 4
)

func appendReserved(b []byte, r *limiter.Reserved) []byte {
	b = append(append(b, form), r.ID[:]...)
	b = binary.BigEndian.AppendUint64(b, r.Domain)
	b = append(b, byte(len(r.Parts)))
	for i := range r.Parts {
		b = appendPart(b, &r.Parts[i])
	}
	return b
}

func appendPart(b []byte, p *limiter.ReservedPart) []byte {
	b = binary.BigEndian.AppendUint64(b, p.Limit)
	at := len(b)
	b = append(b, 0)
	for i, n := range [...]uint64{p.Slot, p.Hash, p.Cell} {
		if n != 0 {
			b[at] |= 1 << i
			b = binary.BigEndian.AppendUint64(b, n)
		}
	}
	if p.TTL > 0 {
		b[at] |= isSlot
		b = append(b, byte(p.Number))
		for _, n := range [...]uint64{p.Origin, uint64(p.Count), uint64(p.TTL), uint64(len(p.Key))} {
			b = binary.AppendUvarint(b, n)
		}
		return append(b, p.Key...)
	}
	for _, n := range [...]uint64{uint64(p.Count), uint64(p.Times), uint64(p.At), uint64(p.Inflow.Units), uint64(p.Inflow.Span)} {
		b = binary.AppendUvarint(b, n)
	}
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	if p.Name == "" {
		return append(binary.AppendUvarint(b, uint64(len(p.Key))), p.Key...)
	}
	b[at] |= isByName
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(p.Number)), uint64(p.Wait))
	text(p.Name)
	text(p.Config)
	b = binary.AppendUvarint(b, uint64(len(p.Values)))
	for _, value := range p.Values {
		text(value)
	}
	return b
}

func decode(b []byte, r *limiter.Reserved) bool {
	if len(b) == 0 || b[0] != form {
		return false
	}
	f := fields{rest: b[1:]}
	copy(r.ID[:], f.bytes(uint64(len(r.ID))))
	r.Domain = f.uint64()
	parts := f.bytes(1)
	r.Parts = r.Parts[:0]
	for n := 0; len(parts) > 0 && n < int(parts[0]) && !f.short; n++ {
		p := f.part()
		if p.Name == "" && p.TTL == 0 {
			p.Number = n
		}
		if p.Count < 0 || p.Times < 1 && p.TTL == 0 || p.TTL < 0 || p.Number < 0 || p.Wait < 0 {
			return false
		}
		r.Parts = append(r.Parts, p)
	}
	return !f.short && len(r.Parts) > 0
}

// fields decodes numbers and texts from the start of rest.
type fields struct {
	rest  []byte
	short bool // rest did not have enough bytes
}

func (f *fields) part() (p limiter.ReservedPart) {
	p.Limit = f.uint64()
	has := byte(0)
	if b := f.bytes(1); b != nil {
		has = b[0]
	}
	for i, n := range [...]*uint64{&p.Slot, &p.Hash, &p.Cell} {
		if has&(1<<i) != 0 {
			*n = f.uint64()
		}
	}
	if has&isSlot != 0 {
		if b := f.bytes(1); b != nil {
			p.Number = int(b[0])
		}
		p.Origin, p.Count, p.TTL = f.number(), int64(f.number()), algorithms.Micros(f.number())
		p.Key = append(p.Key, f.bytes(f.number())...)
		f.short = f.short || p.TTL <= 0
		return p
	}
	p.Count, p.Times, p.At = int64(f.number()), int64(f.number()), algorithms.Micros(f.number())
	p.Inflow = scaled.Inflow{Units: int64(f.number()), Span: int64(f.number())}
	if has&isByName == 0 {
		p.Key = append(p.Key, f.bytes(f.number())...)
		return p
	}
	p.Number, p.Wait = int(f.number()), algorithms.Micros(f.number())
	p.Name, p.Config, p.Values = f.text(), f.text(), f.texts()
	return p
}

func (f *fields) number() uint64 {
	n, size := binary.Uvarint(f.rest)
	if size <= 0 {
		f.short, f.rest = true, nil
		return 0
	}
	f.rest = f.rest[size:]
	return n
}

func (f *fields) text() string {
	return string(f.bytes(f.number()))
}

func (f *fields) texts() (list []string) {
	for n := f.number(); n > 0 && !f.short; n-- {
		list = append(list, f.text())
	}
	return list
}

// bytes removes the first n bytes from rest and returns them. If rest is shorter, it sets short and returns nil.
func (f *fields) bytes(n uint64) []byte {
	if n > uint64(len(f.rest)) {
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
