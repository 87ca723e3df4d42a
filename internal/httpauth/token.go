package httpauth

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// Token returns the secret that a request must have at this moment. A nil Token means that none is required.
type Token func() string

// FixedToken returns a Token that never changes; nil if secret is empty.
func FixedToken(secret string) Token {
	if secret == "" {
		return nil
	}
	return func() string { return secret }
}

const (
	// maxToken bounds the content of a file with a token.
	maxToken = 4096
	// reread is how long the content of the file is cached.
	reread = time.Second
)

// FileToken returns a Token with the content of a file, without trailing white space. The file is read again when it
// may have changed. While it cannot be used, the former token stays in use. FileToken returns an error if the file
// cannot be used at first.
func FileToken(path string, log *zap.Logger) (Token, error) {
	secret, err := readToken(path)
	if err != nil {
		return nil, err
	}
	f := &tokenFile{path: path, log: log, read: time.Now()}
	f.secret.Store(&secret)
	return f.token, nil
}

type tokenFile struct {
	path   string
	log    *zap.Logger
	secret atomic.Pointer[string]

	mu      sync.Mutex // held by the request that reads the file; others use secret
	read    time.Time  // guarded by mu
	problem string     // the last problem with the file; guarded by mu
}

func (f *tokenFile) token() string {
	if f.mu.TryLock() {
		if now := time.Now(); now.Sub(f.read) >= reread {
			f.read = now
			f.update()
		}
		f.mu.Unlock()
	}
	return *f.secret.Load()
}

// update reads the file if it may have changed. A problem is logged once, not once a second. f.mu is held.
func (f *tokenFile) update() {
	secret, err := readToken(f.path)
	switch {
	case err != nil:
		if f.problem != err.Error() {
			f.log.Error("the token cannot be read again; the one before stays in use", zap.Error(err))
		}
		f.problem = err.Error()
	case secret != *f.secret.Load():
		f.log.Info("the token was read again", zap.String("file", f.path))
		f.secret.Store(&secret)
		f.problem = ""
	default:
		f.problem = ""
	}
}

// readToken returns the token in a file. Its errors do not contain any of the content.
func readToken(path string) (string, error) {
	if path == "" {
		return "", errors.New("the file with the token has no name")
	}
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read a token: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("read a token: %w", err)
	}
	secret := strings.TrimRight(string(data), " \t\r\n")
	switch {
	case len(data) > maxToken:
		return "", fmt.Errorf("read a token: %s has more than %d bytes", path, maxToken)
	case secret == "":
		return "", fmt.Errorf("read a token: %s is empty", path)
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return "", fmt.Errorf("read a token: %s has white space or control characters before its end, which no request can bring", path)
	}
	return secret, nil
}
