package reservation

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/scaled"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// oldForm is the version of the layout that only the HTTP API and package ratelimit used, before all reservations
// had the same layout. Ids of the old form can be settled until an hour after their units are available, like all
// ids of reservations by name. They are accepted until v1.
const oldForm = 1

// openOld decodes an id of the old form, if one of the old secrets signed it.
func (k *Keys) openOld(b, sum []byte, r *limiter.Reserved) bool {
	if k.old == nil {
		return false
	}
	for _, secret := range k.old() {
		key := signingKey(secret)
		mac := hmac.New(sha256.New, key[:])
		mac.Write(b)
		if hmac.Equal(sum, mac.Sum(nil)[:signatureLen]) {
			return decodeOld(b, r)
		}
	}
	return false
}

func decodeOld(b []byte, r *limiter.Reserved) bool {
	f := fields{rest: b[1:]}
	if id := f.text(); len(id) != copy(r.ID[:], id) {
		return false
	}
	p := limiter.ReservedPart{Number: -1, Times: 1, At: algorithms.Micros(f.number())}
	p.Wait = algorithms.Micros(f.number()) - p.At
	kind, shards := algorithms.Kind(f.number()), int(f.number())
	p.Count = int64(f.number())
	domain := f.text()
	p.Name, p.Config, p.Values = f.text(), f.text(), f.texts()
	if f.short || p.Count < 0 || p.Wait < 0 || p.Name == "" {
		return false
	}
	if len(f.rest) > 0 { // the oldest versions did not encode this field
		p.Inflow = scaled.Inflow{Units: int64(f.number()), Span: int64(f.number())}
	}
	what := "limit"
	if p.Config != "" {
		what = "inline"
	}
	p.Limit = limiter.LimitNumber(descriptors.Prefix(domain, what, p.Name, kind), shards)
	r.Domain, r.Parts = limiter.PrefixNumber(domain), append(r.Parts[:0], p)
	return true
}
