package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/backend"
)

func TestTLSWithClientCertificateAndUser(t *testing.T) {
	t.Parallel()
	ca, dir := certtest.New(t), t.TempDir()
	ca.Secret(t, dir, 2, "redis")
	file := func(name string) string { return filepath.Join(dir, name) }
	port := redistest.FreePort(t)
	server := redistest.Start(t, "--tls-port", fmt.Sprint(port), "--tls-auth-clients", "yes",
		"--tls-ca-cert-file", file("ca.crt"), "--tls-cert-file", file("tls.crt"), "--tls-key-file", file("tls.key"))
	server.Do("ACL", "SETUSER", "rl", "on", ">secret", "~rl:*", "-@all",
		"+evalsha", "+eval", "+mget", "+get", "+psetex", "+llen", "+lindex", "+rpush", "+lpush", "+lset", "+lpop", "+ltrim",
		"+zadd", "+zrem", "+zrange", "+zrangebyscore", "+zremrangebyscore", "+zscore", "+del", "+pexpire", "+time", "+ping", "+info", "+hello")
	pair, err := tls.X509KeyPair(ca.Issue(t, 3))
	if err != nil {
		t.Fatal(err)
	}
	roots, password := ca.Pool(), file("password")
	if err := os.WriteFile(password, []byte("rl:secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := Config{
		URL: fmt.Sprintf("rediss://127.0.0.1:%d", port), Timeout: 5 * time.Second, PasswordFile: password,
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}},
	}
	s := open(t, config)
	take := func(s *Store, spec algorithms.Spec) backend.Decision {
		return takeAll(s, []backend.Charge{{Key: []byte{byte(spec.Kind)}, Limit: compiled(t, spec), Terms: algorithms.Charge{Cost: 1}}})[0]
	}
	for kind := algorithms.TokenBucket; kind <= algorithms.LeakyBucket; kind++ {
		if d := take(s, algorithms.Spec{Kind: kind, Rate: 5, Period: algorithms.Second}); d.Err != nil || !d.Allowed {
			t.Errorf("%s: got %+v; want no error and allowed", kind, d)
		}
	}
	for _, f := range s.Examine(t.Context(), 0) {
		if f.Severity != Fine && f.Check != "adjustments" { // adjustments need permissions of their own
			t.Errorf("got %+v; want all checks except %q to be fine", f, "adjustments")
		}
	}
	for range 5 { // a connection that the server has closed must not be used, even if it has unread TLS records
		before := s.client.PoolStats().Hits
		closeUsed(server)
		if d := take(s, algorithms.Spec{Kind: algorithms.TokenBucket, Rate: 1000, Period: algorithms.Second}); d.Err != nil {
			t.Errorf("after the server has closed all connections: %+v; want no error", d)
		}
		if s.client.PoolStats().Hits != before {
			t.Error("a call that charges used the pool of go-redis")
		}
	}
	config.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	anonymous := away(t, config)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := anonymous.Ping(ctx); err == nil {
		t.Error("a client without a certificate was accepted; want an error")
	}
}

// closeUsed makes the server close the connections on which it has received a charge or a PING. Connections
// that still log in stay open, because closing one would count as a failed dial.
func closeUsed(server *redistest.Server) {
	for line := range strings.Lines(server.Do("CLIENT", "LIST")) {
		values := map[string]string{}
		for _, field := range strings.Fields(line) {
			name, value, _ := strings.Cut(field, "=")
			values[name] = value
		}
		switch values["cmd"] {
		case "evalsha", "eval", "ping":
			server.Do("CLIENT", "KILL", "ID", values["id"])
		}
	}
	time.Sleep(watchedFor) // before, the wire relies on the goroutine that reads, which may not have noticed it
}
