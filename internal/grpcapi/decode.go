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

// decode decodes x.wire. Unlike the protobuf library, it accepts strings that are not UTF-8. Envoy copies
// bytes from its clients into them, and allows a request after an error. An error means that x.wire is not
// a protobuf message.
func (x *exchange) decode() error {
	x.reset()
	for b := x.wire; len(b) > 0; {
		tag, varint, value, rest := field(b)
		b = rest
		switch tag {
		case 0:
			return errMalformed
		case requestDomain<<3 | bytesType:
			x.call.Request.Domain = text(value)
		case requestDescriptors<<3 | bytesType:
			if x.excess != "" {
				continue
			}
			if len(x.limits) == x.bounds.Descriptors {
				x.excess = BoundDescriptors
				continue
			}
			d, a := x.addDescriptor()
			if !x.decodeDescriptor(value, d, a) {
				return errMalformed
			}
		case requestHits<<3 | varintType:
			x.hits = uint32(varint)
		}
	}
	for i := range x.limits {
		x.limits[i].convert(&x.call.Descriptors[i], x.hits)
	}
	return nil
}

func (x *exchange) decodeDescriptor(b []byte, d *limiter.Descriptor, a *descriptorFields) bool {
	for len(b) > 0 {
		tag, varint, value, rest := field(b)
		b = rest
		switch tag {
		case 0:
			return false
		case descriptorEntries<<3 | bytesType:
			if len(d.Entries) == x.bounds.Entries {
				x.excess = BoundEntries
				continue
			}
			x.entryCount++
			d.Entries = append(d.Entries, descriptors.Entry{})
			if !decodeEntry(value, &d.Entries[len(d.Entries)-1]) {
				return false
			}
		case descriptorLimit<<3 | bytesType:
			a.hasLimit = true
			if !a.decodeLimit(value) {
				return false
			}
		case descriptorHits<<3 | bytesType:
			a.hasHits = true
			if !decodeWrapper(value, &a.hits) {
				return false
			}
		case descriptorNegative<<3 | varintType:
			a.negative = varint != 0
		}
	}
	return true
}

func decodeEntry(b []byte, e *descriptors.Entry) bool {
	for len(b) > 0 {
		tag, _, value, rest := field(b)
		b = rest
		switch tag {
		case 0:
			return false
		case entryKey<<3 | bytesType:
			e.Key = text(value)
		case entryValue<<3 | bytesType:
			e.Value = text(value)
		}
	}
	return true
}

// decodeLimit decodes an override. It may be called several times for one descriptor, because protobuf merges
// repeated messages.
func (a *descriptorFields) decodeLimit(b []byte) bool {
	for len(b) > 0 {
		tag, varint, value, rest := field(b)
		b = rest
		switch tag {
		case 0:
			return false
		case limitRequests<<3 | varintType:
			a.requests = uint32(varint)
		case limitUnit<<3 | varintType:
			a.unit = int32(varint)
		case limitMultiplier<<3 | bytesType:
			multiplier := uint64(a.multiplier)
			if !decodeWrapper(value, &multiplier) {
				return false
			}
			a.multiplier = uint32(multiplier)
		}
	}
	return true
}

// decodeWrapper decodes a UInt64Value or UInt32Value. If the message has no value, *value does not change.
func decodeWrapper(b []byte, value *uint64) bool {
	for len(b) > 0 {
		tag, varint, _, rest := field(b)
		b = rest
		switch tag {
		case 0:
			return false
		case wrapperValue<<3 | varintType:
			*value = varint
		}
	}
	return true
}

// The wire types of fields, which are the low bits of a tag.
const (
	varintType = uint64(protowire.VarintType)
	bytesType  = uint64(protowire.BytesType)
)

// field splits the first field off b, which must not be empty. tag has its number and type; it is 0 if b is
// not a message. value is set for a bytesType, and varint for a varintType. Callers ignore unknown fields,
// and fields of an unexpected type.
func field(b []byte) (tag, varint uint64, value, rest []byte) {
	// Nearly all fields have at most 127 bytes and a number up to 15.
	if len(b) >= 2 && b[0] < 1<<7 && b[0] >= 1<<3 && uint64(b[0]&7) == bytesType && b[1] < 1<<7 && 2+int(b[1]) <= len(b) {
		end := 2 + int(b[1])
		return uint64(b[0]), 0, b[2:end], b[end:]
	}
	return anyField(b)
}

func anyField(b []byte) (tag, varint uint64, value, rest []byte) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 || number > protowire.MaxValidNumber {
		return 0, 0, nil, nil
	}
	b = b[n:]
	switch kind {
	case protowire.VarintType:
		varint, n = protowire.ConsumeVarint(b)
	case protowire.BytesType:
		value, n = protowire.ConsumeBytes(b)
	case protowire.Fixed32Type, protowire.Fixed64Type, protowire.StartGroupType, protowire.EndGroupType:
		n = protowire.ConsumeFieldValue(number, kind, b)
	default:
		n = -1 // the type does not exist
	}
	if n < 0 {
		return 0, 0, nil, nil
	}
	return uint64(number)<<3 | uint64(kind), varint, value, b[n:]
}

// text returns b as a string without copying it.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
