package httpauth

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// The bounds of a file with secrets.
const (
	// mostSecrets are accepted at a time: the one in use, and the one before or after it.
	mostSecrets = 2
	// shortestSecret is the fewest bytes of each.
	shortestSecret = 16
)

// FileSecrets returns the secrets in a file, one in each line, the one in use first. The file is read again when it may
// have changed, at most once a second. While it cannot be used, the former secrets stay in use. FileSecrets returns an
// error if the file cannot be used at first.
func FileSecrets(path string, log *zap.Logger) (func() []string, error) {
	secrets, err := readSecrets(path)
	if err != nil {
		return nil, err
	}
	f := &secretsFile{path: path, log: log, read: time.Now()}
	f.secrets.Store(&secrets)
	return f.get, nil
}

type secretsFile struct {
	path    string
	log     *zap.Logger
	secrets atomic.Pointer[[]string]

	mu      sync.Mutex // held by the request that reads the file; others use secrets
	read    time.Time  // guarded by mu
	problem string     // the last problem with the file; guarded by mu
}

func (f *secretsFile) get() []string {
	if f.mu.TryLock() {
		if now := time.Now(); now.Sub(f.read) >= reread {
			f.read = now
			f.update()
		}
		f.mu.Unlock()
	}
	return *f.secrets.Load()
}

// update reads the file. A problem is logged once, not once a second. f.mu is held.
func (f *secretsFile) update() {
	secrets, err := readSecrets(f.path)
	if err != nil {
		if f.problem != err.Error() {
			f.log.Error("the keys of reservations cannot be read again; those before stay in use", zap.Error(err))
		}
		f.problem = err.Error()
		return
	}
	f.problem = ""
	if strings.Join(secrets, "\n") != strings.Join(*f.secrets.Load(), "\n") {
		f.log.Info("the keys of reservations were read again", zap.String("file", f.path), zap.Int("keys", len(secrets)))
		f.secrets.Store(&secrets)
	}
}

// readSecrets returns the secrets in a file. Its errors contain none of them.
func readSecrets(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the keys of reservations: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxToken+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the keys of reservations: %w", err)
	case len(data) > maxToken:
		return nil, fmt.Errorf("read the keys of reservations: %s has more than %d bytes", path, maxToken)
	}
	secrets := strings.Fields(string(data))
	for i, secret := range secrets {
		if len(secret) < shortestSecret {
			return nil, fmt.Errorf("read the keys of reservations: key %d in %s has fewer than %d characters; make one with: openssl rand -hex 32", i+1, path, shortestSecret)
		}
	}
	if len(secrets) < 1 || len(secrets) > mostSecrets {
		return nil, fmt.Errorf("read the keys of reservations: %s has %d keys; write one or two lines with a key each, the one that signs first", path, len(secrets))
	}
	return secrets, nil
}
