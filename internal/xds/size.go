package xds

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"
)

// size has the numbers of the parts of a response. It is counted in the encoded bytes, because a decoded response needs
// a hundred times as much memory as an encoded one.
type size struct {
	limits      int
	descriptors int // and resources
	details     int // values of metadata, and names of limits that a limit replaces
}

// These are the numbers of the fields that contain the parts.
const (
	fieldDescriptors = 3 // of RateLimitConfig
	fieldRateLimit   = 3 // of RateLimitDescriptor
	fieldBelow       = 4 // of RateLimitDescriptor: its descriptors
	fieldReplaces    = 5 // of RateLimitPolicy
	fieldFields      = 1 // of google.protobuf.Struct
	fieldEntryValue  = 2 // of an entry of Struct.fields
	fieldStructValue = 5 // of google.protobuf.Value
	fieldListValue   = 6 // of google.protobuf.Value
	fieldListValues  = 1 // of google.protobuf.ListValue
)

// For each limit that RLSIDECAR_MAX_LIMITS allows, a response may have so many descriptors and details.
const descriptorsPerLimit, detailsPerLimit = 2, 10

// tooLarge returns why a response cannot be decoded within the bound on limits, or "".
func tooLarge(resources []*anypb.Any, maxLimits int) string {
	s := size{descriptors: len(resources)}
	for _, r := range resources {
		for below := range messages(r.GetValue(), fieldDescriptors) {
			s.descriptor(below, 1)
		}
	}
	const text = "the configuration has %d %s, more than the %d that RLSIDECAR_MAX_LIMITS allows; make it smaller, or raise RLSIDECAR_MAX_LIMITS"
	switch {
	case s.limits > maxLimits:
		return fmt.Sprintf(text, s.limits, "limits", maxLimits)
	case s.descriptors > descriptorsPerLimit*maxLimits:
		return fmt.Sprintf(text, s.descriptors, "descriptors", descriptorsPerLimit*maxLimits)
	case s.details > detailsPerLimit*maxLimits:
		return fmt.Sprintf(text, s.details, "values of metadata and replaces", detailsPerLimit*maxLimits)
	default:
		return ""
	}
}

// messages yields the messages in the field number of a message, as far as its bytes are valid.
func messages(data []byte, number protowire.Number) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for n, f := range fields(data) {
			if n != number || f.kind != protowire.BytesType {
				continue
			}
			if below, _ := protowire.ConsumeBytes(f.value); !yield(below) {
				return
			}
		}
	}
}

// descriptor counts a RateLimitDescriptor. The decoder reports one that is nested too deep.
func (s *size) descriptor(data []byte, depth int) {
	s.descriptors++
	if depth > maxNesting {
		return
	}
	for limit := range messages(data, fieldRateLimit) {
		s.limits++
		for range messages(limit, fieldReplaces) {
			s.details++
		}
	}
	for metadata := range messages(data, fieldMetadata) {
		s.structure(metadata, depth)
	}
	for below := range messages(data, fieldBelow) {
		s.descriptor(below, depth+1)
	}
}

// structure counts a google.protobuf.Struct.
func (s *size) structure(data []byte, depth int) {
	for entry := range messages(data, fieldFields) {
		s.details++
		for value := range messages(entry, fieldEntryValue) {
			s.value(value, depth+1)
		}
	}
}

func (s *size) value(data []byte, depth int) {
	if depth > maxNesting {
		return
	}
	for below := range messages(data, fieldStructValue) {
		s.structure(below, depth+1)
	}
	for list := range messages(data, fieldListValue) {
		for value := range messages(list, fieldListValues) {
			s.details++
			s.value(value, depth+1)
		}
	}
}
