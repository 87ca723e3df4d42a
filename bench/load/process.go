package load

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the processor time that a process has used in all its threads, in user and system mode. It
// equals utime + stime of /proc/PID/stat, but in nanoseconds, while that file has steps of 10 ms.
func CPU(pid int) (time.Duration, error) {
	const schedulerClock = 2 // CPUCLOCK_SCHED; clock_getcpuclockid(3) describes how the clock's number is computed
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulerClock), &t); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Memory returns the resident memory of a process in bytes: the current value and the peak.
func Memory(pid int) (now, peak int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		switch f := strings.Fields(line); f[0] {
		case "VmRSS:":
			now, err = strconv.ParseInt(f[1], 10, 64)
		case "VmHWM:":
			peak, err = strconv.ParseInt(f[1], 10, 64)
		}
		if err != nil {
			return 0, 0, fmt.Errorf("%q: %w", line, err)
		}
	}
	return now << 10, peak << 10, nil
}
