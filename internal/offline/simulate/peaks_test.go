package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// flown is a request from a second on, for some seconds, or without a duration if it is negative.
type flown struct {
	user           string
	from, duration float64
}

func (f flown) trace() string {
	if f.duration < 0 {
		return callBy(f.user, int(f.from), "")
	}
	return callBy(f.user, int(f.from), fmt.Sprintf(`,"settle_after_us":%.0f`, 1e6*f.duration))
}

func (f flown) nginx() string {
	end := f.from + max(0, f.duration)
	line := fmt.Sprintf(`192.0.2.1 - %s [01/Jan/1970:00:%02d:%02d +0000] "GET / HTTP/1.1" 200 5 "-" "curl"`, f.user, int(end)/60, int(end)%60)
	if f.duration < 0 {
		return line
	}
	return line + fmt.Sprintf(" %.3f %.3f", f.duration, end)
}

func (f flown) envoyText() string {
	duration := "-"
	if f.duration >= 0 {
		duration = fmt.Sprintf("%.0f", 1000*f.duration)
	}
	return fmt.Sprintf(`[%s] "GET / HTTP/1.1" 200 - 0 5 %s 1 "-" "%s" "-" "-" "-"`, f.at(), duration, f.user)
}

func (f flown) envoyJSON() string {
	if f.duration < 0 {
		return fmt.Sprintf(`{"start_time":"%s","user_agent":"%s","duration":null}`, f.at(), f.user)
	}
	return fmt.Sprintf(`{"duration":%.0f,"start_time":"%s","user_agent":"%s"}`, 1000*f.duration, f.at(), f.user)
}

func (f flown) at() string {
	return time.UnixMilli(int64(1000 * f.from)).UTC().Format("2006-01-02T15:04:05.000Z")
}

// Each script has requests in the order in which they end, which is the order of an access log.
func TestPeaksInFlight(t *testing.T) {
	for _, test := range []struct {
		name     string
		capacity int
		requests []flown
		peaks    string // in flight, at the second, of the user; for the busiest users
		denied   string // the starts of the denied requests
		note     string // in the report
	}{
		{"one after the other", 1, []flown{{"bob", 0, 2}, {"bob", 2, 2}, {"bob", 4, 1}}, "1 0 bob", "", ""},
		{"at the same time", 2, []flown{{"bob", 1, 1}, {"bob", 2, 2}, {"bob", 0, 9}, {"bob", 3, 7}}, "3 3 bob", "3", ""},
		{"a denied request holds nothing, but counts for the peak", 1, []flown{{"bob", 1, 8}, {"bob", 0, 10}, {"bob", 10, 1}}, "2 1 bob", "1", ""},
		{"each user alone", 1, []flown{{"bob", 1, 1}, {"ann", 1, 2}, {"ann", 2, 2}, {"bob", 0, 9}, {"bob", 3, 9}}, "2 1 bob, 2 2 ann", "1 2 3", ""},
		{"a higher peak later", 3, []flown{{"bob", 0, 1}, {"ann", 0, 4}, {"ann", 2, 4}, {"bob", 5, 5}, {"bob", 6, 6}, {"bob", 7, 6}}, "3 7 bob, 2 2 ann", "", ""},
		{"without a duration", 1, []flown{{"bob", 0, -1}, {"bob", 1, -1}, {"bob", 2, 0}}, "1 0 bob", "", "no end    2 took a slot and have no duration"},
		{"longer than the ttl", 1, []flown{{"bob", 60, 1}, {"bob", 0, 70}}, "2 60 bob", "", "1 requests lasted longer than the ttl."},
	} {
		s := compiled(t, fmt.Sprintf("domain: ai\nlimits: {flights: {algorithm: concurrency, capacity: %d, ttl: 1m}}\ndescriptors: [{key: user, limit: flights}]\n", test.capacity))
		for _, format := range []struct {
			name Format
			user string
			line func(flown) string
		}{{JSONL, "", flown.trace}, {Nginx, "user=%u", flown.nginx}, {Envoy, "user=%{User-Agent}i", flown.envoyText}, {Envoy, "user=%{User-Agent}i", flown.envoyJSON}} {
			templates, err := ParseTemplates(format.name, strings.Fields(format.user))
			if err != nil {
				t.Fatal(err)
			}
			starts := byStartOf(test.requests)
			requests := test.requests
			if format.name == JSONL { // a trace is in the order of its times
				requests = starts
			}
			var input strings.Builder
			for _, f := range requests {
				input.WriteString(format.line(f) + "\n")
			}
			report, decisions := reportOn(t, Config{Snapshot: s, Format: format.name, Templates: templates, Domain: "ai"}, input.String())
			var peaks, denied []string
			_, table, _ := strings.Cut(report, "PEAK  AT")
			for line := range strings.Lines(table) {
				var n int
				var at, user string
				if count, _ := fmt.Sscan(line, &n, &at, &user); count == 3 && strings.HasPrefix(at, "1970") {
					when, _ := time.Parse(time.RFC3339, at)
					peaks = append(peaks, fmt.Sprint(n, when.Unix(), " ", user))
				}
			}
			for i, line := range strings.Split(strings.TrimSpace(decisions), "\n") {
				if strings.HasPrefix(line, `{"ok":false,"retry_after_us":-1,"error":"busy",`) && strings.Contains(line, `"ok":false,"remaining":0,"retry_after_us":-1,"error":"busy"}`) {
					denied = append(denied, fmt.Sprint(starts[i].from))
				} else if !strings.HasPrefix(line, `{"ok":true,"retry_after_us":0,`) {
					t.Errorf("%s, %s: decision %s", test.name, format.name, line)
				}
			}
			if got := strings.Join(peaks, ", "); got != test.peaks || strings.Join(denied, " ") != test.denied || !strings.Contains(report, test.note) {
				t.Errorf("%s, %s: peaks %s and denied %v; want %s, %s and the note %q in\n%s", test.name, format.line(requests[0]), got, denied, test.peaks, test.denied, test.note, report)
			}
		}
	}
}

func byStartOf(requests []flown) []flown {
	sorted := slices.Clone(requests)
	slices.SortStableFunc(sorted, func(x, y flown) int { return cmp.Compare(x.from, y.from) })
	return sorted
}

// A log that does not fit into memory is sorted as far as possible.
func TestLinesAreSortedInBoundedMemory(t *testing.T) {
	var visited []int64
	s := byStart{
		startOf: func(line string) (at algorithms.Micros, err error) {
			_, err = fmt.Sscan(line, &at)
			return at, err
		},
		visit: func(_ string, number int64) error {
			visited = append(visited, number)
			return nil
		},
	}
	long := strings.Repeat(" x", maxHeld/8)
	for i, line := range []string{"5" + long, "unreadable", "4" + long, "6" + long, "2" + long, "1" + long} {
		if err := s.add(line, int64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.release(0); err != nil || !slices.Equal(visited, []int64{5, 6, 3, 1, 2, 4}) || s.bytes != 0 {
		t.Errorf("the lines came in the order %v, with %d bytes left and error %v; want 5 6 3 1 2 4, because three long lines fit", visited, s.bytes, err)
	}
}
