package httpapi

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/config"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/reservation"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend/memory"
	"github.com/rlsidecar/rlsidecar/pkg/backend/storetest"
)

// The test runs the commands of the examples' READMEs, and compares the answers with the lines below the commands.
func TestTheExamplesAnswerAsDocumented(t *testing.T) {
	for _, name := range []string{"http-api", "convex"} {
		t.Run(name, func(t *testing.T) {
			folder := "../../examples/" + name + "/"
			snapshot, problems := config.Load([]string{folder + "limits.yaml"}, config.Options{})
			if problems.Bad() {
				t.Fatal(problems)
			}
			text, err := os.ReadFile(folder + "README.md")
			if err != nil {
				t.Fatal(err)
			}
			c := newConsole(t, snapshot)
			lines := strings.Split(string(text), "\n")
			for i, line := range lines {
				if command, ok := strings.CutPrefix(line, "$ "); ok && !strings.HasPrefix(command, "rlsidecar serve") {
					c.run(command, lines[i+1])
				}
			}
			for limit := range snapshot.Domains["app"].Named {
				if !strings.Contains(c.log, `"`+limit+`"`) {
					t.Errorf("limit %s is not used", limit)
				}
			}
		})
	}
}

// console runs the commands of a README on a server of its own. Only the command sleep advances the clock of this
// server.
type console struct {
	t     *testing.T
	clock storetest.Clock
	send  func(method, path, body string) string
	ids   []string // ids of reservations, which examples call R1, R2, …
	log   string
}

func newConsole(t *testing.T, snapshot *limiter.Snapshot) *console {
	t.Helper()
	c := &console{t: t}
	c.clock.Set(storetest.Start)
	keys := reservation.NewKeys(func() []string { return []string{"secret"} })
	l := limiter.New(memory.New(memory.Config{Clock: c.clock.Time}), limiter.Config{IDs: keys, Now: c.clock.Now})
	l.Swap(snapshot)
	h := New(Config{API: &API{Limiter: l, Inline: config.Inline}})
	c.send = func(method, path, body string) string { return call(h, method, path, body).Body.String() }
	return c
}

var (
	sleeps = regexp.MustCompile(`^sleep ([0-9.]+)$`)
	posts  = regexp.MustCompile(`^curl -s 127\.0\.0\.1:8080(\S+) -d '(.*)'$`)
	gets   = regexp.MustCompile(`^curl -s '127\.0\.0\.1:8080(\S+)'$`)
	ids    = regexp.MustCompile(`"reservation":"([^"]*)"`)
)

func (c *console) run(command, want string) {
	c.t.Helper()
	got := ""
	if m := sleeps.FindStringSubmatch(command); m != nil {
		seconds, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			c.t.Fatal(err)
		}
		c.clock.Set(c.clock.Now() + algorithms.Micros(seconds*1e6))
		return
	} else if m := posts.FindStringSubmatch(command); m != nil {
		got = c.send("POST", m[1], c.namesToIDs(m[2]))
	} else if m := gets.FindStringSubmatch(command); m != nil {
		got = c.send("GET", m[1], "")
	} else {
		c.t.Errorf("unknown command: %s", command)
		return
	}
	c.log += command
	if got = c.idsToNames(got); got != want {
		c.t.Errorf("%s\n got %s\nwant %s", command, got, want)
	}
}

func (c *console) namesToIDs(body string) string {
	for i, id := range c.ids {
		body = strings.ReplaceAll(body, fmt.Sprintf(`"R%d"`, i+1), `"`+id+`"`)
	}
	return body
}

func (c *console) idsToNames(answer string) string {
	for _, found := range ids.FindAllStringSubmatch(answer, -1) {
		if !slices.Contains(c.ids, found[1]) {
			c.ids = append(c.ids, found[1])
		}
		answer = strings.ReplaceAll(answer, found[1], fmt.Sprintf("R%d", slices.Index(c.ids, found[1])+1))
	}
	return answer
}
