package httpapi

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

// The id of a reservation contains all its data, signed with a key derived from the API's token. Every sidecar with
// that token can settle it, and none keeps state for it. The store only keeps, beside the bucket, that it was
// settled.

const (
	// settleWithin is how long a reservation can be settled after its units became available.
	settleWithin = 3600 * algorithms.Second
	// maxReservedKey bounds the key in a reservation's id, in bytes.
	maxReservedKey = 16 << 10
	// reservationForm is the version of the id's layout.
	reservationForm = 1
	signature       = 16
)

// reserved is the content of a reservation's id.
type reserved struct {
	limiter.Reservation
	// Until is the time at which the units are available. Config is the limit that came with the request, if any.
	Until  algorithms.Micros
	Config string
}

// reservationID returns the id of the reservation in result i of c; "" if it cannot be settled.
func (a *API) reservationID(c *limiter.Call, i int, ask *apiAsk) string {
	var id [16]byte
	if ask.id == "" {
		_, _ = rand.Read(id[:]) // never fails
	} else { // the same for a repeated request
		id = backend.OnceID("reservation", ask.id, strconv.Itoa(i), fmt.Sprint(c.Results[i].Decision.At))
	}
	r, ok := c.Reserved(i, string(id[:]))
	if !ok {
		return ""
	}
	config := ""
	if text := ask.configs[c.Results[i].Descriptor]; text != nil {
		config = string(text)
	}
	return a.sign(&reserved{r, r.At + c.Results[i].Decision.Wait, config})
}

// sign encodes and signs r.
func (a *API) sign(r *reserved) string {
	b := []byte{reservationForm}
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
	number(uint64(r.Inflow.Units)) // older versions ignore what follows the key
	number(uint64(r.Inflow.Span))
	return base64.RawURLEncoding.EncodeToString(append(b, a.signature(b)...))
}

// signature returns the signature of an encoded reservation.
func (a *API) signature(text []byte) []byte {
	token := ""
	if a.Token != nil {
		token = a.Token()
	}
	key := sha256.Sum256([]byte("rlsidecar reservation\x00" + token))
	mac := hmac.New(sha256.New, key[:])
	mac.Write(text)
	return mac.Sum(nil)[:signature]
}

var errForged = errors.New("is not a reservation of this API, or of one with another token")

// open decodes an id made by sign, and verifies its signature.
func (a *API) open(id string) (r reserved, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if err != nil || len(b) <= signature {
		return r, errForged
	}
	b, sum := b[:len(b)-signature], b[len(b)-signature:]
	if !hmac.Equal(sum, a.signature(b)) || b[0] != reservationForm {
		return r, errForged
	}
	f := fields{b[1:]} // signed content is well-formed, unless there is no token and a client has signed it
	r.ID = f.text()
	r.At, r.Until = algorithms.Micros(f.number()), algorithms.Micros(f.number())
	r.Kind, r.Shards, r.Count = algorithms.Kind(f.number()), int(f.number()), int64(f.number())
	r.Domain, r.Name, r.Config = f.text(), f.text(), f.text()
	for n := f.number(); n > 0 && len(f.rest) > 0; n-- {
		r.Key = append(r.Key, f.text())
	}
	r.Inflow = algorithms.Inflow{Units: int64(f.number()), Span: int64(f.number())} // 0 of an older version
	return r, nil
}

// fields decodes the rest of a text.
type fields struct{ rest []byte }

func (f *fields) number() uint64 {
	n, size := binary.Uvarint(f.rest)
	f.rest = f.rest[max(0, size):]
	return n
}

func (f *fields) text() string {
	n := min(f.number(), uint64(len(f.rest)))
	s := string(f.rest[:n])
	f.rest = f.rest[n:]
	return s
}

// left returns how long r can still be settled; 0 or less means that it has expired.
func (a *API) left(r *reserved) algorithms.Micros {
	return r.Until + settleWithin - a.now()
}

// now is the time by this process's clock.
func (a *API) now() algorithms.Micros {
	now := time.Now
	if a.Now != nil {
		now = a.Now
	}
	return algorithms.Micros(now().UnixMicro())
}
