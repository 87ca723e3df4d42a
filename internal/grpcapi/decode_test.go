package grpcapi

import (
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"
)

// decoded decodes b in the same way as a gRPC request.
func decoded(tb testing.TB, b []byte) (*exchange, error) {
	tb.Helper()
	x := newExchange()
	x.wire = b
	return x, x.decode()
}

func newExchange() *exchange { return &exchange{bounds: Bounds{}.withDefaults()} }

type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

func agree(t fataler, x *exchange, want *rls.RateLimitRequest) {
	t.Helper()
	if x.call.Request.Domain != want.Domain || x.hits != want.HitsAddend {
		t.Fatalf("domain %q, hits %d, want %q, %d", x.call.Request.Domain, x.hits, want.Domain, want.HitsAddend)
	}
	if len(x.limits) != len(want.Descriptors) || len(x.call.Descriptors) != len(want.Descriptors) {
		t.Fatalf("%d descriptors, want %d", len(x.limits), len(want.Descriptors))
	}
	for i, w := range want.Descriptors {
		d, a := &x.call.Descriptors[i], &x.limits[i]
		if len(d.Entries) != len(w.Entries) {
			t.Fatalf("descriptor %d: %d entries, want %d", i, len(d.Entries), len(w.Entries))
		}
		for j, e := range w.Entries {
			if d.Entries[j].Key != e.Key || d.Entries[j].Value != e.Value {
				t.Fatalf("descriptor %d: entry %d is %q, want %q", i, j, d.Entries[j], e)
			}
		}
		wantLimit := descriptorFields{
			hits: w.HitsAddend.GetValue(), hasHits: w.HitsAddend != nil, negative: w.IsNegativeHits,
			hasLimit: w.Limit != nil, requests: w.Limit.GetRequestsPerUnit(), unit: int32(w.Limit.GetUnit()),
			multiplier: w.Limit.GetUnitMultiplier().GetValue(),
		}
		if *a != wantLimit || d.HasOverride != a.hasLimit {
			t.Fatalf("descriptor %d: %+v, override %t; want %+v", i, *a, d.HasOverride, wantLimit)
		}
	}
}

func drawRequest(t *rapid.T) *rls.RateLimitRequest {
	word := rapid.StringN(0, 8, 40)
	entry := rapid.Custom(func(t *rapid.T) *ratelimit.RateLimitDescriptor_Entry {
		return &ratelimit.RateLimitDescriptor_Entry{Key: word.Draw(t, "key"), Value: word.Draw(t, "value")}
	})
	descriptor := rapid.Custom(func(t *rapid.T) *ratelimit.RateLimitDescriptor {
		d := &ratelimit.RateLimitDescriptor{
			Entries:        rapid.SliceOfN(entry, 0, 4).Draw(t, "entries"),
			IsNegativeHits: rapid.Bool().Draw(t, "negative"),
		}
		if rapid.Bool().Draw(t, "has hits") {
			d.HitsAddend = wrapperspb.UInt64(rapid.Uint64().Draw(t, "hits"))
		}
		if rapid.Bool().Draw(t, "has limit") {
			d.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: rapid.Uint32().Draw(t, "requests"),
				Unit:            typev3.RateLimitUnit(rapid.Int32Range(-1, 9).Draw(t, "unit")),
			}
			if rapid.Bool().Draw(t, "has multiplier") {
				d.Limit.UnitMultiplier = wrapperspb.UInt32(rapid.Uint32().Draw(t, "multiplier"))
			}
		}
		return d
	})
	return &rls.RateLimitRequest{
		Domain:      word.Draw(t, "domain"),
		Descriptors: rapid.SliceOfN(descriptor, 0, 5).Draw(t, "descriptors"),
		HitsAddend:  rapid.Uint32().Draw(t, "hits addend"),
	}
}

func TestDecodeAgreesWithProtobuf(t *testing.T) {
	x := newExchange() // reused, as in the server
	rapid.Check(t, func(t *rapid.T) {
		want := drawRequest(t)
		b, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		x.wire = b
		if err := x.decode(); err != nil {
			t.Fatal(err)
		}
		agree(t, x, want)
	})
}

func TestExcessIsMarkedNotDecoded(t *testing.T) {
	const maxDescriptors, maxEntries = DefaultDescriptors, DefaultEntries
	entries := make([]*ratelimit.RateLimitDescriptor_Entry, maxEntries+1)
	for i := range entries {
		entries[i] = &ratelimit.RateLimitDescriptor_Entry{Key: "k", Value: "v"}
	}
	many := make([]*ratelimit.RateLimitDescriptor, maxDescriptors+1)
	for i := range many {
		many[i] = &ratelimit.RateLimitDescriptor{Entries: entries[:1]}
	}
	for name, c := range map[string]struct {
		descriptors []*ratelimit.RateLimitDescriptor
		excess      string
	}{
		"most descriptors":      {many[:maxDescriptors], ""},
		"one descriptor more":   {many, BoundDescriptors},
		"most entries":          {[]*ratelimit.RateLimitDescriptor{{Entries: entries[:maxEntries]}}, ""},
		"one entry more":        {[]*ratelimit.RateLimitDescriptor{{Entries: entries}}, BoundEntries},
		"one more, in the last": {[]*ratelimit.RateLimitDescriptor{{}, {Entries: entries}}, BoundEntries},
	} {
		b, err := proto.Marshal(&rls.RateLimitRequest{Domain: "d", Descriptors: c.descriptors})
		if err != nil {
			t.Fatal(err)
		}
		x, err := decoded(t, b)
		if err != nil || x.excess != c.excess {
			t.Errorf("%s: exceeds %q, want %q; %v", name, x.excess, c.excess, err)
		}
		if len(x.limits) > maxDescriptors || x.entryCount > max(maxDescriptors, maxEntries) || len(x.call.Descriptors[0].Entries) > maxEntries {
			t.Errorf("%s: %d descriptors and %d entries were decoded", name, len(x.limits), x.entryCount)
		}
	}
}

func FuzzDecode(f *testing.F) {
	seed, err := proto.Marshal(&rls.RateLimitRequest{
		Domain: "domain", HitsAddend: 3,
		Descriptors: []*ratelimit.RateLimitDescriptor{{
			Entries:        []*ratelimit.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}, {Key: "k2"}},
			Limit:          &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 2, UnitMultiplier: wrapperspb.UInt32(3)},
			HitsAddend:     wrapperspb.UInt64(4),
			IsNegativeHits: true,
		}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte("\x0a\x01\xff"))
	f.Add(protowire.AppendVarint(protowire.AppendTag(seed, protowire.MaxValidNumber, protowire.VarintType), 1))
	f.Add([]byte("\x0b\x13\x14\x0c\x0a\x01a"))
	// The fields of a request, of a descriptor and of its limit are repeated, in one message and in several. The last ones count.
	f.Add([]byte("\n\x01a\x12\x00\x18\x01\n\x01b\x18\x02\x12\x18\x12\x04\b\t\x10\x01\x1a\x02\b\a\x12\x06\x10\x03\x1a\x02\b\x02\x1a\x00\x12\x02\x1a\x00\x9d\x06\x01\x02\x03\x04"))
	for _, malformed := range [][]byte{
		{0x80}, {0x0a, 0x80}, {0x0a, 5, 'a'}, // a tag, a length and a text are cut
		{0x00, 1}, {0x0c}, {0x0e, 0, 0, 0}, {0x0e, 1}, {0x0f, 1}, {0x80, 0x80, 0x80, 0x80, 0x10, 0}, {0x0b, 0x08}, // no such field, no such type, an open group
		{0x12, 2, 0x0a, 9}, {0x12, 4, 0x0a, 2, 0x0a, 9}, // in a descriptor and an entry
		{0x12, 4, 0x12, 2, 0x08, 0x80}, {0x12, 4, 0x1a, 2, 0x08, 0x80}, {0x12, 6, 0x12, 4, 0x1a, 2, 0x08, 0x80}, // in a limit, hits and a multiplier
	} {
		f.Add(malformed)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		x, err := decoded(t, wire)
		var want rls.RateLimitRequest
		switch wantErr := proto.Unmarshal(wire, &want); {
		case wantErr == nil && err != nil:
			t.Fatalf("protobuf accepts what is refused here: %v", err)
		case wantErr == nil && x.excess == "":
			agree(t, x, &want)
		case wantErr != nil && err == nil && !strings.Contains(wantErr.Error(), "UTF-8"):
			t.Fatalf("protobuf refuses what is accepted here: %v", wantErr)
		}
	})
}
