package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/server"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// greeting returns the state of the sidecar and the addresses of its listeners. json states whether the HTTP
// listener serves /json. If it does and the sidecar is ready, greeting adds a curl command for a descriptor
// that matches a limit, if example finds one.
func greeting(r server.Running, json bool) string {
	var b strings.Builder
	state := "ready"
	switch {
	case r.Snapshot == nil:
		state = "up, and waits for its first configuration"
	case r.NotReady != "":
		state = "up, and NOT READY:\n  " + strings.ReplaceAll(strings.TrimSpace(r.NotReady), "\n", "\n  ")
	}
	fmt.Fprintf(&b, "\nrlsidecar is %s\n  gRPC   %s\n", state, r.GRPC)
	if r.HTTP != nil {
		fmt.Fprintf(&b, "  HTTP   %s\n", urlOf(r.HTTP))
	}
	if r.Admin != nil {
		fmt.Fprintf(&b, "  admin  %s\n", urlOf(r.Admin))
	}
	if r.HTTP == nil || r.Snapshot == nil || r.NotReady != "" || !json {
		return b.String() + "\n"
	}
	domain, entries, ok := example(r.Snapshot)
	if !ok {
		return b.String() + "\n"
	}
	fmt.Fprintf(&b, "\nTry, a few times:\n  %s -d %s\n\n", curl(r.HTTP), quote(requestBody(domain, entries)))
	return b.String()
}

// urlOf returns the URL of the listener at the address a: an http URL for a browser or curl, or unix:// with the name of
// the socket.
func urlOf(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	switch {
	case !ok:
		return "unix://" + a.String()
	case tcp.IP.IsUnspecified():
		return fmt.Sprintf("http://127.0.0.1:%d", tcp.Port)
	default:
		return "http://" + a.String()
	}
}

// curl returns a curl command for /json of the listener at the address a, without the body of the request.
func curl(a net.Addr) string {
	path, isUnix := strings.CutPrefix(urlOf(a), "unix://")
	name, isAbstract := strings.CutPrefix(path, "@")
	switch {
	case isUnix && isAbstract:
		return "curl -s --abstract-unix-socket " + quote(name) + " http://localhost/json"
	case isUnix:
		return "curl -s --unix-socket " + quote(path) + " http://localhost/json"
	default:
		return "curl -s " + path + "/json"
	}
}

func requestBody(domain string, entries []descriptors.Entry) string {
	var list []map[string]string
	for _, e := range entries {
		list = append(list, map[string]string{"key": e.Key, "value": e.Value})
	}
	text, _ := json.Marshal(list) // cannot fail, and neither can the next call, because all values are strings
	name, _ := json.Marshal(domain)
	return fmt.Sprintf(`{"domain":%s,"descriptors":[{"entries":%s}]}`, name, text)
}

// quote quotes s as one word of a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func example(s *limiter.Snapshot) (domain string, entries []descriptors.Entry, ok bool) {
	for _, name := range slices.Sorted(maps.Keys(s.Domains)) {
		tree := s.Domains[name].Tree
		// The explanation of an empty descriptor lists the descriptors that would match limits.
		miss := tree.Explain(nil, limiter.HasLimits).Miss
		if miss == nil {
			continue
		}
		for _, pattern := range miss.Near {
			entries := filled(pattern)
			if node := tree.Match(entries); node != nil && len(node.Found.Policies) > 0 {
				return name, entries, true
			}
		}
	}
	return "", nil, false
}

// filled returns a descriptor that matches pattern, which has the form key=value,key…. It uses "demo" for a
// value that pattern does not state, and in place of "*".
func filled(pattern string) (entries []descriptors.Entry) {
	for part := range strings.SplitSeq(strings.ReplaceAll(pattern, "*", "demo"), ",") {
		key, value, given := strings.Cut(part, "=")
		if !given {
			value = "demo"
		}
		entries = append(entries, descriptors.Entry{Key: key, Value: value})
	}
	return entries
}
