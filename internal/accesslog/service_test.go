package accesslog

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	data "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	als "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

type renewals struct {
	mu  sync.Mutex
	ids []string
}

// renew accepts ids that start with "id".
func (r *renewals) renew(id string) algorithms.Micros {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids = append(r.ids, id)
	if strings.HasPrefix(id, "id") {
		return 60 * algorithms.Second
	}
	return 0
}

func (r *renewals) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := r.ids
	r.ids = nil
	return ids
}

func entry(t data.AccessLogType, filters map[string]map[string]any) *data.HTTPAccessLogEntry {
	m := &core.Metadata{FilterMetadata: map[string]*structpb.Struct{}}
	for name, fields := range filters {
		m.FilterMetadata[name], _ = structpb.NewStruct(fields)
	}
	return &data.HTTPAccessLogEntry{
		CommonProperties: &data.AccessLogCommon{SampleRate: 1, UpstreamCluster: "c", Metadata: m, AccessLogType: t, CustomTags: map[string]string{"settle": "idTag"}},
		Request:          &data.HTTPRequestProperties{Path: "/?settle=idPath", RequestHeaders: map[string]string{"settle": "idHeader"}},
	}
}

func message(list ...*data.HTTPAccessLogEntry) *als.StreamAccessLogsMessage {
	return &als.StreamAccessLogsMessage{
		Identifier: &als.StreamAccessLogsMessage_Identifier{LogName: "slots"},
		LogEntries: &als.StreamAccessLogsMessage_HttpLogs{HttpLogs: &als.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: list}},
	}
}

const rateLimit = "envoy.filters.http.ratelimit"

func periodic(id string) *data.HTTPAccessLogEntry {
	return entry(data.AccessLogType_DownstreamPeriodic, map[string]map[string]any{rateLimit: {"settle": id}})
}

func TestOnlyTheIDsOfRunningRequestsAreRenewed(t *testing.T) {
	invalid := periodic("id4")
	invalid.Request.Path = "PATH"
	for _, test := range []struct {
		name string
		m    *als.StreamAccessLogsMessage
		want []string
	}{
		{"two requests", message(periodic("id1"), periodic("id2")), []string{"id1", "id2"}},
		{"any filter", message(entry(data.AccessLogType_DownstreamPeriodic, map[string]map[string]any{"other": {"x": 1, "settle": "id3"}})), []string{"id3"}},
		{"text that is not UTF-8", message(invalid), []string{"id4"}},
		{"requests that have ended", message(entry(data.AccessLogType_DownstreamEnd, map[string]map[string]any{rateLimit: {"settle": "id"}})), nil},
		{"requests of no type", message(entry(data.AccessLogType_NotSet, map[string]map[string]any{rateLimit: {"settle": "id"}})), nil},
		{"no id", message(entry(data.AccessLogType_DownstreamPeriodic, map[string]map[string]any{rateLimit: {"settle": 5, "slot": "id"}, "settle": {}})), nil},
		{"no entry", message(), nil},
		{"entries of TCP", &als.StreamAccessLogsMessage{LogEntries: &als.StreamAccessLogsMessage_TcpLogs{TcpLogs: &als.StreamAccessLogsMessage_TCPAccessLogEntries{
			LogEntry: []*data.TCPAccessLogEntry{{CommonProperties: periodic("id").GetCommonProperties()}},
		}}}, nil},
	} {
		m, err := proto.Marshal(test.m)
		if err != nil {
			t.Fatal(err)
		}
		m = []byte(strings.ReplaceAll(string(m), "PATH", "\xff\xfe\x80P"))
		r := &renewals{}
		s := NewService(r.renew)
		s.message(m, time.Now())
		if got := r.take(); !slices.Equal(got, test.want) {
			t.Errorf("%s: renewed %q, want %q", test.name, got, test.want)
		}
		for cut := range m { // no part of a message may cause a panic
			s.message(m[:cut], time.Now())
			s.message(m[cut:], time.Now())
		}
	}
}

func TestIDsAreRenewedOnceInAQuarterOfTheirTTL(t *testing.T) {
	r := &renewals{}
	s := NewService(r.renew)
	now := time.Now()
	for _, step := range []struct {
		at   time.Duration
		id   string
		want bool
	}{
		{0, "id1", true},
		{time.Second, "id1", false},
		{time.Second, "id2", true},
		{15*time.Second - 1, "id1", false},
		{15 * time.Second, "id1", true},
		{15 * time.Second, "forged", true}, // an invalid id is not remembered
		{15 * time.Second, "forged", true},
	} {
		s.extend(step.id, now.Add(step.at))
		if got := len(r.take()) == 1; got != step.want {
			t.Errorf("%v %s: renewed: %v, want %v", step.at, step.id, got, step.want)
		}
	}
	for i := range 3 * maxRemembered {
		s.extend("id"+strconv.Itoa(i), now)
	}
	if n := len(s.renewed); n > maxRemembered {
		t.Errorf("%d ids are remembered, want at most %d", n, maxRemembered)
	}
}

func TestTheServiceOverGRPC(t *testing.T) {
	r := &renewals{}
	server, l := grpc.NewServer(), bufconn.Listen(1<<16)
	NewService(r.renew).Register(server)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return l.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := als.NewAccessLogServiceClient(conn).StreamAccessLogs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"id1", "id2"} {
		if err := stream.Send(message(periodic(id))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
	if got := r.take(); !slices.Equal(got, []string{"id1", "id2"}) {
		t.Errorf("renewed %q, want id1 and id2", got)
	}
}
