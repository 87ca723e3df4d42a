package refenv

import (
	"net/url"
	"strings"
)

// redis says where the buckets are.
func (r *reader) redis() {
	switch r.choice("BACKEND_TYPE", "redis", "memory", "memcache") {
	case "memcache":
		r.mistake("BACKEND_TYPE", "memcached cannot decide and charge in one step, so limits in it do not hold; set redis (with REDIS_URL) or memory")
		return
	case "memory":
		return
	}
	if r.bool("REDIS_PERSECOND") {
		r.mistake("REDIS_PERSECOND", "all limits of a request are charged in one step, which two servers cannot do; remove it: REDIS_URL then serves limits per second too")
	}
	r.copyPrefix()
	if !r.counts("REDIS_URL") {
		return
	}
	form := r.choice("REDIS_TYPE", "single", "sentinel", "cluster")
	where := r.given("REDIS_URL")
	socket := ""
	if r.given("REDIS_SOCKET_TYPE") != "" {
		socket = r.choice("REDIS_SOCKET_TYPE", "unix", "tcp")
	}
	switch {
	case where != "":
	case socket == "unix":
		where = byName("REDIS_URL").Default
	default:
		r.warn("REDIS_URL is not set: buckets are kept in this process's memory, and are not shared with others")
		return
	}
	l := location{userinfo: userinfo(r.given("REDIS_AUTH")), scheme: "redis"}
	if r.bool("REDIS_TLS") {
		l.scheme = "rediss"
		r.copy("redis-tls-ca", "REDIS_TLS_CACERT")
		r.copy("redis-tls-cert", "REDIS_TLS_CLIENT_CERT")
		r.copy("redis-tls-key", "REDIS_TLS_CLIENT_KEY")
		if r.bool("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") {
			r.set("redis-tls-skip-hostname", "true", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION")
		}
	}
	text, problem := "", ""
	switch form {
	case "single":
		text, problem = l.single(where, socket)
	case "sentinel":
		text, problem = l.sentinel(where, r.given("REDIS_SENTINEL_AUTH"))
	case "cluster":
		text, problem = l.list("+cluster", strings.Split(where, ","), "")
	}
	if problem != "" {
		r.mistake("REDIS_URL", "%s", problem)
	}
	r.set("redis-url", text, "REDIS_URL")
}

// copyPrefix puts the prefix before this program's own, so that rules on names hold and the
// buckets never meet those that the reference server has left.
func (r *reader) copyPrefix() {
	prefix := r.given("CACHE_KEY_PREFIX")
	switch {
	case strings.ContainsAny(prefix, "{}"):
		r.mistake("CACHE_KEY_PREFIX", "braces choose cluster slots and cannot be part of it; remove them")
	case prefix != "":
		r.set("redis-key-prefix", prefix+"rl:", "CACHE_KEY_PREFIX")
	}
}

// location is what the forms of a URL have in common.
type location struct {
	scheme   string
	userinfo string // "user:password@", or ""
}

// userinfo is "password" or "user:password" as a URL has it.
func userinfo(auth string) string {
	switch user, password, both := strings.Cut(auth, ":"); {
	case auth == "":
		return ""
	case both:
		return url.UserPassword(user, password).String() + "@"
	default:
		return url.UserPassword("", auth).String() + "@"
	}
}

// take cuts the scheme, and credentials if any, off an address; those count more than REDIS_AUTH.
func (l *location) take(address string) string {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(address), "://")
	if !ok {
		return strings.TrimSpace(address)
	}
	if scheme == "rediss" {
		l.scheme = scheme
	}
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		l.userinfo, rest = rest[:i+1], rest[i+1:]
	}
	return rest
}

func (l location) single(address, socket string) (text, problem string) {
	scheme, _, isURL := strings.Cut(address, "://")
	switch {
	case isURL && scheme != "redis" && scheme != "rediss" && scheme != "unix":
		return "", "write host:port, a path, or redis://[user:password@]host:port/db"
	case isURL && scheme != "unix":
		rest := l.take(address)
		return l.scheme + "://" + l.userinfo + rest, ""
	case isURL || socket == "unix" || strings.HasPrefix(address, "/"):
		file := l.take(address)
		if !strings.HasPrefix(file, "/") {
			return "", "REDIS_SOCKET_TYPE is unix, and this is no absolute path; set REDIS_SOCKET_TYPE=tcp for host:port"
		}
		return "unix://" + l.userinfo + (&url.URL{Path: file}).EscapedPath(), ""
	case strings.Contains(address, ","):
		return "", "these are several addresses; set REDIS_TYPE to sentinel or cluster"
	default:
		return l.scheme + "://" + l.userinfo + address, ""
	}
}

// sentinel reads master,host:port,host:port…
func (l location) sentinel(text, auth string) (string, string) {
	master, hosts, ok := strings.Cut(text, ",")
	if !ok || strings.TrimSpace(master) == "" || strings.Contains(master, ":") {
		return "", "write the name of the master, then the Sentinels: main,host:port,host:port"
	}
	tail := "/" + url.PathEscape(strings.TrimSpace(master))
	if auth != "" {
		query := url.Values{"sentinel_password": {auth}}
		if user, password, both := strings.Cut(auth, ":"); both {
			query = url.Values{"sentinel_username": {user}, "sentinel_password": {password}}
		}
		tail += "?" + query.Encode()
	}
	return l.list("+sentinel", strings.Split(hosts, ","), tail)
}

func (l location) list(form string, hosts []string, tail string) (text, problem string) {
	for i := range hosts {
		if hosts[i] = l.take(hosts[i]); hosts[i] == "" || strings.ContainsAny(hosts[i], "/ ") {
			return "", "write host:port,host:port"
		}
	}
	return l.scheme + form + "://" + l.userinfo + strings.Join(hosts, ",") + tail, ""
}
