package accesslog

import (
	"errors"
	"hash/maphash"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// ServiceName is the full name of the gRPC service.
const ServiceName = "envoy.service.accesslog.v3.AccessLogService"

// maxRemembered is the number of ids that a Service remembers to have renewed.
const maxRemembered = 65_536

// Service is Envoy's AccessLogService. It renews the slots of requests that still run. Of a log entry it reads only the
// id that the rate limit filter has put into the dynamic metadata, and whether the request still runs.
//
// It does not decode messages with the protobuf library, because that rejects a whole message if a client has sent one
// request with text that is not UTF-8.
type Service struct {
	renew func(id string) (ttl algorithms.Micros)
	seed  maphash.Seed

	mu      sync.Mutex
	renewed map[uint64]time.Time // by the hash of an id, until when it is not renewed again; guarded by mu
}

// NewService returns a Service. The function renew renews the slots of an id, unless the id is invalid. It returns the
// time after which they expire, or 0 if the id is invalid. It must not block.
func NewService(renew func(id string) (ttl algorithms.Micros)) *Service {
	return &Service{renew: renew, seed: maphash.MakeSeed(), renewed: map[uint64]time.Time{}}
}

// Register adds the service to g.
func (s *Service) Register(g grpc.ServiceRegistrar) {
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{{StreamName: "StreamAccessLogs", ClientStreams: true, Handler: s.stream}},
		Metadata:    "envoy/service/accesslog/v3/als.proto",
	}, nil)
}

func (s *Service) stream(_ any, stream grpc.ServerStream) error {
	for {
		var m emptypb.Empty // the fields of the message are then its unknown fields, which are not decoded
		if err := stream.RecvMsg(&m); errors.Is(err, io.EOF) {
			return stream.SendMsg(&m)
		} else if err != nil {
			return err
		}
		s.message(m.ProtoReflect().GetUnknown(), time.Now())
	}
}

// These are the numbers of the fields on the path from a StreamAccessLogsMessage to the id, and the type of an entry.
const (
	messageEntries, entriesEntry, entryCommon, commonMetadata, commonType = 2, 1, 1, 17, 33
	metadataFilters, structFields, mapKey, mapValue, valueString          = 1, 1, 1, 2, 3

	downstreamPeriodic = 5 // an AccessLogType: the request still runs
)

// message renews the ids in a StreamAccessLogsMessage.
func (s *Service) message(m []byte, now time.Time) {
	each(m, messageEntries, func(entries field) {
		each(entries.bytes, entriesEntry, func(entry field) {
			each(entry.bytes, entryCommon, func(common field) { s.entry(common.bytes, now) })
		})
	})
}

func (s *Service) entry(common []byte, now time.Time) {
	runs := false
	each(common, commonType, func(f field) { runs = f.number == downstreamPeriodic })
	if !runs {
		return
	}
	each(common, commonMetadata, func(metadata field) {
		each(metadata.bytes, metadataFilters, func(filter field) {
			each(filter.bytes, mapValue, func(values field) {
				each(values.bytes, structFields, func(value field) {
					if id := idIn(value.bytes); id != "" {
						s.extend(id, now)
					}
				})
			})
		})
	})
}

// idIn returns the text of an entry of a Struct whose key is "settle", or "".
func idIn(entry []byte) (id string) {
	isID := false
	each(entry, mapKey, func(key field) { isID = string(key.bytes) == "settle" })
	if isID {
		each(entry, mapValue, func(value field) {
			each(value.bytes, valueString, func(text field) { id = string(text.bytes) })
		})
	}
	return id
}

// extend renews the slots of id, unless that was done within the last quarter of their ttl.
func (s *Service) extend(id string, now time.Time) {
	hash := maphash.String(s.seed, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.renewed[hash]) {
		return
	}
	ttl := s.renew(id)
	if ttl <= 0 {
		return
	}
	if len(s.renewed) >= maxRemembered {
		clear(s.renewed) // some slots are then renewed more often
	}
	s.renewed[hash] = now.Add(time.Duration(ttl) * time.Microsecond / 4)
}

// field is a field of a protobuf message: a number, or bytes.
type field struct {
	number uint64
	bytes  []byte
}

// each calls f for each field of message m with a number, until the first field that is malformed.
func each(m []byte, number protowire.Number, f func(field)) {
	for len(m) > 0 {
		n, kind, size := protowire.ConsumeTag(m)
		if size < 0 {
			return
		}
		var v field
		value := m[size:]
		switch kind {
		case protowire.VarintType:
			v.number, size = protowire.ConsumeVarint(value)
		case protowire.BytesType:
			v.bytes, size = protowire.ConsumeBytes(value)
		default:
			size = protowire.ConsumeFieldValue(n, kind, value)
		}
		if size < 0 {
			return
		}
		if n == number {
			f(v)
		}
		m = value[size:]
	}
}
