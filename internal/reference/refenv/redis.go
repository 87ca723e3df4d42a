package refenv

import (
	"net/url"
	"strings"
)

// redis reports whether the files of REDIS_TLS_… have an effect.
func (r *reader) redis() (withTLS bool) {
	switch r.choice("BACKEND_TYPE", "redis", "memory", "memcache") {
	case "memcache":
		r.mistake("BACKEND_TYPE", "memcached cannot decide and charge in one step, so limits in it do not hold; set redis (with REDIS_URL) or memory")
		return false
	case "memory":
		return false
	}
	r.copyPrefix()
	perSecond := r.bool("REDIS_PERSECOND")
	tls := r.bool("REDIS_TLS")
	if perSecond {
		tls = r.bool("REDIS_PERSECOND_TLS") || tls
	}
	if r.counts("REDIS_URL") {
		r.server("REDIS_", "redis-url")
	}
	switch _, there := r.Values["redis-url"]; {
	case there && perSecond:
		r.server("REDIS_PERSECOND_", "redis-per-second-url")
	case perSecond:
		r.mistake("REDIS_PERSECOND", "REDIS_URL, for the limits that are not per second, is missing; set REDIS_URL, or remove REDIS_PERSECOND")
	case !there:
		return false
	}
	return tls
}

func (r *reader) server(prefix, setting string) {
	form := r.choice(prefix+"TYPE", "single", "sentinel", "cluster")
	where := r.given(prefix + "URL")
	socket := ""
	if r.given(prefix+"SOCKET_TYPE") != "" {
		socket = r.choice(prefix+"SOCKET_TYPE", "unix", "tcp")
	}
	switch {
	case where != "":
	case socket == "unix" || prefix != "REDIS_": // REDIS_PERSECOND enables a second Redis, so its address has a default
		where = byName(prefix + "URL").Default
	default:
		r.warn("REDIS_URL is not set, so buckets are kept in the memory of this process; set it to share them between sidecars")
		return
	}
	l := location{userinfo: userinfo(r.given(prefix + "AUTH")), scheme: "redis"}
	if r.bool(prefix + "TLS") {
		l.scheme = "rediss"
	}
	text, problem := "", ""
	switch form {
	case "single":
		text, problem = l.single(where, socket)
	case "sentinel":
		text, problem = l.sentinel(where, r.given(prefix+"SENTINEL_AUTH"))
	case "cluster":
		text, problem = l.list("+cluster", strings.Split(where, ","), "")
	}
	if problem != "" {
		r.mistake(prefix+"URL", "%s", problem)
	}
	r.Values[setting] = text
}

// copyPrefix sets the prefix of keys to CACHE_KEY_PREFIX, followed by the default prefix. So Redis permissions for
// keys that start with CACHE_KEY_PREFIX still apply, and buckets never collide with those that the reference server
// has left.
func (r *reader) copyPrefix() {
	prefix := r.given("CACHE_KEY_PREFIX")
	switch {
	case strings.ContainsAny(prefix, "{}"):
		r.mistake("CACHE_KEY_PREFIX", "braces choose cluster slots and cannot be part of it; remove them")
	case prefix != "":
		r.Values["redis-key-prefix"] = prefix + "rl:"
	}
}

type location struct {
	scheme   string
	userinfo string // "user:password@", or ""
}

// userinfo returns auth, which is "password" or "user:password", in the form of a URL, with an "@" at the end.
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

// take returns address without its scheme and credentials. It stores the credentials in l, because they take precedence
// over REDIS_AUTH, and the scheme if it is rediss.
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
			return "", "the SOCKET_TYPE is unix, and this is no absolute path; set it to tcp for host:port"
		}
		return "unix://" + l.userinfo + (&url.URL{Path: file}).EscapedPath(), ""
	case strings.Contains(address, ","):
		return "", "these are several addresses; set the TYPE to sentinel or cluster"
	default:
		return l.scheme + "://" + l.userinfo + address, ""
	}
}

// sentinel parses master,host:port,host:port….
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
