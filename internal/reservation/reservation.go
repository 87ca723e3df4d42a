// Package reservation encodes reservations as text. The text contains all data of a reservation and is signed, so
// that every process with the same secret can settle it and none keeps state for it. The HTTP API and package ratelimit
// use the same text.
package reservation

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const (
	// Within is how long a reservation can be settled after its units became available.
	Within = 3600 * algorithms.Second
	// ClockSlack is the largest difference between the clocks of processes and of the store. A store keeps the result of
	// a settlement for that much longer than the reservation can be settled, so that it is never settled twice.
	ClockSlack = limiter.ClockSlack
	// MaxKey bounds the values of a key, in bytes.
	MaxKey = 16 << 10
	// form is the version of the layout.
	form = 1
	// signatureLen is the length of the signature, in bytes.
	signatureLen = 16
)

// Reservation is the content of the text.
type Reservation struct {
	limiter.Reservation
	// Until is the time at which the units are available, by the clock of the store.
	Until algorithms.Micros
	// Config is the limit that came with the request; "" if it was a configured one.
	Config string
}

// ErrForged means that a text is not a reservation, or was signed with another secret.
var ErrForged = errors.New("is not a reservation, or was made with another token")

// Left returns how long r can still be settled at time now; 0 or less means that it has expired.
func (r *Reservation) Left(now algorithms.Micros) algorithms.Micros { return r.Until + Within - now }

// Sign returns the text of r, signed with secret.
func Sign(secret string, r *Reservation) string {
	b := []byte{form}
	number := func(n uint64) { b = binary.AppendUvarint(b, n) }
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	text(r.ID)
	for _, n := range [...]uint64{uint64(r.At), uint64(r.Until), uint64(r.Kind), uint64(r.Shards), uint64(r.Count)} {
		number(n)
	}
	text(r.Domain)
	text(r.Name)
	text(r.Config)
	number(uint64(len(r.Key)))
	for _, value := range r.Key {
		text(value)
	}
	number(uint64(r.Inflow.Units)) // older versions ignore this
	number(uint64(r.Inflow.Span))
	return base64.RawURLEncoding.EncodeToString(append(b, signature(secret, b)...))
}

// signature returns the signature of an encoded reservation.
func signature(secret string, b []byte) []byte {
	key := signingKey(secret)
	mac := hmac.New(sha256.New, key[:])
	mac.Write(b)
	return mac.Sum(nil)[:signatureLen]
}

// signingKey derives the key of signatures from secret.
func signingKey(secret string) [sha256.Size]byte {
	return sha256.Sum256([]byte("rlsidecar reservation\x00" + secret))
}

// Open decodes a text made by Sign with the same secret. Otherwise it returns ErrForged.
func Open(secret, text string) (r Reservation, err error) {
	b, sum, err := split(text)
	if err != nil || !hmac.Equal(sum, signature(secret, b)) {
		return Reservation{}, ErrForged
	}
	return decode(b)
}

// Decode decodes a text made by Sign without verifying its signature. It returns ErrForged if the text is
// malformed.
func Decode(text string) (Reservation, error) {
	b, _, err := split(text)
	if err != nil {
		return Reservation{}, err
	}
	return decode(b)
}

// split splits a text into the encoded reservation and the signature.
func split(text string) (b, sum []byte, err error) {
	b, err = base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) <= signatureLen || b[0] != form {
		return nil, nil, ErrForged
	}
	return b[:len(b)-signatureLen], b[len(b)-signatureLen:], nil
}

func decode(b []byte) (r Reservation, err error) {
	f := fields{rest: b[1:]}
	r.ID = f.text()
	r.At, r.Until = algorithms.Micros(f.number()), algorithms.Micros(f.number())
	r.Kind, r.Shards, r.Count = algorithms.Kind(f.number()), int(f.number()), int64(f.number())
	r.Domain, r.Name, r.Config = f.text(), f.text(), f.text()
	for n := f.number(); n > 0 && !f.short; n-- {
		r.Key = append(r.Key, f.text())
	}
	if f.short || r.Count < 0 {
		return Reservation{}, ErrForged
	}
	if len(f.rest) > 0 { // absent in older versions
		r.Inflow = algorithms.Inflow{Units: int64(f.number()), Span: int64(f.number())}
	}
	return r, nil
}

// fields decodes numbers and texts from the front of rest.
type fields struct {
	rest  []byte
	short bool // rest ended too early
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
	n := f.number()
	if n > uint64(len(f.rest)) {
		f.short, f.rest = true, nil
		return ""
	}
	s := string(f.rest[:n])
	f.rest = f.rest[n:]
	return s
}
