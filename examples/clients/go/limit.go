// Command limit consumes one unit of a limit: go run limit.go URL WAIT NAME [KEY…]. WAIT is the longest time to repeat
// the request, in seconds. The token is in RLSIDECAR_API_TOKEN.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

type request struct {
	Name  string   `json:"name"`
	Key   []string `json:"key"`
	Count int64    `json:"count"`
	// ID is the idempotency key: the sidecar charges all repetitions with one ID once.
	ID string `json:"request_id"`
}

type decision struct {
	OK           bool  `json:"ok"`
	RetryAfterMS int64 `json:"retry_after_ms"`
	Limits       []struct {
		Remaining int64 `json:"remaining"`
	} `json:"limits"`
}

// limit returns the decision. Until deadline, it repeats the request if the answer was lost or has a Retry-After header.
func limit(ctx context.Context, url string, r request, deadline time.Time) (decision, error) {
	r.ID = rand.Text()
	for {
		d, retry, err := attempt(ctx, url, r)
		if err == nil && d.OK || time.Now().Add(retry).After(deadline) {
			return d, err
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return decision{}, ctx.Err()
		}
	}
}

// never is a time to retry that no deadline allows.
const never = 100 * 365 * 24 * time.Hour

// attempt sends the request once. retry is the time after which a repetition can have another answer, or never.
func attempt(ctx context.Context, url string, r request) (d decision, retry time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	body, err := json.Marshal(r)
	if err != nil {
		return d, never, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/limit", bytes.NewReader(body))
	if err != nil {
		return d, never, err
	}
	q.Header.Set("Authorization", "Bearer "+os.Getenv("RLSIDECAR_API_TOKEN"))
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return d, 200 * time.Millisecond, err
	}
	defer answer.Body.Close()
	retry = never
	if seconds, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil { // 429, 503, and 409 while a repetition is in flight
		retry = time.Duration(seconds) * time.Second
	}
	switch answer.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusTooManyRequests:
		return d, retry, json.NewDecoder(answer.Body).Decode(&d)
	default:
		return d, retry, fmt.Errorf("the sidecar answers %s", answer.Status)
	}
}

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: limit URL WAIT NAME [KEY…]")
	}
	wait, err := strconv.ParseFloat(os.Args[2], 64)
	if err != nil {
		log.Fatal(err)
	}
	deadline := time.Now().Add(time.Duration(wait * float64(time.Second)))
	d, err := limit(context.Background(), os.Args[1], request{Name: os.Args[3], Key: os.Args[4:], Count: 1}, deadline)
	switch {
	case err != nil:
		log.Fatal(err)
	case d.OK:
		fmt.Println("allowed,", d.Limits[0].Remaining, "left")
	default:
		fmt.Println("denied, retry after", d.RetryAfterMS, "ms")
	}
}
