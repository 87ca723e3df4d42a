package load

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the processor time that a process has used, user and system, in all its threads. It is
// utime + stime of /proc/PID/stat, but in nanoseconds, where that counts in steps of 10 ms.
func CPU(pid int) (time.Duration, error) {
	const schedulerClock = 2 // CPUCLOCK_SCHED; how the number is made: clock_getcpuclockid(3)
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulerClock), &t); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Memory is how many bytes of a process are resident now, and were at the most.
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
