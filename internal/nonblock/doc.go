// Package nonblock reads and writes sockets without the scheduler's bookkeeping for system calls.
//
// Package net notifies Go's scheduler of each system call, because a call might block while another goroutine could
// use the processor. Calls on non-blocking sockets never block; the poller does the waiting. The notification itself
// is cheap, but it wakes the runtime's monitor thread, which sleeps when the process is idle. A process that is idle
// between requests pays for this with two or three thread switches per request. Without the notification, a request
// over Redis costs a third less (docs/performance.md).
//
// For the same reason a Pool runs short functions on goroutines that it keeps, and wakes these through the poller.
//
// The disadvantage is that the monitor also preempts goroutines that run for long. While it sleeps, no goroutine is
// preempted until the next timer or the next notified system call. Therefore a connection accepted by Listener
// yields after it has read a certain amount without waiting.
package nonblock
