package limiter

import (
	"testing"
	"unsafe"
)

// A listener drops a Call whose buffers have grown too large, so BufferBytes must count each of these buffers.
func TestEachBufferOfACallCounts(t *testing.T) {
	for name, c := range map[string]struct {
		call Call
		want uintptr
	}{
		"nothing":     {Call{}, 0},
		"keys":        {Call{keys: make([]byte, 0, 100)}, 100},
		"buckets":     {Call{buckets: make([]uint32, 0, 100)}, 400},
		"results":     {Call{Verdict: Verdict{Results: make([]Result, 0, 7)}}, 7 * unsafe.Sizeof(Result{})},
		"statuses":    {Call{Verdict: Verdict{Statuses: make([]Status, 0, 7)}}, 7 * unsafe.Sizeof(Status{})},
		"descriptors": {Call{Request: Request{Descriptors: make([]Descriptor, 0, 7)}}, 7 * unsafe.Sizeof(Descriptor{})},
		"places":      {Call{places: make([]place, 0, 7)}, 7 * unsafe.Sizeof(place{})},
		"the order":   {Call{order: make([]int, 0, 7)}, 7 * unsafe.Sizeof(0)},
		"settlements": {Call{Verdict: Verdict{Settlements: make([]Settlement, 0, 7)}}, 7 * unsafe.Sizeof(Settlement{})},
		"payers":      {Call{payers: make([]payer, 0, 7)}, 7 * unsafe.Sizeof(payer{})},
		"two buffers": {Call{keys: make([]byte, 0, 100), buckets: make([]uint32, 0, 100)}, 500},
	} {
		if got := c.call.BufferBytes(); got != int(c.want) {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
	}
}

func TestAResetCallHasNoRequest(t *testing.T) {
	c := &Call{Request: Request{
		Domain: "d", Settle: &Settle{}, IdempotencyKey: IdempotencyKey{ID: "x", Lifetime: 1}, DryRun: true, Inspect: true, MaxDelay: 5,
		Limits: []NamedCharge{{Name: "x"}},
	}}
	c.AddDescriptor()
	c.Reset()
	r := &c.Request
	if r.Domain != "" || r.Settle != nil || r.IdempotencyKey != (IdempotencyKey{}) || r.DryRun || r.Inspect || r.MaxDelay != 0 || len(r.Limits) != 0 || len(r.Descriptors) != 0 {
		t.Errorf("got %+v, want an empty request", *r)
	}
}
