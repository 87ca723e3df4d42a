// Package bearer checks the tokens that requests bring.
package bearer

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// Brings tells whether r brings token: Authorization: Bearer TOKEN. It takes as long for any other.
func Brings(r *http.Request, token string) bool {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	want, got := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(strings.TrimSpace(given))) // of equal length
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}
