package redis

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func TestTheFormsOfAURL(t *testing.T) {
	for text, want := range map[string]location{
		"redis://h":                      {network: "tcp", addr: "h:6379", hosts: []string{"h:6379"}},
		"rediss://u:p@[::1]/7":           {tls: true, network: "tcp", addr: "[::1]:6379", hosts: []string{"[::1]:6379"}, username: "u", password: "p", db: 7},
		"redis://u:a@b@h:1?db=2":         {network: "tcp", addr: "h:1", hosts: []string{"h:1"}, username: "u", password: "a@b", db: 2},
		"redis://h:65535":                {network: "tcp", addr: "h:65535", hosts: []string{"h:65535"}},
		"unix:///run/s?db=3":             {network: "unix", addr: "/run/s", hosts: []string{"/run/s"}, db: 3},
		"redis+cluster://h1, h2:7":       {form: "cluster", network: "tcp", hosts: []string{"h1:6379", "h2:7"}},
		"redis+sentinel://h1,[::1]/main": {form: "sentinel", network: "tcp", hosts: []string{"h1:26379", "[::1]:26379"}, master: "main"},
		"redis+sentinel://h/m?sentinel_username=u&sentinel_password=p": {
			form: "sentinel", network: "tcp", hosts: []string{"h:26379"}, master: "m", sentinelUsername: "u", sentinelPassword: "p",
		},
	} {
		got, err := parse(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"redis://h/0#f":          "cannot be read",
		"redis://h1,h2":          "names several hosts",
		"redis://h:65536":        "a host is written",
		"redis://h/07":           "the database is not a number",
		"redis://h/-1":           "the database is not a number",
		"redis://h#f":            "a host is written",
		"redis+cluster://h?db=1": "one database only",
		"redis+cluster://h/1":    "one database only",
		"redis+sentinel://h":     "names no master",
		"redis+sentinel://h/a/b": "names no master",
		"redis+sentinel://h/a@b": "names no master",
		"unix://h/run/s":         "a socket is written",
		"unix://":                "a socket is written",
		"unix+cluster:///run/s":  "the scheme is not known",
		"redis://h?user=x":       "unknown parameter",
		"redis:h":                "has no scheme",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v; want an error with %q", text, err, want)
		}
	}
}

func TestAStoredAnswerBelongsToOneRequest(t *testing.T) {
	once := &backend.IdempotencyKey{ID: [16]byte{1}}
	once.Digest[0] = 5
	other := *once
	other.Digest[0] = 6
	charged := []backend.Decision{
		{Decision: algorithms.Decision{Allowed: true, Remaining: 3, Value: 3}, At: 10},
		{Decision: algorithms.Decision{RetryAfter: 7, Remaining: 2, Value: 2}, At: 20},
	}
	stored := string(answerOf(once, charged))
	again := make([]backend.Decision, 2)
	answerFromStored(stored, once, again)
	for i, d := range again {
		want := charged[i]
		want.Replayed = true
		if d.Decision != want.Decision || d.At != want.At || !d.Replayed || d.Err != nil {
			t.Errorf("charge %d got %+v, want %+v", i, d, want)
		}
	}
	claim := string(claimed) + stored[1:1+len(once.Digest)] + strings.Repeat("x", 16)
	for name, test := range map[string]struct {
		stored  string
		once    *backend.IdempotencyKey
		charges int
		want    error
	}{
		"another request":      {stored, &other, 2, backend.ErrReused},
		"fewer charges":        {stored, once, 1, backend.ErrReused},
		"more charges":         {stored, once, 3, backend.ErrReused},
		"a claim":              {claim, once, 2, backend.ErrPending},
		"another's claim":      {claim, &other, 2, backend.ErrReused},
		"a damaged value":      {"x", once, 2, backend.ErrReused},
		"a value without text": {"", once, 2, backend.ErrReused},
	} {
		d := make([]backend.Decision, test.charges)
		answerFromStored(test.stored, test.once, d)
		for i := range d {
			if !errors.Is(d[i].Err, test.want) {
				t.Errorf("%s: charge %d got %+v, want %v", name, i, d[i], test.want)
			}
		}
	}
}

// The times of a decision by a calendar are numbers of windows. After the calendar was removed, their lengths are
// unknown, and the times become 0. A blocked bucket has no earlier retry time than the end of its block.
func TestTimesOfACalendarThatIsGone(t *testing.T) {
	d := algorithms.Decision{RetryAfter: 1, ResetAfter: 1, Wait: 1, Blocked: 9}
	fromWindows(nil, 0, &d)
	if d.RetryAfter != 9 || d.ResetAfter != 0 || d.Wait != 0 {
		t.Errorf("got %+v; want 0, and the retry time of the block", d)
	}
}
