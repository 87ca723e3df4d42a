package httpapi

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// TestTheExamplesAnswerWhatTheySay runs what examples/http-api shows, on a clock that stands still.
func TestTheExamplesAnswerWhatTheySay(t *testing.T) {
	const folder = "../../examples/http-api/"
	snapshot, problems := config.Load([]string{folder + "limits.yaml"}, config.Options{})
	if problems.Bad() {
		t.Fatal(problems)
	}
	text, err := os.ReadFile(folder + "README.md")
	if err != nil {
		t.Fatal(err)
	}
	l := limiter.New(memory.New(memory.Config{Clock: func() algorithms.Micros { return storetest.Start }}), nil)
	l.Swap(snapshot)
	h := New(Config{API: &API{Limiter: l, Now: func() time.Time { return time.UnixMicro(int64(storetest.Start)) }}})
	used := map[string]bool{}
	var ids []string // of reservations; the text calls them R1, R2, …
	shown := regexp.MustCompile(`(?m)^\$ curl -s 127\.0\.0\.1:8080(\S+) -d '(.*)'\n(.*)$`).FindAllStringSubmatch(string(text), -1)
	if n := strings.Count(string(text), "\n$ "); n != len(shown) {
		t.Errorf("%d commands, %d of them understood", n, len(shown))
	}
	for _, s := range shown {
		body := s[2]
		for i, id := range ids {
			body = strings.ReplaceAll(body, fmt.Sprintf(`"R%d"`, i+1), `"`+id+`"`)
		}
		got := call(h, "POST", s[1], body).Body.String()
		for _, found := range regexp.MustCompile(`"reservation":"([^"]*)"`).FindAllStringSubmatch(got, -1) {
			if !slices.Contains(ids, found[1]) {
				ids = append(ids, found[1])
			}
			got = strings.ReplaceAll(got, found[1], fmt.Sprintf("R%d", slices.Index(ids, found[1])+1))
		}
		if got != s[3] {
			t.Errorf("%s %s\n got %s\nsays %s", s[1], s[2], got, s[3])
		}
		for name := range snapshot.Domains["app"].Named {
			used[name] = used[name] || strings.Contains(s[2], `"`+name+`"`)
		}
	}
	for name, is := range used {
		if !is {
			t.Errorf("limit %s is not used", name)
		}
	}
}
