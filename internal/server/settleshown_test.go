package server

import (
	"net/url"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"
)

const settles = `
domain: d
settle: {key: settle, end: settle_end}
limits:
  tokens: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 1000, settle: {estimate: 100, unknown_cost: 50, max_debt: 500}}
descriptors: [{key: user, limit: tokens}]
`

// Two requests reserve units. The first is settled for more than its reservation, so the bucket is in debt.
// The second is settled without a real cost.
func TestOperatorsSeeReservations(t *testing.T) {
	x := start(t, settles)
	id := func() string {
		return x.send(t, "user=bob").GetDynamicMetadata().GetFields()["settle"].GetStringValue()
	}
	one, two := id(), id()
	done := request("d")
	done.Descriptors = append(done.Descriptors, descriptor("settle="+one), descriptor("settle_end="+one))
	done.Descriptors[0].HitsAddend, done.Descriptors[1].HitsAddend = wrapperspb.UInt64(1200), wrapperspb.UInt64(0)
	x.put(t, done)
	x.send(t, "settle_end="+two)

	buckets := body(t, get(t, x.Admin, "/api/buckets?limit=tokens&key=bob"))
	for _, want := range []string{
		`"settle":{"estimate":100,"learned":false,"max_debt":500,"reserved":2,"settled":1,"unknown":1,"late":0,"reserved_units":200,"real_units":1250,"lost_units":0}`,
	} {
		if !strings.Contains(buckets, want) {
			t.Errorf("got %s; want a text that contains %s", buckets, want)
		}
	}
	for path, wants := range map[string][]string{
		"/limit?domain=d&name=tokens": {
			"<dt>A request reserves now</dt><dd>100 units until its real cost is known</dd>", "<dt>Reserved</dt><dd>200 units, 2 requests</dd>",
			"<dt>Settled with the real cost</dt><dd>1 time</dd>", "<dt>Settled without one (unknown_cost)</dt><dd>1 time</dd>",
			"<dt>Real costs</dt><dd>1,250 units</dd>", "<dt>Lost beyond max_debt</dt><dd>0 units</dd>",
		},
		"/key?" + url.Values{"domain": {"d"}, "limit": {"tokens"}, "value": {"bob"}}.Encode(): {
			"in debt by 250", "<dt>Reserves</dt><dd>100 units until its real cost is known</dd>",
		},
	} {
		page := body(t, get(t, x.Admin, path))
		for _, want := range wants {
			if !strings.Contains(page, want) {
				t.Errorf("the page %s lacks %s", path, want)
			}
		}
	}
}
