// Package listen has what the listeners share below their protocols: sockets, bounds on their connections, the processor
// time of TLS handshakes, the PROXY protocol, and a server of HTTP whose headers are bounded and whose end loses no
// request. At the bound of connections, health checks are still answered.
package listen
