package server

import "testing"

func TestRequestsAreNotLogged(t *testing.T) {
	x := start(t, `{domain: d, descriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 2}}]}`)
	before := x.logs.Len()
	for range 5 {
		x.send(t, "k=v")
	}
	if added := x.logs.All()[before:]; len(added) > 0 {
		t.Errorf("5 requests, of which 3 are denied: got the log lines %v; want none", added)
	}
}
