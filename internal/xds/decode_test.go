package xds

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/rlsidecar/rlsidecar/internal/config"
)

func resources(t *testing.T, messages ...proto.Message) (list []*anypb.Any) {
	t.Helper()
	for _, m := range messages {
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &anypb.Any{TypeUrl: TypeURL, Value: data})
	}
	return list
}

func decodeAny(resources []*anypb.Any) ([]config.Message, config.Problems) {
	return decode(resources, config.DefaultMaxLimits)
}

func TestDecode(t *testing.T) {
	got, problems := decodeAny(resources(t, &ratelimit.RateLimitConfig{Name: "n", Domain: "d", Descriptors: []*ratelimit.RateLimitDescriptor{
		{Key: "a", Value: "b", ShadowMode: true, DetailedMetric: true, Descriptors: []*ratelimit.RateLimitDescriptor{
			{Key: "c", RateLimit: &ratelimit.RateLimitPolicy{
				Unit: ratelimit.RateLimitUnit_HOUR, RequestsPerUnit: 7, Name: "x", Replaces: []*ratelimit.RateLimitReplace{{Name: "y"}, {Name: "z"}},
			}},
		}},
		{Key: "free", RateLimit: &ratelimit.RateLimitPolicy{Unlimited: true}},
	}}, &ratelimit.RateLimitConfig{Name: "m"}))
	want := []config.Message{{Name: "n", Domain: "d", Descriptors: []config.MessageDescriptor{
		{Key: "a", Value: "b", Shadow: true, Detailed: true, Descriptors: []config.MessageDescriptor{
			{Key: "c", Limit: &config.MessageLimit{Unit: "hour", RequestsPerUnit: 7, Name: "x", Replaces: []string{"y", "z"}}, Descriptors: []config.MessageDescriptor{}},
		}},
		{Key: "free", Limit: &config.MessageLimit{Unlimited: true}, Descriptors: []config.MessageDescriptor{}},
	}}, {Name: "m", Descriptors: []config.MessageDescriptor{}}}
	if len(problems) > 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, problems, want)
	}
}

func TestUnits(t *testing.T) {
	for number, want := range map[ratelimit.RateLimitUnit]string{0: "UNKNOWN", 1: "second", 2: "minute", 3: "hour", 4: "day", 5: "month", 6: "year", 7: "week", 8: "8", -1: "-1"} {
		got, problems := decodeAny(resources(t, &ratelimit.RateLimitConfig{Descriptors: []*ratelimit.RateLimitDescriptor{{RateLimit: &ratelimit.RateLimitPolicy{Unit: number}}}}))
		if len(problems) > 0 || got[0].Descriptors[0].Limit.Unit != want {
			t.Errorf("%d: got %v, %v; want the unit %v", number, got, problems, want)
		}
		if number == 0 { // a limit that is unlimited needs no unit; package config reports one that it has
			want = ""
		}
		if got := limit(&ratelimit.RateLimitPolicy{Unlimited: true, Unit: number}); got.Unit != want || !got.Unlimited {
			t.Errorf("unit %d: got %+v; want unlimited with the unit %q", number, got, want)
		}
	}
}

// with returns a configuration of one descriptor. fields are encoded fields of the descriptor that the published Go
// module lacks.
func with(fields []byte) *ratelimit.RateLimitConfig {
	d := &ratelimit.RateLimitDescriptor{Key: "k"}
	d.ProtoReflect().SetUnknown(fields)
	return &ratelimit.RateLimitConfig{Domain: "d", Descriptors: []*ratelimit.RateLimitDescriptor{d}}
}

func TestLaterFields(t *testing.T) {
	meta, err := structpb.NewStruct(map[string]any{"team": "a", "deep": map[string]any{"list": []any{1.5, true, nil}}})
	if err != nil {
		t.Fatal(err)
	}
	one, _ := proto.Marshal(&structpb.Struct{Fields: map[string]*structpb.Value{"team": meta.Fields["team"]}})
	other, _ := proto.Marshal(&structpb.Struct{Fields: map[string]*structpb.Value{"deep": meta.Fields["deep"]}})
	b := protowire.AppendVarint(protowire.AppendTag(nil, fieldQuotaMode, protowire.VarintType), 1)
	for _, data := range [][]byte{one, other} { // if a field of a message type occurs twice, the messages are merged
		b = protowire.AppendBytes(protowire.AppendTag(b, fieldMetadata, protowire.BytesType), data)
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, 99, protowire.VarintType), 1)
	b = protowire.AppendVarint(protowire.AppendTag(b, 99, protowire.VarintType), 2)
	got, problems := decodeAny(resources(t, with(b)))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	d := got[0].Descriptors[0]
	if !d.Quota || !reflect.DeepEqual(d.Metadata, meta.AsMap()) || !reflect.DeepEqual(d.Unknown, []int32{99}) {
		t.Errorf("got %+v; want quota mode, the metadata and the unknown field 99", d)
	}
	// Fields with the numbers of quota_mode and metadata but of another type are reported and ignored.
	b = protowire.AppendString(protowire.AppendTag(nil, fieldQuotaMode, protowire.BytesType), "x")
	got, _ = decodeAny(resources(t, with(protowire.AppendVarint(protowire.AppendTag(b, fieldMetadata, protowire.VarintType), 1))))
	if d := got[0].Descriptors[0]; d.Quota || d.Metadata != nil || !reflect.DeepEqual(d.Unknown, []int32{fieldQuotaMode, fieldMetadata}) {
		t.Errorf("got %+v; want no quota mode and no metadata, and their fields among the unknown ones", d)
	}
	policy := &ratelimit.RateLimitPolicy{}
	policy.ProtoReflect().SetUnknown(slices.Repeat(protowire.AppendVarint(protowire.AppendTag(nil, 6, protowire.VarintType), 1), 2))
	got, _ = decodeAny(resources(t, &ratelimit.RateLimitConfig{Descriptors: []*ratelimit.RateLimitDescriptor{{RateLimit: policy}}}))
	if l := got[0].Descriptors[0].Limit; !reflect.DeepEqual(l.Unknown, []int32{6}) {
		t.Errorf("got %+v; want the unknown field 6", l)
	}
}

func TestUndecodableMessages(t *testing.T) {
	deep := &ratelimit.RateLimitDescriptor{}
	for range 2 * maxNesting {
		deep = &ratelimit.RateLimitDescriptor{Descriptors: []*ratelimit.RateLimitDescriptor{deep}}
	}
	broken := protowire.AppendBytes(protowire.AppendTag(nil, fieldMetadata, protowire.BytesType), []byte{0xff})
	for name, c := range map[string]struct {
		resource *anypb.Any
		want     string
	}{
		"no bytes of a message": {&anypb.Any{TypeUrl: TypeURL, Value: []byte{0xff, 0xff}}, "xds:resources[0]: cannot be decoded"},
		"another type":          {&anypb.Any{TypeUrl: "type.googleapis.com/x.Y"}, `xds:resources[0]: is a "type.googleapis.com/x.Y"`},
		"nothing":               {nil, `xds:resources[0]: is a ""`},
		"not UTF-8":             {&anypb.Any{TypeUrl: TypeURL, Value: []byte{2<<3 | 2, 1, 0xff}}, "invalid UTF-8"},
		"too deep":              {resources(t, &ratelimit.RateLimitConfig{Name: "n", Descriptors: []*ratelimit.RateLimitDescriptor{deep}})[0], "xds:n: cannot be decoded"},
		"metadata below":        {resources(t, &ratelimit.RateLimitConfig{Domain: "d", Descriptors: []*ratelimit.RateLimitDescriptor{{Key: "above", Descriptors: with(broken).Descriptors}}})[0], `xds:d: cannot be decoded: descriptor "k": metadata`},
		"metadata":              {resources(t, with(broken))[0], `xds:d: cannot be decoded: descriptor "k": metadata`},
	} {
		good := resources(t, &ratelimit.RateLimitConfig{Domain: "good"})[0]
		got, problems := decodeAny([]*anypb.Any{c.resource, good})
		if len(problems) != 1 || !strings.Contains(problems.Error(), c.want) || !problems.Bad() {
			t.Errorf("%s: %v, want %s", name, problems, c.want)
		}
		if len(got) != 2 || !got[0].Unreadable || got[1].Domain != "good" || got[1].Unreadable {
			t.Errorf("%s: got %v; want an unreadable message, and the domain good", name, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{2<<3 | 2, 1, 'd', 3<<3 | 2, 3, 1<<3 | 2, 1, 'k'})
	f.Add([]byte{3<<3 | 2, 5, fieldQuotaMode << 3, 1, fieldMetadata<<3 | 2, 1, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		messages, problems := decodeAny([]*anypb.Any{{TypeUrl: TypeURL, Value: data}})
		if len(messages) != 1 || messages[0].Unreadable != (len(problems) == 1) {
			t.Errorf("got %v, %v; want one message, unreadable only if a problem is reported", messages, problems)
		}
		if messages[0].Unreadable {
			return
		}
		if snapshot, mistakes := config.CompileMessages(messages, config.Options{}); snapshot == nil != mistakes.Bad() {
			t.Errorf("got %v, %v; want a snapshot only if there is no mistake", snapshot, mistakes)
		}
	})
}
