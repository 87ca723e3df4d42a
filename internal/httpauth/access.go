// Package httpauth decides which HTTP requests are authorized. It checks tokens, host names and origins.
package httpauth

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// HasToken reports whether r has the required token in its header "Authorization: Bearer TOKEN". The comparison
// takes constant time. HasToken returns false if required is nil.
func HasToken(r *http.Request, required Token) bool {
	token, ok := BearerToken(r)
	return ok && IsToken(token, required)
}

// BearerToken returns the token in the header "Authorization: Bearer TOKEN". ok is false if there is none.
func BearerToken(r *http.Request) (token string, ok bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	return token, token != "" && strings.EqualFold(scheme, "Bearer")
}

// IsToken reports whether token is the required token. The comparison takes constant time. IsToken returns
// false if required is nil.
func IsToken(token string, required Token) bool {
	if required == nil {
		return false
	}
	want, got := sha256.Sum256([]byte(required())), sha256.Sum256([]byte(token)) // hashes, because the comparison needs equal lengths
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// FromSamePage reports whether a browser sent r for a page that has the same host name and port as r. The scheme of
// the page can be http or https. FromSamePage returns false for requests without an Origin. Most programs send none.
func FromSamePage(r *http.Request) bool {
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	return r.Host != "" && (origin == "http://"+r.Host || origin == "https://"+r.Host) && (site == "" || site == "same-origin")
}

// ThroughUnixSocket reports whether r arrived through a Unix socket.
func ThroughUnixSocket(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}

// FromBrowser reports whether r has a header that only browsers send. With a POST every browser sends the
// origin of the page. With a GET, browsers may send neither of the headers, so FromBrowser can return false.
func FromBrowser(r *http.Request) bool {
	return r.Header["Origin"] != nil || r.Header["Sec-Fetch-Site"] != nil
}

// FromOtherSite reports whether a browser states that it sent r for a page of another origin: of another site,
// or of another host or port of the same site. Browsers state it only to an https origin or to localhost.
func FromOtherSite(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}

// LocalHostOnly returns a handler that passes a request to the handler next if HasLocalHost returns true. It answers
// other requests with status 421 and the text remedy.
func LocalHostOnly(next http.Handler, remedy string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !HasLocalHost(r) {
			http.Error(w, remedy, http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// HasLocalHost reports whether the host of r is localhost, an IP address or empty. It returns true also for a
// request that a program sent through a Unix socket.
//
// This protects against DNS rebinding. If the host name of a web page resolves to this machine, the browser
// regards this listener as the same origin, and the page could send requests that need no token. A browser can
// reach a Unix socket through a forwarded port, so the rule applies to its requests there too. Every browser sends
// Accept-Language, and a page cannot prevent that. With a GET, browsers may send no other header that programs
// do not send.
func HasLocalHost(r *http.Request) bool {
	if ThroughUnixSocket(r) && !FromBrowser(r) && r.Header["Accept-Language"] == nil {
		return true
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}
