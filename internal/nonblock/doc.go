// Package nonblock reads and writes sockets without telling the scheduler.
//
// Around each system call of package net Go's scheduler is told, for the call might wait, and its
// processor could do something else meanwhile. Calls on these sockets never wait, for they are not blocking;
// the waiting is the poller's. To be told costs little, but it wakes the runtime's monitor, a
// thread that sleeps whenever nothing is to be done: in a process that waits between any two requests that is
// two or three switches of threads for each. Without, a request that is answered over Redis cost a third less
// (docs/performance.md).
//
// For the same reason a Crew starts no goroutine for a short function, and wakes none but through the poller.
//
// What it costs: the monitor also interrupts goroutines that compute for long. While it sleeps nobody does, until the
// next timer, or the next system call that is told of. So a connection that Listener has accepted lets others go
// first whenever it has read its share without having to wait.
package nonblock
