package main

import (
	"fmt"
	"io"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type reservation struct {
	// Units is the number of units that this request reserves. If the estimate is learned, which only a running
	// sidecar knows, Units is based on the configured first estimate.
	Units int64    `json:"units"`
	Words []string `json:"words"`
}

// reserves describes what r, a result of c, reserves. It returns nil if the limit of r has no settle, or if another limit
// of the request replaces it.
func reserves(c *limiter.Call, r *limiter.Result) *reservation {
	s := r.Policy.Extra().Settle
	switch {
	case s == nil || r.Outcome == limiter.Replaced:
		return nil
	case c.Unsettled: // the answer has no id
		return &reservation{r.Cost, []string{"/v1/auth settles nothing: these units stay charged"}}
	case c.SettledLater(r):
		return &reservation{r.Cost, s.Words(r.Policy.Limit)}
	default:
		return &reservation{0, s.Words(r.Policy.Limit)}
	}
}

func settlement(d *limiter.Domain, entries []descriptors.Entry) string {
	if d.Settle == nil || len(entries) == 0 {
		return ""
	}
	isNone := entries[0].Value == limiter.None || entries[0].Value == ""
	switch key := entries[0].Key; {
	case (key == d.Settle.Key || key == d.Settle.End) && isNone:
		return "settles nothing: the request reserved nothing"
	case key == d.Settle.Key:
		return "settles the reservation with this id: its hits are the real cost, without hits unknown_cost is charged. It matches no limit"
	case key == d.Settle.End:
		return "ends the request with this id: unless " + descriptors.Printable(d.Settle.Key) + "=ID of the same request has the real cost, unknown_cost is charged. It matches no limit"
	default:
		return ""
	}
}

func writeReservation(w io.Writer, r *reservation) {
	fmt.Fprintf(w, "    settle: reserves %d\n", r.Units)
	for _, text := range r.Words {
		fmt.Fprintf(w, "      %s\n", text)
	}
}
