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

// Token returns the secret that a request must bring at this moment. A nil Token requires none.
type Token func() string

// FixedToken never changes. It is nil for "".
func FixedToken(secret string) Token {
	if secret == "" {
		return nil
	}
	return func() string { return secret }
}

const (
	// maxToken bounds the content of a file with a token.
	maxToken = 4096
	// reread is how old the content of the file may be.
	reread = time.Second
)

// FileToken is the content of the file at path, without white space at its end. The file is read again
// when it may have changed; while it cannot be used, the token before stays in use. The error says why
// it cannot be used now.
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

	mu      sync.Mutex // held by the request that reads the file; others use secret meanwhile
	read    time.Time  // guarded by mu
	problem string     // why it could not be used; guarded by mu
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

// update requires f.mu. A problem is logged once, not once a second.
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

// readToken returns the token in a file. No error shows any of it.
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
