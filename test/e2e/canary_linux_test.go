package e2e

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/testkit/certtest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/redistest"
	"github.com/rlsidecar/rlsidecar/internal/testkit/sidecartest"
)

// TestSecretsStayInTheProcess passes each secret of the program in a file. It uses each secret, replaces each
// by a wrong one, and makes the program crash. No secret may appear in an answer, the log, the list of
// processes, the output of a command, Redis or the output of the crash.
func TestSecretsStayInTheProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := []string{"redis-password", "api-token", "admin-token", "admin-read-token", "settle-key"}
	secret := func(name string) string { return "canary-" + name + "-0123456789abcdef0123456789abcdef" }
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		writeFile(t, path, text)
		return path
	}
	redis := redistest.Start(t)
	redis.Do("CONFIG", "SET", "requirepass", secret("redis-password"))
	certtest.New(t).Secret(t, dir, 1, "localhost")
	key := read(t, filepath.Join(dir, "tls.key"))
	limits := "domain: d\nlimits: {send: {algorithm: token_bucket, rate: 3, period: 1h, max_reserved: 5}}\ndescriptors: [{key: user, limit: send}]\n"
	at := loopback()
	args := []string{
		"serve", "--config", write("limits.yaml", limits), "--log-level", "debug", "--drain-delay", "0s", "--redis-url", "redis://" + redis.Addr, "--backend-timeout", "10s",
		"--grpc-listen", at + ":8081", "--http-listen", at + ":8080", "--admin-listen", at + ":6070", "--metrics-listen", at + ":9090",
		"--tls-cert", filepath.Join(dir, "tls.crt"), "--tls-key", filepath.Join(dir, "tls.key"),
	}
	for _, name := range names {
		args = append(args, "--"+name+"-file", write(name, secret(name)))
	}
	canaries := map[string]string{"the TLS key": strings.Split(key, "\n")[1], "a client's wrong token": "canary-guess"}
	for _, name := range names {
		canaries[name] = secret(name)
	}
	seen := 0
	clean := func(where, text string) {
		t.Helper()
		seen++
		for what, canary := range canaries {
			if strings.Contains(text, canary) {
				t.Errorf("%s shows %s", where, what)
			}
		}
	}
	p := start(t, sidecartest.Program, args...)
	request := func(port, token, line, body string) (code int, text string) {
		t.Helper()
		method, path, _ := strings.Cut(line, " ")
		var headers []string
		if token != "" {
			headers = []string{"Authorization: Bearer " + token}
		}
		code, header, answer := call(method, "http://"+at+":"+port+path, body, headers...)
		if plain, err := gzip.NewReader(strings.NewReader(answer)); err == nil { // profiles are compressed
			content, _ := io.ReadAll(plain)
			answer = string(content)
		}
		text = fmt.Sprint(header, answer)
		clean(line, text)
		return code, text
	}
	eventually(t, "it is ready", func() bool { code, _ := request("8080", "", "GET /readyz", ""); return code == http.StatusOK })

	// A reservation uses the settle key. pages sends both admin tokens and a wrong one.
	code, reserved := request("8080", secret("api-token"), "POST /v1/limit", `{"name":"send","key":"bob","count":2,"reserve":true}`)
	if id := regexp.MustCompile(`"reservation":"([^"]+)"`).FindStringSubmatch(reserved); code != http.StatusOK || id == nil {
		t.Errorf("a reservation: got %d %s; want status 200 and an id", code, reserved)
	} else if code, text := request("8080", secret("api-token"), "POST /v1/limit", `{"reservation":"`+id[1]+`","count":1}`); code != http.StatusOK {
		t.Errorf("its settlement: got %d %s; want status 200", code, text)
	}
	if code, text := request("6070", secret("admin-token"), "POST /api/adjustments", `{"domain":"d","limit":"send","key":["bob"],"factor":2,"for":"1h","author":"ann","reason":"test"}`); code != http.StatusOK {
		t.Errorf("an adjustment: got %d %s; want status 200", code, text)
	}
	pages := func() {
		for _, line := range []string{
			"GET /", "GET /limit?domain=d&name=send", "GET /key?domain=d&limit=send&value=bob", "GET /adjustments", "GET /configuration", "GET /fleet", "GET /login", "GET /metrics", "GET /rlconfig",
			"GET /api/conditions", "GET /api/top", "GET /api/adjustments", "GET /api/adjustments/audit", "GET /api/buckets?limit=send&key=bob",
			"GET /debug/vars", "GET /debug/pprof/", "GET /debug/pprof/cmdline", "GET /debug/pprof/symbol", "GET /debug/pprof/heap?debug=1", "GET /debug/pprof/goroutine?debug=2", "GET /debug/pprof/allocs?debug=1",
		} {
			for _, token := range []string{secret("admin-token"), secret("admin-read-token"), "canary-guess", ""} {
				request("6070", token, line, "")
			}
		}
		for _, line := range []string{"GET /readyz", "GET /livez", "POST /v1/limit", "POST /json", "GET /v1/auth", "GET /v1/limits"} {
			request("8080", "canary-guess", line, `{"name":"send","key":"bob"}`)
		}
		request("9090", "", "GET /metrics", "")
	}
	pages()
	for _, file := range []string{"cmdline", "environ"} { // files that other users and containers of the pod may read
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, file))
		if err != nil || len(text) == 0 {
			t.Errorf("%s: %v", file, err)
		}
		clean("the list of processes", string(text))
	}

	// Each secret is replaced by a wrong one. The password is replaced in Redis.
	doctor := func() {
		c := exec.CommandContext(t.Context(), sidecartest.Program, "doctor", "--wait", "2s", "--redis-url", "redis://"+redis.Addr, "--redis-password-file", filepath.Join(dir, "redis-password"))
		out, _ := c.CombinedOutput() // doctor fails after the password was made wrong
		clean("doctor", string(out))
	}
	doctor()
	admin := redis.Client()
	admin.Options().Password = secret("redis-password")
	keys := admin.Keys(t.Context(), "*").Val()
	if len(keys) == 0 {
		t.Error("Redis has no key, want those of a bucket and of an adjustment")
	}
	for _, key := range keys {
		var value any
		switch kind := admin.Type(t.Context(), key).Val(); kind {
		case "string":
			value = admin.Get(t.Context(), key).Val()
		case "hash":
			value = admin.HGetAll(t.Context(), key).Val()
		case "list":
			value = admin.LRange(t.Context(), key, 0, -1).Val()
		default:
			t.Errorf("Redis has the key %q of type %q, want a string, a hash or a list", key, kind)
		}
		clean("Redis", fmt.Sprint(key, value))
	}
	if err := admin.Do(t.Context(), "CONFIG", "SET", "requirepass", "another").Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no").Err(); err != nil {
		t.Log(err) // the command also ends the test's own connection
	}
	doctor()
	for _, name := range names[1:] {
		write(name, secret(name)+" twice "+secret(name))
	}
	write("tls.key", secret("api-token"))
	eventually(t, "the wrong password is in the log", func() bool {
		request("8080", "", "POST /json", `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}`)
		return strings.Contains(p.output.String(), "WRONGPASS")
	})
	pages()
	env := exec.CommandContext(t.Context(), sidecartest.Program, "check", "--reference")
	env.Env = append(os.Environ(), "REDIS_AUTH="+secret("redis-password"), "REDIS_URL=redis://:"+secret("redis-password")+"@"+redis.Addr,
		"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:"+secret("api-token"))
	out, err := env.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "REDIS_AUTH") {
		t.Errorf("check --reference: %v\n%s", err, out)
	}
	clean("check --reference", string(out))

	// A password in the URL of a Redis that does not answer.
	to := loopback()
	unreachable := serve(t, to, "--config", filepath.Join(dir, "limits.yaml"), "--log-level", "debug", "--redis-url",
		fmt.Sprintf("redis://bob:%s@127.0.0.1:%d/0", secret("redis-password"), redistest.FreePort(t)))
	for _, url := range []string{":8080/v1/limits/send?key=bob", ":6070/", ":6070/api/conditions", ":6070/metrics", ":6070/debug/pprof/cmdline", ":6070/debug/vars", ":6070/debug/pprof/goroutine?debug=2"} {
		_, text := fetch("http://" + to + url)
		clean(url, text)
	}
	if err := unreachable.stop(); err != nil || !strings.Contains(unreachable.output.String(), "redis") {
		t.Errorf("got %v; want an error of Redis in the log", err)
	}
	clean("the log without Redis", unreachable.output.String())

	p.killed = true
	_ = p.cmd.Process.Signal(syscall.SIGABRT)
	<-p.exited
	log := p.output.String()
	if !strings.Contains(log, "SIGABRT") || !strings.Contains(log, "goroutine 1") {
		t.Errorf("no crash: %s", p.output.tail())
	}
	clean("the log, and the output of the crash", log)
	t.Logf("%d texts", seen)
}
