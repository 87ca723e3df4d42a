package server

import (
	"slices"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	data "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	als "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

const slotLimits = `
domain: d
limits:
  uploads: {algorithm: concurrency, capacity: 2, ttl: 1h}
descriptors:
  - {key: tenant, limit: uploads}
`

func startSlots(t *testing.T) *instance {
	t.Helper()
	return start(t, slotLimits, func(c *Config) { c.LogListen, c.AccessLogService, c.APIToken = "udp://127.0.0.1:0", true, "s3cret" })
}

// take sends a descriptor, and returns the id in the answer.
func (x *instance) take(t *testing.T, text string) (id string) {
	t.Helper()
	if id = x.send(t, text).GetDynamicMetadata().GetFields()["settle"].GetStringValue(); len(id) < 60 {
		t.Fatalf("%s: got the id %q", text, id)
	}
	return id
}

// Lines of access logs and Envoy's access log service reach the limiter. An id of another process, which has the same key and
// buckets of its own, changes nothing. A negative cost returns nothing either, and takes nothing off the other costs of its request.
func TestSlotsEndByTheirIDs(t *testing.T) {
	x := startSlots(t)
	left := func(texts ...string) uint32 { return x.send(t, texts...).GetStatuses()[0].GetLimitRemaining() }
	mine, foreign := x.take(t, "tenant=bob"), startSlots(t).take(t, "tenant=bob") // the same key, but with buckets of its own
	lines := connect(t, x.Logs)
	stream, err := als.NewAccessLogServiceClient(dial(t, x.GRPC)).StreamAccessLogs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	line := func(id string) { _, _ = lines.Write([]byte("GET / 200 " + id + "\n")) }
	entry := func(id string) {
		fields, err := structpb.NewStruct(map[string]any{"settle": id})
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&als.StreamAccessLogsMessage{LogEntries: &als.StreamAccessLogsMessage_HttpLogs{HttpLogs: &als.StreamAccessLogsMessage_HTTPAccessLogEntries{
			LogEntry: []*data.HTTPAccessLogEntry{{CommonProperties: &data.AccessLogCommon{
				AccessLogType: data.AccessLogType_DownstreamPeriodic, Metadata: &core.Metadata{FilterMetadata: map[string]*structpb.Struct{"f": fields}},
			}}},
		}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		end     func()
		counted string // in rlsidecar_slots_ended_total
		free    uint32 // of the 2 slots
	}{
		{func() { line(foreign) }, `door="log",outcome="bad-id"`, 1},
		{func() { entry(foreign) }, `door="access-log",outcome="bad-id"`, 1},
		{func() { left("tenant=bob;hits=1;refund") }, `door="done",outcome="refund"`, 1},
		{func() { entry(mine) }, `door="access-log",outcome="renewed"`, 1},
		{func() { line(mine) }, `door="log",outcome="returned"`, 2},
		{func() { line(mine) }, `door="log",outcome="gone"`, 2},
	} {
		step.end()
		eventually(t, step.counted+" is counted", func() bool { return x.metric(t, `rlsidecar_slots_ended_total\{`+step.counted+`\}`) == 1 })
		if free := left("tenant=bob;hits=0"); free != step.free {
			t.Errorf("%s: %d slots are free, want %d", step.counted, free, step.free)
		}
	}
	if n := left("tenant=bob;hits=1", "tenant=bob;hits=1;refund"); n != 1 {
		t.Errorf("a slot and a negative cost: %d left, want 1", n)
	}
}

// A slot is returned by its id while a reload has removed its limit, or its whole domain. If the limit comes back, the slot
// is free.
func TestSlotEndsWithoutItsLimit(t *testing.T) {
	x := startSlots(t)
	const other = ", descriptors: [{key: other, rate_limit: {unit: minute, requests_per_unit: 5}}]}\n"
	for without, end := range map[string]string{
		"{domain: d" + other: "settle_end",
		"{domain: e" + other: "settle_end",
		"{domain: d, settle: {key: done, end: done_end}" + other: "done_end",
	} {
		id := x.take(t, "tenant=bob")
		x.write(t, without)
		x.reload(t)
		x.send(t, end+"="+id+";hits=0")
		x.write(t, slotLimits)
		x.reload(t)
		if free := x.send(t, "tenant=bob;hits=0").GetStatuses()[0].GetLimitRemaining(); free != 2 {
			t.Errorf("after %s: %d slots are free, want 2", without, free)
		}
	}
}

// While Redis has not answered since the start, the ids of slots of this process are signed, too.
func TestSlotsBeforeRedisAnswers(t *testing.T) {
	t.Parallel()
	const limit = "{algorithm: concurrency, capacity: 1, ttl: 1h, on_backend_failure: local, local_share: 100%}"
	x := start(t, "{domain: d, descriptors: [{key: a, rate_limit: "+limit+"}]}\n", onRedis("redis://127.0.0.1:1"))
	for range 2 {
		x.send(t, "settle_end="+x.take(t, "a=b")+";hits=0")
	}
}

// A reload adds the first limit with ids. Another sidecar accepts them at once.
func TestIDsAfterAReloadAreThoseOfAllSidecars(t *testing.T) {
	t.Parallel()
	redis := onRedis("redis://" + redistest.Start(t).Addr)
	a, b := start(t, small, redis), start(t, small, redis)
	for _, x := range []*instance{a, b} {
		x.write(t, slotLimits)
		x.reload(t)
	}
	for _, one := range [][2]*instance{{a, b}, {b, a}} {
		one[1].send(t, "settle_end="+one[0].take(t, "tenant=bob")+";hits=0")
		if free := a.send(t, "tenant=bob;hits=0").GetStatuses()[0].GetLimitRemaining(); free != 2 {
			t.Errorf("%d slots are free, want 2", free)
		}
	}
}

// A sidecar accepts ids that another one has signed with the previous token, even if it has had no id before.
func TestThePreviousTokenIsKnownFromTheStart(t *testing.T) {
	token := "first"
	s := &server{tokens: accessTokens{api: func() string { return token }}}
	k, err := s.newSettleKeys()
	if err != nil {
		t.Fatal(err)
	}
	token = "second"
	if got := k.secrets(); !slices.Equal(got, []string{"second", "first"}) {
		t.Errorf("got %q, want both tokens", got)
	}
}
