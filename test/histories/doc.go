// Package histories checks the answers of several sidecars together. Clients send charges, refunds, groups and dry runs
// to real sidecars on real Redis servers, while the servers and the sidecars are paused, killed and failed over. Each
// request and its answer is logged. Porcupine then decides for each bucket whether the answers are linearizable: whether
// there is one order of the requests, each at a moment between its start and its answer, in which package algorithms
// gives exactly these answers.
//
// For concurrency limits, proxies and applications take, renew and return slots meanwhile. The test compares the times
// for which they held their slots with the capacity.
//
// make histories runs this for longer, and on Sentinel and Cluster too.
package histories
