package server

import (
	"strings"
	"testing"
)

const settles = `
domain: d
settle: {key: settle, end: settle_end}
limits:
  tokens: {algorithm: token_bucket, rate: 1, period: 1h, capacity: 1000, settle: {estimate: 100, unknown_cost: 50, max_debt: 500}}
descriptors: [{key: user, limit: tokens}]
`

// Two requests reserve units. The first is settled for more than its reservation, so the bucket is in debt.
func TestOperatorsSeeReservations(t *testing.T) {
	x := start(t, settles)
	id := x.take(t, "user=bob")
	x.take(t, "user=bob")
	x.send(t, "settle="+id+";hits=1200", "settle_end="+id+";hits=0")
	for path, want := range map[string]string{
		"/api/buckets?limit=tokens&key=bob":    `"reserved":2,"settled":1,"unknown":0,"late":0,"reserved_units":200,"real_units":1200,"lost_units":0`,
		"/limit?domain=d&name=tokens":          "<dt>Reserved</dt><dd>200 units, 2 requests</dd>",
		"/key?domain=d&limit=tokens&value=bob": "in debt by 300",
	} {
		if got := body(t, get(t, x.Admin, path)); !strings.Contains(got, want) {
			t.Errorf("%s: got %s; want a text that contains %s", path, got, want)
		}
	}
}
