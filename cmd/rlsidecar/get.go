package main

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/httpapi"
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
	err = c.send(a, http.MethodGet, "/api/buckets?"+query.Encode(), nil, &answer, bucketsText)
	if err == nil && len(answer.Buckets) == 0 {
		return exitError{exitNo, errNoBucket}
	}
	return err
}

const bucketsText = `{{if .Buckets}}
DOMAIN | LIMIT | KEY | REMAINING | OF | NEXT IN | FULL IN
{{end}}
{{range .Buckets}}
{{safe .Domain}} | {{safe .Name}} | {{.Key}} | {{.Remaining}} | {{.Capacity}} | {{nextIn .}} | {{fullIn .}}
{{end}}
{{range $b := .Buckets}}
{{with .InFlight}}
{{bucket $b.Key}} of limit {{safe $b.Name}} has {{.}} of {{$b.Capacity}} in flight
{{end}}
{{with .Settle}}
{{if lt $b.Value 0}}
{{bucket $b.Key}} of limit {{safe $b.Name}} is in debt by {{debt $b}} units: real costs exceeded the reservations (max_debt: {{.MaxDebt}})
{{end}}
limit {{safe $b.Name}}: a request reserves {{.Estimate}} units until its real cost is known ({{if .Learned}}learned from real costs{{else}}the configured estimate{{end}})
limit {{safe $b.Name}}, all keys, this sidecar since its start: {{.ReservedUnits}} units reserved, reservations: {{.Reserved}}; ` +
	`settled: {{.Settled}} with the real cost, {{.Unknown}} without, {{.Late}} late; {{.RealUnits}} units in real costs, {{.LostUnits}} units lost
{{end}}
{{with .Then}}
limit {{safe .}} pays for requests that limit {{safe $b.Name}} does not allow; get shows its bucket by that name
{{end}}
{{if .BlockedFor}}
{{bucket .Key}} of limit {{safe .Name}} is blocked for {{blockedFor .}}
{{end}}
{{end}}
`

func nextIn(b httpapi.OperatorBucket) string {
	switch {
	case b.InFlight != nil && *b.InFlight > 0 && b.Remaining == 0:
		return "unknown" // nobody knows when requests end
	case b.Capacity == 0:
		return "never"
	case b.RetryAfter == 0:
		return "now"
	}
	return duration(b.RetryAfter)
}

func fullIn(b httpapi.OperatorBucket) string {
	if b.InFlight != nil && *b.InFlight > 0 {
		return "unknown"
	}
	return duration(max(b.ResetAfter, b.BlockedFor)) // a blocked key is not full before the block ends
}

func debt(b httpapi.OperatorBucket) int64 { return (-b.Value + b.Scale - 1) / b.Scale }

func blockedFor(b httpapi.OperatorBucket) string {
	left := time.Duration(b.BlockedFor) * time.Millisecond
	return fmt.Sprintf("%v, until %s, %s", left, when(time.Now().Add(left)), blockers[b.BlockedBy])
}

var blockers = map[string]string{
	"penalty":    "by its penalty; rlsidecar reset ends that",
	"adjustment": "by an operator's adjustment; rlsidecar adjust list shows it",
}

func whole(key fmt.Stringer) string {
	if key := key.String(); key != "" {
		return "the bucket of " + key
	}
	return "the bucket"
}

var errNoBucket = errors.New("no limit has a bucket for this descriptor; rlsidecar explain shows which limits it matches")
