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

// A reservation is known by a text that says all there is to know of it, signed with a key made of
// the API's token: every sidecar with that token can settle it, and none keeps anything for it. Only
// that it was settled is remembered, where the bucket is.

const (
	// settleWithin is how long after its turn a reservation can be settled.
	settleWithin = 3600 * algorithms.Second
	// clockSlack is by how much the clocks of sidecars and of the backend may differ.
	clockSlack = 60 * algorithms.Second
	// maxReservedKey bounds the key of a bucket that is reserved, which its id holds.
	maxReservedKey = 16 << 10
	// reservationForm is the version of the layout.
	reservationForm = 1
	signature       = 16
)

// reserved is a reservation as its id has it.
type reserved struct {
	limiter.Reservation
	// Until is when its turn is; Config is the limit that came with the request, if it did.
	Until  algorithms.Micros
	Config string
}

// reservationID is the id of what result i of c reserved; "": it cannot be settled.
func (a *API) reservationID(c *limiter.Call, i int, ask *apiAsk) string {
	var id [16]byte
	if ask.id == "" {
		_, _ = rand.Read(id[:]) // never fails
	} else { // asked again it is the same
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

// sign makes the text.
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
	return base64.RawURLEncoding.EncodeToString(append(b, a.signature(b)...))
}

// signature is that of a reservation's text.
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

// open reads what sign has made.
func (a *API) open(id string) (r reserved, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if err != nil || len(b) <= signature {
		return r, errForged
	}
	b, sum := b[:len(b)-signature], b[len(b)-signature:]
	if !hmac.Equal(sum, a.signature(b)) || b[0] != reservationForm {
		return r, errForged
	}
	f := fields{b[1:]} // what is signed is as sign made it, or was signed by who knows that there is no token
	r.ID = f.text()
	r.At, r.Until = algorithms.Micros(f.number()), algorithms.Micros(f.number())
	r.Kind, r.Shards, r.Count = algorithms.Kind(f.number()), int(f.number()), int64(f.number())
	r.Domain, r.Name, r.Config = f.text(), f.text(), f.text()
	for n := f.number(); n > 0 && len(f.rest) > 0; n-- {
		r.Key = append(r.Key, f.text())
	}
	return r, nil
}

// fields reads what is left of a text.
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

// left is for how long r can be settled still; 0 or less: no more.
func (a *API) left(r *reserved) algorithms.Micros {
	now := time.Now
	if a.Now != nil {
		now = a.Now
	}
	return r.Until + settleWithin - algorithms.Micros(now().UnixMicro())
}
