package xds

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

// units has the names of ratelimit.config.ratelimit.v3.RateLimitUnit by number. The published Go module
// lacks those from 5 on.
var units = map[ratelimit.RateLimitUnit]string{
	1: "second", 2: "minute", 3: "hour", 4: "day", 5: "month", 6: "year", 7: "week",
}

// These are fields of RateLimitDescriptor that the published Go module does not have.
const (
	fieldQuotaMode = 7 // bool
	fieldMetadata  = 8 // google.protobuf.Struct
)

// maxNesting bounds the nesting of messages while they are decoded. Package config permits less nesting of
// descriptors, and reports a Problem with their place.
const maxNesting = 256

// decode decodes resources. A resource that cannot be decoded becomes a Problem and an Unreadable message.
// The others are still decoded, so that the client reports all mistakes at once. If the resources together are too large
// for the bound on limits, none is decoded, and the result is one Unreadable message without a name.
func decode(resources []*anypb.Any, maxLimits int) (messages []config.Message, problems config.Problems) {
	if why := tooLarge(resources, maxLimits); why != "" {
		return []config.Message{{Unreadable: true}}, config.Problems{{File: config.MessageFile("", "response"), Message: why}}
	}
	for i, resource := range resources {
		refuse := func(m *ratelimit.RateLimitConfig, name, format string, args ...any) {
			messages = append(messages, config.Message{Name: m.GetName(), Domain: m.GetDomain(), Unreadable: true})
			name = config.MessageFile(name, fmt.Sprintf("resources[%d]", i))
			problems = append(problems, config.Problem{File: name, Message: fmt.Sprintf(format, args...)})
		}
		if resource.GetTypeUrl() != TypeURL {
			refuse(nil, "", "is a %q, want a %s", resource.GetTypeUrl(), TypeURL)
			continue
		}
		var m ratelimit.RateLimitConfig
		if err := unmarshal(resource.GetValue(), &m); err != nil {
			refuse(&m, m.GetName(), "cannot be decoded: %v", err)
			continue
		}
		list, err := descriptors(m.GetDescriptors())
		if err != nil {
			refuse(&m, cmp.Or(m.GetDomain(), m.GetName()), "cannot be decoded: %v", err)
			continue
		}
		messages = append(messages, config.Message{Name: m.GetName(), Domain: m.GetDomain(), Descriptors: list})
	}
	return messages, problems
}

func unmarshal(data []byte, m proto.Message) error {
	return proto.UnmarshalOptions{RecursionLimit: maxNesting, Merge: true}.Unmarshal(data, m)
}

func descriptors(from []*ratelimit.RateLimitDescriptor) ([]config.MessageDescriptor, error) {
	list := make([]config.MessageDescriptor, len(from))
	for i, d := range from {
		below, err := descriptors(d.GetDescriptors())
		if err != nil {
			return nil, err
		}
		list[i] = config.MessageDescriptor{
			Key: d.GetKey(), Value: d.GetValue(), Limit: limit(d.GetRateLimit()), Descriptors: below,
			Shadow: d.GetShadowMode(), Detailed: d.GetDetailedMetric(),
		}
		if err := unpublished(d.ProtoReflect().GetUnknown(), &list[i]); err != nil {
			return nil, fmt.Errorf("descriptor %q: %w", d.GetKey(), err)
		}
	}
	return list, nil
}

func limit(from *ratelimit.RateLimitPolicy) *config.MessageLimit {
	if from == nil {
		return nil
	}
	l := &config.MessageLimit{
		Unit: unit(from.GetUnit()), RequestsPerUnit: from.GetRequestsPerUnit(), Unlimited: from.GetUnlimited(), Name: from.GetName(),
	}
	if l.Unlimited && from.GetUnit() == 0 {
		l.Unit = ""
	}
	for _, r := range from.GetReplaces() {
		l.Replaces = append(l.Replaces, r.GetName())
	}
	for number := range fields(from.ProtoReflect().GetUnknown()) {
		l.Unknown = append(l.Unknown, int32(number))
	}
	l.Unknown = slices.Compact(l.Unknown)
	return l
}

// unit returns the name of u. The name of an unknown unit makes the limit invalid.
func unit(u ratelimit.RateLimitUnit) string {
	switch name, known := units[u]; {
	case known:
		return name
	case u == 0:
		return "UNKNOWN"
	default:
		return strconv.Itoa(int(u))
	}
}

// unpublished decodes, from the unknown bytes of a descriptor, the fields that the published Go module lacks.
func unpublished(unknown []byte, d *config.MessageDescriptor) error {
	var meta *structpb.Struct
	for number, f := range fields(unknown) {
		switch {
		case number == fieldQuotaMode && f.kind == protowire.VarintType:
			value, _ := protowire.ConsumeVarint(f.value)
			d.Quota = protowire.DecodeBool(value)
		case number == fieldMetadata && f.kind == protowire.BytesType:
			if meta == nil {
				meta = &structpb.Struct{}
			}
			data, _ := protowire.ConsumeBytes(f.value)
			if err := unmarshal(data, meta); err != nil {
				return fmt.Errorf("metadata: %w", err)
			}
		default:
			d.Unknown = append(d.Unknown, int32(number))
		}
	}
	d.Unknown = slices.Compact(d.Unknown)
	if meta != nil {
		d.Metadata = meta.AsMap()
	}
	return nil
}

type field struct {
	kind  protowire.Type
	value []byte
}

// fields yields the fields of a message that was decoded before, so that its bytes are valid.
func fields(data []byte) func(yield func(protowire.Number, field) bool) {
	return func(yield func(protowire.Number, field) bool) {
		for len(data) > 0 {
			number, kind, n := protowire.ConsumeTag(data)
			if n < 0 {
				return
			}
			size := protowire.ConsumeFieldValue(number, kind, data[n:])
			if size < 0 || !yield(number, field{kind, data[n : n+size]}) {
				return
			}
			data = data[n+size:]
		}
	}
}
