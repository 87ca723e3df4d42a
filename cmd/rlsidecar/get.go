package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpapi"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

type getCmd struct {
	bucketArgs
	adminFlags
}

func (getCmd) Help() string {
	return `Queries the admin listener of a running sidecar. The query consumes nothing. In the
output, NEXT IN is the time until a request of one unit is allowed, and FULL IN is the
time until the bucket is full.

With --descriptor, it shows the bucket of each limit that the descriptor matches.
In a key or value, write \, for a comma and \= for an equals sign. Exits with 1 if there is no
such limit, or if the descriptor matches none.

Example:

  rlsidecar get send_message bob
  rlsidecar get --domain edge --descriptor path=/login,remote_address=192.0.2.7`
}

func (c *getCmd) Run(a *app) error {
	query, err := c.query()
	if err != nil {
		return err
	}
	var answer struct{ Buckets []httpapi.OperatorBucket }
	err = c.send(a, http.MethodGet, "buckets?"+query.Encode(), nil, &answer, func(w io.Writer) error { return writeBuckets(w, answer.Buckets) })
	if err == nil && len(answer.Buckets) == 0 {
		return exitError{exitNo, errNoBucket}
	}
	return err
}

func writeBuckets(out io.Writer, buckets []httpapi.OperatorBucket) error {
	if len(buckets) == 0 {
		return nil
	}
	rows := rowsOf(buckets, func(b httpapi.OperatorBucket) []string {
		next := duration(b.RetryAfter)
		switch {
		case b.Capacity == 0:
			next = "never"
		case b.RetryAfter == 0:
			next = "now"
		}
		full := duration(max(b.ResetAfter, b.BlockedFor)) // a blocked key is not full before the block ends
		if b.InFlight != nil && *b.InFlight > 0 {         // nobody knows when requests end
			full = "unknown"
			if b.Remaining == 0 {
				next = "unknown"
			}
		}
		return []string{descriptors.Printable(b.Domain), descriptors.Printable(b.Name), b.Key.String(), fmt.Sprint(b.Remaining), fmt.Sprint(b.Capacity), next, full}
	}, "DOMAIN", "LIMIT", "KEY", "REMAINING", "OF", "NEXT IN", "FULL IN")
	if err := writeTable(out, rows...); err != nil {
		return err
	}
	for _, b := range buckets {
		if b.InFlight != nil {
			fmt.Fprintf(out, "%s of limit %s has %d of %d in flight\n", whole(b.Key.String()), descriptors.Printable(b.Name), *b.InFlight, b.Capacity)
		}
		if b.Settle != nil {
			writeSettling(out, b.Settle, whole(b.Key.String()), descriptors.Printable(b.Name), b.Value, b.Scale)
		}
		if b.Then != "" {
			fmt.Fprintf(out, "limit %s pays for requests that limit %s does not allow; get shows its bucket by that name\n",
				descriptors.Printable(b.Then), descriptors.Printable(b.Name))
		}
		if b.BlockedFor > 0 {
			left := time.Duration(b.BlockedFor) * time.Millisecond
			fmt.Fprintf(out, "%s of limit %s is blocked for %v, until %s, %s\n", whole(b.Key.String()), descriptors.Printable(b.Name), left,
				when(time.Now().Add(left)), blockers[b.BlockedBy])
		}
	}
	return nil
}

// duration formats ms milliseconds. Times of 100 days and more become days, rounded up, because a time.Duration
// holds at most 292 years.
func duration(ms int64) string {
	const day, many = 24 * int64(time.Hour/time.Millisecond), 100
	if ms >= many*day {
		return fmt.Sprintf("%d days", (ms-1)/day+1)
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

// The bucket holds value/scale units.
func writeSettling(w io.Writer, s *httpapi.Settling, key, limit string, value, scale int64) {
	if value < 0 {
		fmt.Fprintf(w, "%s of limit %s is in debt by %d units: real costs exceeded the reservations (max_debt: %d)\n",
			key, limit, (-value+scale-1)/scale, s.MaxDebt)
	}
	how := "the configured estimate"
	if s.Learned {
		how = "learned from real costs"
	}
	fmt.Fprintf(w, "limit %s: a request reserves %d units until its real cost is known (%s)\n", limit, s.Estimate, how)
	fmt.Fprintf(w, "limit %s, all keys, this sidecar since its start: %d units reserved, reservations: %d; settled: %d with the real cost, %d without, %d late; %d units in real costs, %d units lost\n",
		limit, s.ReservedUnits, s.Reserved, s.Settled, s.Unknown, s.Late, s.RealUnits, s.LostUnits)
}

var blockers = map[string]string{
	"penalty":    "by its penalty; rlsidecar reset ends that",
	"adjustment": "by an operator's adjustment; rlsidecar adjust list shows it",
}

var errNoBucket = errors.New("no limit has a bucket for this descriptor; rlsidecar explain shows which limits it matches")
