package main

import "testing"

func TestTimesUntilABucketIsFull(t *testing.T) {
	for ms, want := range map[int64]string{
		0: "0s", 90_500: "1m30.5s", 99 * 86_400_000: "2376h0m0s", 100 * 86_400_000: "100 days", 28_382_399_999_855: "328500 days",
	} {
		if got := duration(ms); got != want {
			t.Errorf("%d ms: %s, want %s", ms, got, want)
		}
	}
}
