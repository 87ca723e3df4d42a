package simulate

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rlsidecar/rlsidecar/internal/offline/advise"
)

// forms has a configured limit of each kind. stays has the settings that a suggestion does not contain, because they
// stay as they are configured.
var forms = []struct{ name, limit, stays string }{
	{"token bucket", "algorithm: token_bucket, rate: 3, period: 1m, capacity: 5", ""},
	{"token bucket with a penalty", "algorithm: token_bucket, rate: 3, period: 1m", "penalty: {after: 2, for: 30s, max: 5m}"},
	{"token bucket that starts empty", "algorithm: token_bucket, rate: 3, period: 1m, initial: 0", ""},
	{"fixed window", "algorithm: fixed_window, rate: 3, period: 10s", ""},
	{"fixed window that saves", "algorithm: fixed_window, rate: 3, period: 10s, capacity: 5", ""},
	{"fixed window of the calendar", "algorithm: fixed_window, rate: 3, period: day, time_zone: Europe/Berlin", ""},
	{"sliding window", "algorithm: sliding_window, rate: 3, period: 30s", ""},
	{"sliding log", "algorithm: sliding_log, rate: 3, period: 30s", ""},
	{"leaky bucket", "algorithm: leaky_bucket, rate: 3, period: 10s, capacity: 2", "max_delay: 2s"},
	{"guaranteed minimum", "algorithm: token_bucket, rate: 3, period: 1m, capacity: 2, guaranteed: {rate: 1, period: 10s}", ""},
	{"reference", "unit: minute, requests_per_unit: 3", ""},
}

func perAddress(limit string) string {
	return "{domain: edge, descriptors: [{key: remote_address, rate_limit: " + limit + "}]}"
}

// replayed replays a log of NGINX, in which each client is also a user.
func replayed(t *rapid.T, limits, log string, share float64) *Report {
	templates, err := ParseTemplates(Nginx, []string{"remote_address=%h", "user=%h"})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Config{
		Snapshot: compiled(t, limits), Name: "log", Input: strings.NewReader(log), Format: Nginx, Templates: templates, Domain: "edge", Share: share,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The suggested limit must deny requests of exactly the announced number of clients, and of no larger share than
// requested.
func TestSuggestionHoldsWhenItIsConfigured(t *testing.T) {
	for _, form := range forms {
		t.Run(form.name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				log, share := drawLog(rt), rapid.SampledFrom([]float64{0, 0.01, 0.1, 0.25, 0.5}).Draw(rt, "share")
				stays := ""
				if form.stays != "" {
					stays = ", " + form.stays
				}
				first := replayed(rt, perAddress("{"+form.limit+stays+"}"), log, share).advised()[0]
				if first.Suggested == nil {
					rt.Fatal("got no suggestion, want one")
				}
				limit := strings.TrimSuffix(first.Of(first.Suggested.N), "}") + stays + "}"
				if strings.Contains(form.limit, "initial") && !strings.Contains(limit, "initial") {
					rt.Fatalf("%s would keep the configured initial, with which it denies more", limit)
				}
				then := replayed(rt, perAddress(limit), log, share)
				a := then.advised()[0]
				if got := (advise.Outcome{Clients: a.Denied, Requests: then.Denied}); got != first.Suggested.Outcome {
					rt.Fatalf("%s denies %+v, want %+v, as announced", limit, got, first.Suggested.Outcome)
				}
				if float64(a.Denied) > share*float64(a.Clients)+1e-6 {
					rt.Fatalf("%s denies %d of %d clients, want at most %v", limit, a.Denied, a.Clients, share)
				}
				if a.Configured != first.Suggested.Outcome {
					rt.Fatalf("the advice for %s states that it denies %+v, want %+v", limit, a.Configured, first.Suggested.Outcome)
				}
			})
		})
	}
}

func drawLog(t *rapid.T) string {
	var log strings.Builder
	second, clients := 0, rapid.IntRange(1, 12).Draw(t, "clients")
	abused := rapid.Bool().Draw(t, "abused")
	for range rapid.IntRange(1, 80).Draw(t, "requests") {
		second += rapid.OneOf(rapid.IntRange(0, 2), rapid.IntRange(0, 40)).Draw(t, "pause")
		client := rapid.IntRange(1, clients).Draw(t, "client")
		if abused && rapid.Bool().Draw(t, "by the abuser") {
			client = 0
		}
		fmt.Fprintf(&log, `192.0.2.%d - - [01/Jan/2026:%02d:%02d:%02d +0000] "GET / HTTP/1.1" 200 1`+"\n", client, second/3600, second/60%60, second%60)
	}
	return log.String()
}
