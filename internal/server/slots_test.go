package server

import (
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	data "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	als "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

const slotLimits = `
domain: d
limits:
  uploads: {algorithm: concurrency, capacity: 2, ttl: 1h}
  short: {algorithm: concurrency, capacity: 1, ttl: 1s}
  tokens: {algorithm: fixed_window, rate: 1000, period: 1d, settle: {estimate: 100}}
descriptors:
  - {key: tenant, limit: uploads}
  - {key: short, limit: short}
  - {key: user, limit: tokens}
`

func startSlots(t *testing.T) *instance {
	t.Helper()
	return start(t, slotLimits, func(c *Config) { c.LogListen, c.AccessLogService = "udp://127.0.0.1:0", true })
}

// take sends a descriptor, and returns the id in the answer.
func (x *instance) take(t *testing.T, text string) (id string) {
	t.Helper()
	if id = x.send(t, text).GetDynamicMetadata().GetFields()["settle"].GetStringValue(); len(id) < 60 {
		t.Fatalf("%s: got the id %q", text, id)
	}
	return id
}

// slotSenders are the ways to end a slot by an id.
func slotSenders(t *testing.T, x *instance) map[string]func(id string) {
	t.Helper()
	lines, err := net.Dial("udp", x.Logs.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lines.Close() })
	stream, err := als.NewAccessLogServiceClient(dial(t, x.GRPC)).StreamAccessLogs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	post := func(path, id string) {
		body, err := json.Marshal(map[string]string{"reservation": id})
		if err != nil {
			t.Fatal(err)
		}
		exchange(t, "POST", x.HTTP, path, string(body), "Content-Type", "application/json")
	}
	return map[string]func(id string){
		"done":  func(id string) { x.send(t, "settle_end="+id+";hits=0") },
		"http":  func(id string) { post("/v1/limit", id) },
		"renew": func(id string) { post("/v1/renew", id) },
		"log":   func(id string) { _, _ = lines.Write([]byte("GET / 200 " + id + "\n")) },
		"access-log": func(id string) {
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
		},
	}
}

// series returns the value of a series at the admin listener, such as NAME{a="b"}.
func (x *instance) series(t *testing.T, name string) (value string) {
	t.Helper()
	_, rest, _ := strings.Cut(x.metrics(t), "\n"+name+" ")
	value, _, _ = strings.Cut(rest, "\n")
	return value
}

// Whoever sends an id that is not that of an occupied slot changes nothing, and is counted.
func TestBadIDsOfSlotsChangeNothingAndAreCounted(t *testing.T) {
	x := startSlots(t)
	x.take(t, "tenant=bob")
	mine, tokens, expired := x.take(t, "tenant=bob"), x.take(t, "user=bob"), x.take(t, "short=bob")
	foreign := startSlots(t).take(t, "tenant=bob") // signed with another key
	time.Sleep(1100 * time.Millisecond)            // expired is
	senders := slotSenders(t, x)
	const slots, ignored = "rlsidecar_slots_ended_total", "rlsidecar_settle_ignored_total"
	bad := map[string]string{
		"done": ignored + `{domain="d",reason="forged"}`, "http": slots + `{door="http",outcome="bad-id"}`, "renew": slots + `{door="http",outcome="bad-id"}`,
		"log": slots + `{door="log",outcome="bad-id"}`, "access-log": slots + `{door="access-log",outcome="bad-id"}`,
	}
	gone := map[string]string{
		"done": slots + `{door="done",outcome="gone"}`, "http": slots + `{door="http",outcome="gone"}`, "renew": slots + `{door="http",outcome="lost"}`,
		"log": slots + `{door="log",outcome="gone"}`, "access-log": slots + `{door="access-log",outcome="lost"}`,
	}
	for _, step := range []struct {
		name, id string
		counted  map[string]string // by sender: the series that counts it
		free     uint32            // of the 2 slots
	}{
		{"no id", "none", map[string]string{"done": ignored + `{domain="d",reason="none"}`, "log": bad["log"], "access-log": bad["access-log"]}, 0},
		{"an id of another process", foreign, bad, 0},
		{"a changed id", "A" + mine[:len(mine)-1], bad, 0},
		{"a part of an id", mine[1:], bad, 0},
		{"a long text", strings.Repeat("x", 5000), map[string]string{"done": bad["done"], "http": bad["http"], "log": bad["log"]}, 0},
		{"the id of a reservation", tokens, map[string]string{"renew": bad["renew"], "log": bad["log"], "access-log": bad["access-log"]}, 0},
		{"a slot that has expired", expired, gone, 0},
		{"the id", mine, map[string]string{"done": slots + `{door="done",outcome="returned"}`}, 1},
		{"the id again", mine, gone, 1},
	} {
		for sender, series := range step.counted {
			before := x.series(t, series)
			senders[sender](step.id)
			eventually(t, step.name+" by "+sender+" is counted as "+series, func() bool { return x.series(t, series) != before })
			if free := x.send(t, "tenant=bob;hits=0").GetStatuses()[0].GetLimitRemaining(); free != step.free {
				t.Errorf("%s by %s: %d slots are free, want %d", step.name, sender, free, step.free)
			}
		}
	}
}

// A slot is returned by its id. A negative cost returns nothing, and takes nothing off the other costs of its request.
func TestNegativeCostsReturnNoSlots(t *testing.T) {
	x := startSlots(t)
	for _, step := range []struct {
		send []string
		left uint32
	}{
		{[]string{"tenant=bob"}, 1},
		{[]string{"tenant=bob;hits=1;refund"}, 1},
		{[]string{"tenant=bob;hits=1", "tenant=bob;hits=1;refund"}, 0},
		{[]string{"tenant=bob;hits=5;refund"}, 0},
	} {
		if left := x.send(t, step.send...).GetStatuses()[0].GetLimitRemaining(); left != step.left {
			t.Errorf("%v: %d left, want %d", step.send, left, step.left)
		}
	}
	if n := x.series(t, `rlsidecar_slots_ended_total{door="done",outcome="refund"}`); n != "3" {
		t.Errorf("counted %q, want 3", n)
	}
}
