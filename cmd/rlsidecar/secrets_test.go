package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
)

// Each URL is malformed, or its Redis does not answer or has another password.
func TestPasswordsOfRedisAreNotPrinted(t *testing.T) {
	closed := fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
	locked := redistest.Start(t, "--requirepass", "other").Addr
	config := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(config, []byte("domain: d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := []string{"serve", "--config", config, "--grpc-listen", "127.0.0.1:0", "--http-listen", "", "--admin-listen", ""}
	doctor := []string{"doctor", "--wait", "3s"}
	for _, url := range []string{
		"redis://user:se/secret@" + closed, "redis://user:se?secret@" + closed, "redis://user:secret/0", "redis://user:secret:" + closed,
		"user:secret@" + closed, "redis://h/secret", "redis+sentinel://h/main?sentinel_password=secret&x=1",
		"redis://user:secret@" + closed, "redis://user:secret@" + locked, "redis://:secret@" + locked,
		"redis+sentinel://:secret@" + closed + "/main?sentinel_password=secret", "redis+cluster://:secret@" + closed,
	} {
		prints := func(t *testing.T, args ...string) {
			t.Helper()
			var out bytes.Buffer
			code := run(t.Context(), args, nil, &out, &out)
			if text := out.String(); code == exitDone && args[0] != "check" || strings.Contains(text, "secret@") || strings.Contains(text, ":secret") || strings.Contains(text, `"secret`) {
				t.Errorf("%v: exit code %d; want no password in the output, and 0 only for check:\n%s", args, code, text)
			}
		}
		t.Run(url, func(t *testing.T) {
			prints(t, append(doctor, "--redis-url", url)...)
			prints(t, append(doctor, "--redis-url", "redis://"+closed, "--redis-per-second-url", url)...)
			prints(t, append(doctor, url)...)
			prints(t, append(doctor, "--redis-wait-replicas", url)...)
			if !strings.Contains(url, closed) && !strings.Contains(url, locked) { // otherwise the URL may be valid, and serve would run
				prints(t, append(serve, "--redis-url", url)...)
			}
			t.Setenv("RLSIDECAR_REDIS_URL", url)
			prints(t, "check", "--reference")
			prints(t, doctor...)
			t.Setenv("RLSIDECAR_REDIS_URL", "")
			t.Setenv("REDIS_URL", url)
			prints(t, "check", "--reference")
			prints(t, doctor...)
		})
	}
}
