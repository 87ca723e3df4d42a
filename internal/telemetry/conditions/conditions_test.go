package conditions

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestConditionsAreListedWorstFirst(t *testing.T) {
	start := time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC)
	now := start
	r := New(func() time.Time { return now })
	for _, step := range []struct {
		at   time.Duration
		do   func() bool
		want bool
		list string
	}{
		{0, func() bool { return r.Clear("memory-full") }, false, ""},
		{1, func() bool { return r.Set(Condition{Name: "memory-full", Severity: Degraded}) }, true, "memory-full@1"},
		{2, func() bool { return r.Set(Condition{Name: "redis-slow/a", Severity: Degraded}) }, true, "memory-full@1 redis-slow/a@2"},
		{3, func() bool { return r.Set(Condition{Name: "redis-slow/b", Severity: Critical}) }, true, "redis-slow/b@3 memory-full@1 redis-slow/a@2"},
		{4, func() bool { return r.Set(Condition{Name: "redis-slow/a", Severity: Critical}) }, false, "redis-slow/a@2 redis-slow/b@3 memory-full@1"},
		{5, func() bool { return r.Clear("redis-slow/a") }, true, "redis-slow/b@3 memory-full@1"},
		{6, func() bool { return r.Set(Condition{Name: "redis-slow/a", Severity: Warning}) }, true, "redis-slow/b@3 memory-full@1 redis-slow/a@6"},
	} {
		now = start.Add(step.at * time.Second)
		if got := step.do(); got != step.want {
			t.Errorf("at %d: returned %v, want %v", step.at, got, step.want)
		}
		var texts []string
		for _, c := range r.List() {
			texts = append(texts, fmt.Sprintf("%s@%.0f", c.Name, c.Since.Sub(start).Seconds()))
		}
		if got := strings.Join(texts, " "); got != step.list {
			t.Errorf("at %d: %s; want %s", step.at, got, step.list)
		}
	}
}

func TestConditionsAreBounded(t *testing.T) {
	r := New(time.Now)
	for i := range 3 * maxConditions {
		r.Set(Condition{Name: fmt.Sprint("warning/", i), Severity: Warning, Summary: strings.Repeat("ä", maxText)})
	}
	r.Set(Condition{Name: "redis-away", Severity: Critical})
	list := r.List()
	if len(list) != maxConditions || list[0].Name != "redis-away" {
		t.Errorf("%d conditions, the first %q; want %d and redis-away", len(list), list[0].Name, maxConditions)
	}
	if r.Set(Condition{Name: "late", Severity: Warning}) {
		t.Error("a warning replaced another one; want it refused, because there is no room")
	}
	// A condition that is known needs no room.
	if r.Set(Condition{Name: "redis-away", Severity: Critical, Summary: "worse"}) || r.List()[0].Summary != "worse" || len(r.List()) != maxConditions {
		t.Errorf("got %d conditions, the first %+v; want %d, and the one that got worse, which is not new", len(r.List()), r.List()[0], maxConditions)
	}
	if n := len(list[1].Summary); n > maxText+len("…") {
		t.Errorf("a summary has %d bytes; want at most %v", n, maxText+len("…"))
	}
}

func TestAConditionIsClearedByTheNameThatSetIt(t *testing.T) {
	r := New(time.Now)
	name := "redis\n" + strings.Repeat("x", 2*maxName)
	r.Set(Condition{Name: name, Severity: Warning})
	if !r.Clear(name) || len(r.List()) != 0 {
		t.Errorf("got %d conditions; want none", len(r.List()))
	}
}

func TestTextsAreCutBetweenCharacters(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		"12345678":                "12345678",
		"123456789":               "12345678…",
		"1234567ä":                "1234567…",
		"123456äö":                "123456ä…",
		"1234€6789":               "1234€6…",
		"12345€789":               "12345€…",
		"123456€89":               "123456…",
		"\x80\x80\x80":            "   ",
		"a b\x1fc\x7fd~":          "a b c d~",
		"a\u0080b\u009fc":         "a b c",
		"a\u00a0b":                "a\u00a0b",
		"a\u2028b":                "a b",
		"a\u2029b":                "a b",
		strings.Repeat("\x80", 9): "…",
	} {
		if got := printable(text, 8); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
