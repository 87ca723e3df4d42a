package stores

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDeadlinesAgreeWithASimpleList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d deadlines
		var list, ended []*attempt
		now := time.Unix(0, 0)
		tickAt := time.Time{} // the time for which the timer is set
		set := func(at time.Time) {
			if !at.IsZero() {
				tickAt = at
			}
		}
		later := func(what string) time.Duration {
			return time.Duration(rapid.IntRange(0, 20).Draw(t, what)) * time.Millisecond
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch {
			case rapid.Bool().Draw(t, "an attempt begins"):
				one := &attempt{until: now.Add(later("left")), at: notQueued}
				list = append(list, one)
				set(d.add(one))
			case len(list) > 0 && rapid.Bool().Draw(t, "one ends"):
				i := rapid.IntRange(0, len(list)-1).Draw(t, "which")
				d.remove(list[i])
				d.remove(list[i]) // a second removal has no effect
				ended = append(ended, list[i])
				list = slices.Delete(list, i, i+1)
			default:
				now = now.Add(later("passed"))
				if tickAt.IsZero() || now.Before(tickAt) {
					break
				}
				tickAt = time.Time{}
				late, next := d.tick(now)
				set(next)
				if n := len(list) - len(late); n != len(slices.DeleteFunc(slices.Clone(list), func(one *attempt) bool { return !one.until.After(now) })) {
					t.Fatalf("tick returned %d of %d attempts, and not all whose deadline has passed", len(late), len(list))
				}
				for i, one := range late {
					at := slices.Index(list, one)
					if at < 0 || one.until.After(now) || i > 0 && one.until.Before(late[i-1].until) {
						t.Fatalf("tick returned attempt %d of %d, which had ended, has time left, or is out of order", i, len(late))
					}
					list = slices.Delete(list, at, at+1)
				}
			}
			for _, one := range list {
				if tickAt.IsZero() || one.until.Before(tickAt) {
					t.Fatalf("an attempt has the deadline %v, and the next tick is at %v; want the tick no later", one.until, tickAt)
				}
			}
			if len(d.queue) != len(list) || slices.ContainsFunc(ended, func(one *attempt) bool { return one.at != notQueued }) {
				t.Fatalf("%d are queued, want %d, and none that has ended", len(d.queue), len(list))
			}
		}
	})
}
