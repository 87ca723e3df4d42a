package httpauth

import (
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"
)

const (
	// mostSecrets is the largest number of secrets in a file: the current one, and the previous or next one.
	mostSecrets = 2
	// shortestSecret is the minimum length of a secret, in bytes.
	shortestSecret = 16
)

// FileSecrets returns a function that returns the secrets in a file, which are the keys of reservations. The
// file has one or two lines with a secret each, the current one first. It is read again at most once a second.
// While it cannot be read, the previous secrets stay in use. FileSecrets returns an error if the first read fails.
func FileSecrets(path string, log *zap.Logger) (func() []string, error) {
	return follow(file[[]string]{
		read:  func() ([]string, error) { return readSecrets(path) },
		equal: slices.Equal[[]string],
		failed: func(err error) {
			log.Error("the file with the keys of reservations (--settle-key-file) cannot be read; the previous keys stay in use; correct the file", zap.Error(err))
		},
		changed: func(secrets []string) {
			log.Info("the keys of reservations were read again", zap.String("file", path), zap.Int("keys", len(secrets)))
		},
	})
}

// readSecrets returns the secrets in a file. Its errors do not contain secrets.
func readSecrets(path string) ([]string, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the keys of reservations: %w", err)
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
