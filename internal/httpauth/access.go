// Package httpauth tells who may ask over HTTP.
package httpauth

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Brings reports whether r brings the token: Authorization: Bearer TOKEN. It takes equally long for any
// other token. Nothing brings a nil Token.
func Brings(r *http.Request, required Token) bool {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return Is(strings.TrimSpace(given), required) && strings.EqualFold(scheme, "Bearer")
}

// Is reports whether given is the token. It takes equally long for any other text. Nothing is a nil Token.
func Is(given string, required Token) bool {
	if required == nil {
		return false
	}
	want, got := sha256.Sum256([]byte(required())), sha256.Sum256([]byte(given)) // of equal length
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// FromSamePage reports whether a page of exactly this origin had its browser send r. A request without an Origin, as
// programs send it, is from no page.
func FromSamePage(r *http.Request) bool {
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	return r.Host != "" && (origin == "http://"+r.Host || origin == "https://"+r.Host) && (site == "" || site == "same-origin")
}

// ThroughUnixSocket reports whether r arrived through a Unix socket.
func ThroughUnixSocket(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}

// FromBrowser reports whether a browser sent r: every browser names the origin of a page that posts.
func FromBrowser(r *http.Request) bool {
	return r.Header["Origin"] != nil || r.Header["Sec-Fetch-Site"] != nil
}

// FromOtherSite reports whether a page of another site, or of another port of this machine, had its
// browser send r.
func FromOtherSite(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}

// ThisMachineOnly answers requests that name this machine, as NamesThisMachine says, and refuses others
// with the remedy.
func ThisMachineOnly(next http.Handler, remedy string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !NamesThisMachine(r) {
			http.Error(w, remedy, http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// NamesThisMachine tells whether r names no host but this machine: localhost, an address or none. A web
// page whose own name is made to lead here is of the same origin to a browser, and could ask whatever
// needs no token. A browser reaches a Unix socket only through a forwarded port, and then the rule holds too.
func NamesThisMachine(r *http.Request) bool {
	if ThroughUnixSocket(r) && !FromBrowser(r) {
		return true
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}
