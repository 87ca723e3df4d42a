package algorithms

import "testing"

func TestRetryTimesOfSeveralBuckets(t *testing.T) {
	never := Retry{Never: true}
	for _, c := range []struct{ a, b, both, either Retry }{
		{Retry{After: 3}, Retry{After: 5}, Retry{After: 5}, Retry{After: 3}},
		{Retry{After: 5}, Retry{After: 3}, Retry{After: 5}, Retry{After: 3}},
		{Retry{}, Retry{After: 3}, Retry{After: 3}, Retry{}},
		{never, Retry{After: 3}, never, Retry{After: 3}},
		{Retry{After: 3}, never, never, Retry{After: 3}},
		{never, never, never, never},
	} {
		if both, either := c.a.Both(c.b), c.a.Either(c.b); both != c.both || either != c.either {
			t.Errorf("%+v and %+v: both after %+v, either after %+v; want %+v and %+v", c.a, c.b, both, either, c.both, c.either)
		}
	}
}
