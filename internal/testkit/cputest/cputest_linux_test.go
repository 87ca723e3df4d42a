package cputest

import (
	"testing"
	"time"
)

func TestTimeIsProcessorTime(t *testing.T) {
	if took := Time(func() { time.Sleep(200 * time.Millisecond) }); took > 100*time.Millisecond {
		t.Errorf("a pause of 200 ms took %v of processor time, want at most 100 ms", took)
	}
	start, n := time.Now(), 0
	took := Time(func() {
		for n < 10_000_000 {
			n++
		}
	})
	if took <= 0 || took > time.Since(start) {
		t.Errorf("counting took %v of %v; want more than 0, and no more than the time that passed", took, time.Since(start))
	}
}
