package cluster

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

const token = "a-token-of-the-test"

// freePort returns a port that is free now. It is not in the range that systems use for outgoing connections, so no
// connection can occupy it before the server starts.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10_000 + mathrand.IntN(20_000)
		if l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func startEtcd(t *testing.T) string {
	t.Helper()
	config := embed.NewConfig()
	config.Dir = t.TempDir()
	config.LogLevel = "fatal"
	config.UnsafeNoFsync = true // faster; a crash of the machine could lose data, which no test needs
	local := func() []url.URL {
		return []url.URL{{Scheme: "http", Host: fmt.Sprint("127.0.0.1:", freePort(t))}}
	}
	config.ListenClientUrls, config.ListenPeerUrls = local(), local()
	config.AdvertiseClientUrls, config.AdvertisePeerUrls = config.ListenClientUrls, config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd is not ready after a minute")
	}
	return config.ListenClientUrls[0].String()
}

func startServer(t *testing.T) string {
	t.Helper()
	klog.SetLogger(logr.Discard()) // the server logs too much
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	port, accounts := freePort(t), write(t, filepath.Join(dir, "accounts.key"), string(pem))
	ctx, stop := context.WithCancel(context.Background())
	run := apiServer(ctx, t, []string{
		"--etcd-servers=" + startEtcd(t),
		"--bind-address=127.0.0.1", fmt.Sprint("--secure-port=", port), "--cert-dir=" + dir,
		"--service-cluster-ip-range=10.0.0.0/16",
		"--service-account-issuer=https://issuer.example", "--service-account-key-file=" + accounts, "--service-account-signing-key-file=" + accounts,
		"--token-auth-file=" + write(t, filepath.Join(dir, "tokens.csv"), token+",admin,1,system:masters\n"),
		"--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount", // no controller creates the service accounts for which pods would wait
	})
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the API server ended with %v", err)
		}
	})
	return write(t, filepath.Join(dir, "kubeconfig"), strings.NewReplacer("PORT", fmt.Sprint(port), "CERT", filepath.Join(dir, "apiserver.crt"), "TOKEN", token).Replace(`
apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "https://127.0.0.1:PORT", certificate-authority: CERT}}]
users: [{name: admin, user: {token: TOKEN}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
`))
}

// apiServer returns a command that runs kube-apiserver until ctx ends. The server's own command ends only on
// signals.
func apiServer(ctx context.Context, t *testing.T, args []string) (run func() error) {
	t.Helper()
	s := options.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, set := range s.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := s.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		t.Fatal(err)
	}
	completed, err := s.Complete(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(completed.Validate()...); err != nil {
		t.Fatal(err)
	}
	return func() error { return app.Run(ctx, completed) }
}
