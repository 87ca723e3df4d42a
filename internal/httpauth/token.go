package httpauth

import (
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"
)

// Token returns the secret that a request must currently have. A nil Token means that no secret is configured.
// HasToken and IsToken then return false.
type Token func() string

// FixedToken returns a Token that never changes, or nil if secret is empty.
func FixedToken(secret string) Token {
	if secret == "" {
		return nil
	}
	return func() string { return secret }
}

// FileToken returns a Token with the content of a file, without trailing white space. The file is read again
// at most once a second. While it cannot be read, the previous token stays in use. FileToken returns an error
// if the first read fails.
func FileToken(path string, log *zap.Logger) (Token, error) {
	return follow(file[string]{
		read:  func() (string, error) { return readToken(path) },
		equal: func(a, b string) bool { return a == b },
		failed: func(err error) {
			log.Error("the token file cannot be read; the previous token stays in use; correct the file", zap.Error(err))
		},
		changed: func(string) { log.Info("the token was read again", zap.String("file", path)) },
	})
}

// readToken returns the token in a file. Its errors do not contain the token.
func readToken(path string) (string, error) {
	if path == "" {
		return "", errors.New("the file with the token has no name")
	}
	data, err := readFile(path)
	if err != nil {
		return "", fmt.Errorf("read a token: %w", err)
	}
	secret := strings.TrimRight(string(data), " \t\r\n")
	switch {
	case secret == "":
		return "", fmt.Errorf("read a token: %s is empty", path)
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return "", fmt.Errorf("read a token: %s has white space or control characters before its end; remove them, because no request can contain them", path)
	}
	return secret, nil
}
