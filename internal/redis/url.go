package redis

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// location is what a URL says.
type location struct {
	form               string // "", "sentinel" or "cluster"
	tls                bool
	network, addr      string
	hosts              []string // of the servers, or of the Sentinels
	master             string
	username, password string
	sentinelUsername   string
	sentinelPassword   string
	db                 int
}

// parse parses a URL. Its errors quote no part of the URL: if the URL has a mistake, any part may belong to a
// password.
func parse(text string) (location, error) {
	bad := func(problem string) (location, error) {
		return location{}, errors.New("redis url: " + problem)
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return bad(noScheme)
	}
	// net/url cannot parse several hosts, so the hosts are removed before it parses the rest.
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	user := ""
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		user, authority = authority[:i+1], authority[i+1:]
	}
	u, err := url.Parse("redis://" + user + "host" + tail)
	if err != nil || u.Host != "host" || u.Fragment != "" {
		return bad("cannot be read" + escape)
	}
	l := location{network: "tcp", username: u.User.Username()}
	l.password, _ = u.User.Password()
	q := u.Query()
	l.sentinelUsername, l.sentinelPassword = q.Get("sentinel_username"), q.Get("sentinel_password")
	for name := range q {
		if name != "db" && name != "sentinel_username" && name != "sentinel_password" {
			return bad("unknown parameter; valid are db, sentinel_username and sentinel_password" + escape)
		}
	}
	base, form, _ := strings.Cut(scheme, "+")
	l.form, l.tls = form, base == "rediss"
	db := q.Get("db")
	var problem string
	switch {
	case base == "unix" && form == "":
		l.network, l.addr, l.hosts = "unix", u.Path, []string{u.Path}
		if authority != "" || l.addr == "" {
			problem = "a socket is written unix:///path"
		}
	case base != "redis" && base != "rediss":
		problem = badScheme
	default:
		problem = l.place(authority, strings.Trim(u.Path, "/"), &db)
	}
	if problem != "" {
		return bad(problem)
	}
	if db != "" {
		if l.db, err = strconv.Atoi(db); err != nil || l.db < 0 || strconv.Itoa(l.db) != db {
			return bad("the database is not a number" + escape)
		}
	}
	return l, nil
}

const (
	noScheme  = "has no scheme; write redis://host:port, rediss://, unix:///path, redis+sentinel://h1:p,h2:p/master or redis+cluster://h1:p,h2:p"
	badScheme = "the scheme is not known; it is redis, rediss, unix, redis+sentinel or redis+cluster"
	escape    = "; percent-encode special characters of the password"
)

// place stores the addresses of the servers, and the name of the master, from the hosts and the path of a
// URL. If the path names a database, place writes it to db. problem describes a mistake in the URL.
func (l *location) place(authority, path string, db *string) (problem string) {
	switch {
	case authority == "":
		return "names no host"
	case l.form == "":
		l.hosts = hosts(authority, "6379")
		if l.addr = l.hosts[0]; len(l.hosts) > 1 {
			return "names several hosts; write redis+sentinel:// or redis+cluster://"
		}
		if path != "" {
			*db = path
		}
	case l.form == "sentinel":
		if l.master = path; path == "" || strings.ContainsAny(path, "/@") {
			return "names no master; write redis+sentinel://host:port/master" + escape
		}
		l.hosts = hosts(authority, "26379")
	case l.form == "cluster":
		if path != "" || *db != "" {
			return "a cluster has one database only" + escape
		}
		l.hosts = hosts(authority, "6379")
	default:
		return badScheme
	}
	for _, host := range l.hosts {
		if !isAddress(host) {
			return "a host is written host, host:port or [IPv6]:port" + escape
		}
	}
	return ""
}

// isAddress reports whether text has the form host:port. Any other text may belong to a password, and must
// not appear in the errors of a connection.
func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" || strings.ContainsAny(host, "@# ") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

func hosts(list, port string) []string {
	all := strings.Split(list, ",")
	for i := range all {
		all[i] = withPort(strings.TrimSpace(all[i]), port)
	}
	return all
}

func withPort(host, port string) string {
	if found := strings.Contains(host, ":"); !found || strings.HasSuffix(host, "]") {
		return host + ":" + port
	}
	return host
}
