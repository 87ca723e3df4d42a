package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// Prove returns a Mistake with a remedy only if a setting must change, and another error if the server is unavailable.
func TestProveDistinguishesMistakesFromOutages(t *testing.T) {
	t.Parallel()
	ca, dir := certtest.New(t), t.TempDir()
	ca.Secret(t, dir, 2, "redis")
	file := func(name string) string { return filepath.Join(dir, name) }
	tlsPort := redistest.FreePort(t)
	secure := fmt.Sprintf("127.0.0.1:%d", tlsPort)
	one := redistest.Start(t, "--requirepass", "right", "--tls-port", fmt.Sprint(tlsPort), "--tls-auth-clients", "yes",
		"--tls-ca-cert-file", file("ca.crt"), "--tls-cert-file", file("tls.crt"), "--tls-key-file", file("tls.key"))
	admin := one.Client()
	if err := admin.Do(t.Context(), "AUTH", "right").Err(); err != nil {
		t.Fatal(err)
	}
	free := redistest.Start(t)
	free.Do("ACL", "SETUSER", "few", "on", ">few", "~rl:*", "-@all", "+ping", "+evalsha", "+eval", "+mget")
	replica := redistest.StartReplica(t, free)
	cluster, sentinels := sharedCluster(), sharedSentinels()
	gone := redistest.Start(t)
	gone.Kill()
	trusted := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.Pool()}

	for name, c := range map[string]struct {
		config Config
		want   string // the expected text of the Mistake; "away" means another error, "" no error
	}{
		"right":                              {Config{URL: "redis://:right@" + one.Addr}, ""},
		"a wrong password":                   {Config{URL: "redis://:wrong@" + one.Addr}, "refuses the user or the password (WRONGPASS"},
		"no password":                        {Config{URL: "redis://" + one.Addr}, "requires a password, and none was given (NOAUTH"},
		"a password without need":            {Config{URL: "redis://:x@" + free.Addr}, ""},
		"a missing permission":               {Config{URL: "redis://few:few@" + free.Addr}, "does not grant its user the permissions that limits need"},
		"no such database":                   {Config{URL: "redis://" + free.Addr + "/77"}, "has no database of this number"},
		"a replica":                          {Config{URL: "redis://" + replica.Addr}, "is a replica (READONLY"},
		"TLS to a plaintext port":            {Config{URL: "rediss://" + free.Addr}, "does not use TLS at this port; write redis://"},
		"plaintext to a TLS port":            {Config{URL: "redis://" + secure}, "requires TLS at this port, and --redis-url does not use it; write rediss://"},
		"an untrusted certificate":           {Config{URL: "rediss://" + secure}, "has a certificate that is not trusted"},
		"no client certificate":              {Config{URL: "rediss://" + secure, TLS: trusted}, "--redis-tls-cert"},
		"a cluster URL to a single server":   {Config{URL: "redis+cluster://" + free.Addr}, "is a single server, and --redis-url names a Redis Cluster"},
		"a single server's URL to a cluster": {Config{URL: "redis://" + cluster.Masters[1].Addr}, "is a node of a Redis Cluster, and --redis-url names a single server"},
		"a Sentinel URL to a server":         {Config{URL: "redis+sentinel://" + free.Addr + "/main"}, "does not know a command"},
		"a server's URL to a Sentinel":       {Config{URL: "redis://" + sentinels.Sentinels[0].Addr}, "may be a Sentinel"},
		"an unknown master":                  {Config{URL: strings.TrimSuffix(sentinels.URL(), "main") + "mian"}, "does not know a master of this name"},
		"a cluster":                          {Config{URL: cluster.URL()}, ""},
		"Sentinels":                          {Config{URL: sentinels.URL()}, ""},
		"an unreachable server":              {Config{URL: "redis://" + gone.Addr}, "away"},
		"TLS to an unreachable server":       {Config{URL: "rediss://" + gone.Addr}, "away"},
		"an unreachable cluster":             {Config{URL: "redis+cluster://" + gone.Addr}, "away"},
		"unreachable Sentinels":              {Config{URL: "redis+sentinel://" + gone.Addr + "/main"}, "away"},
	} {
		t.Run(name, func(t *testing.T) {
			s := away(t, c.config)
			check := func() error {
				err := s.Prove(t.Context())
				m, isMistake := errors.AsType[*Mistake](err)
				switch {
				case c.want == "away":
					if isMistake || err == nil {
						t.Fatalf("got %v; want an error that is not a Mistake", err)
					}
					return nil
				case !isMistake || !strings.Contains(m.Error(), c.want):
					return fmt.Errorf("%w; want %s", m, c.want)
				case m.Remedy == "" || strings.Contains(m.Error(), "right") || strings.Contains(m.Error(), "wrong@"):
					t.Fatalf("the error has no remedy, or contains a secret: %v", m)
				}
				return nil
			}
			// On a busy machine the first attempt may time out.
			redistest.Eventually(t, "the mistake is reported", func() bool {
				if c.want == "" {
					return s.Prove(t.Context()) == nil
				}
				return check() == nil
			})
		})
	}
	if keys := free.Do("KEYS", "*"); keys != "[]" {
		t.Errorf("left behind: %s; want keys %q", keys, "[]")
	}
}

// For these mistakes waiting for Redis does not help, so Open fails.
func TestOpenRefusesContradictions(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]Config{
		"no such file": {URL: "redis://h", PasswordFile: filepath.Join(t.TempDir(), "none")},
		"is empty":     {URL: "redis://h", PasswordFile: empty},
		"given twice":  {URL: "redis://:x@h", PasswordFile: empty},
	} {
		if s, err := Open(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v; want an error that contains the text before the colon", want, err)
			if err == nil {
				s.Close()
			}
		}
	}
}
