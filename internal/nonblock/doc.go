// Package nonblock reads and writes sockets without announcing the system calls to the scheduler.
//
// Package net announces each system call to Go's scheduler, because a call might block while another
// goroutine could use the processor. Calls on non-blocking sockets never block; the poller does the
// waiting. The announcement itself is cheap, but it wakes the runtime's monitor thread, which sleeps when
// the process is idle. A process that is idle between requests pays for this with two or three thread
// switches per request. For a Redis Cluster, one announcement less per call saved an eighth of the processor time
// (docs/performance.md).
//
// For the same reason, a Pool runs short functions on goroutines that it keeps, and wakes these through the
// poller.
//
// The disadvantage is that the monitor thread also preempts goroutines that run for a long time. While it
// sleeps, no goroutine is preempted until the next timer or the next announced system call. Therefore a
// connection accepted by Listener yields after it has read a certain amount without waiting.
package nonblock
