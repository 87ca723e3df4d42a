package grpcapi

import (
	"errors"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// The field numbers of envoy.service.ratelimit.v3.RateLimitRequest and of
// envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.
const (
	requestDomain      = 1
	requestDescriptors = 2
	requestHits        = 3

	descriptorEntries  = 1
	descriptorLimit    = 2
	descriptorHits     = 3
	descriptorNegative = 4

	entryKey   = 1
	entryValue = 2

	limitRequests   = 1
	limitUnit       = 2
	limitMultiplier = 3

	wrapperValue = 1
)

var errMalformed = errors.New("cannot parse RateLimitRequest")

// decode reads x.wire. It accepts what the protobuf library accepts and more: a string need not be
// UTF-8, for Envoy copies bytes of its clients into it, and an error here would let such a client
// pass. An error means that x.wire is not a protobuf message.
func (x *exchange) decode() error {
	x.reset()
	f := fields{rest: x.wire}
	for f.next() {
		switch {
		case f.is(requestDomain, protowire.BytesType):
			x.call.Request.Domain = text(f.bytes)
		case f.is(requestDescriptors, protowire.BytesType):
			if len(x.asks) == maxDescriptors {
				x.excess = true
				continue
			}
			d, a := x.addDescriptor()
			if !x.decodeDescriptor(f.bytes, d, a) {
				return errMalformed
			}
		case f.is(requestHits, protowire.VarintType):
			x.hits = uint32(f.varint)
		}
	}
	if f.bad {
		return errMalformed
	}
	for i := range x.asks {
		x.asks[i].convert(&x.call.Descriptors[i], x.hits)
	}
	return nil
}

func (x *exchange) decodeDescriptor(b []byte, d *limiter.Descriptor, a *ask) bool {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(descriptorEntries, protowire.BytesType):
			if len(d.Entries) == maxEntries {
				x.excess = true
				continue
			}
			x.entries++
			d.Entries = append(d.Entries, descriptors.Entry{})
			if !decodeEntry(f.bytes, &d.Entries[len(d.Entries)-1]) {
				return false
			}
		case f.is(descriptorLimit, protowire.BytesType):
			a.hasLimit = true
			if !a.decodeLimit(f.bytes) {
				return false
			}
		case f.is(descriptorHits, protowire.BytesType):
			a.hasHits = true
			if !decodeWrapper(f.bytes, &a.hits) {
				return false
			}
		case f.is(descriptorNegative, protowire.VarintType):
			a.negative = f.varint != 0
		}
	}
	return !f.bad
}

func decodeEntry(b []byte, e *descriptors.Entry) bool {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(entryKey, protowire.BytesType):
			e.Key = text(f.bytes)
		case f.is(entryValue, protowire.BytesType):
			e.Value = text(f.bytes)
		}
	}
	return !f.bad
}

// decodeLimit may be called several times for one descriptor: protobuf merges them.
func (a *ask) decodeLimit(b []byte) bool {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(limitRequests, protowire.VarintType):
			a.requests = uint32(f.varint)
		case f.is(limitUnit, protowire.VarintType):
			a.unit = int32(f.varint)
		case f.is(limitMultiplier, protowire.BytesType):
			multiplier := uint64(a.multiplier)
			if !decodeWrapper(f.bytes, &multiplier) {
				return false
			}
			a.multiplier = uint32(multiplier)
		}
	}
	return !f.bad
}

// decodeWrapper reads a UInt64Value or UInt32Value; *value stays where it has none.
func decodeWrapper(b []byte, value *uint64) bool {
	f := fields{rest: b}
	for f.next() {
		if f.is(wrapperValue, protowire.VarintType) {
			*value = f.varint
		}
	}
	return !f.bad
}

// fields walks over the fields of a message. Fields that are not known, or not of the type that is
// known, are for the caller to ignore.
type fields struct {
	rest   []byte
	number protowire.Number
	kind   protowire.Type
	bytes  []byte // of a BytesType
	varint uint64 // of a VarintType
	bad    bool   // what follows is no message
}

func (f *fields) is(number protowire.Number, kind protowire.Type) bool {
	return f.number == number && f.kind == kind
}

// next reads one field, and tells whether there was one.
func (f *fields) next() bool {
	if len(f.rest) == 0 {
		return false
	}
	if f.short() {
		return true
	}
	number, kind, n := protowire.ConsumeTag(f.rest)
	if n < 0 || number > protowire.MaxValidNumber {
		f.bad = true
		return false
	}
	f.number, f.kind, f.rest = number, kind, f.rest[n:]
	switch kind {
	case protowire.VarintType:
		f.varint, n = protowire.ConsumeVarint(f.rest)
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(f.rest)
	case protowire.Fixed32Type, protowire.Fixed64Type, protowire.StartGroupType, protowire.EndGroupType:
		n = protowire.ConsumeFieldValue(number, kind, f.rest)
	default:
		n = -1 // no such type
	}
	if n < 0 {
		f.bad = true
		return false
	}
	f.rest = f.rest[n:]
	return true
}

// short reads a field of up to 127 bytes with a number up to 15, which nearly all are. Where it reads
// none there may be another, or a mistake.
func (f *fields) short() bool {
	if len(f.rest) < 2 || f.rest[0] >= 1<<7 || f.rest[1] >= 1<<7 {
		return false
	}
	number, kind, end := protowire.Number(f.rest[0]>>3), protowire.Type(f.rest[0]&7), 2+int(f.rest[1])
	if number == 0 || kind != protowire.BytesType || end > len(f.rest) {
		return false
	}
	f.number, f.kind, f.bytes, f.rest = number, kind, f.rest[2:end], f.rest[end:]
	return true
}

// text is b as a string, without copying it.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
