package config

import (
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"

	"github.com/rlsidecar/rlsidecar/internal/canonical"
	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/internal/spelling"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

const (
	// maxRoutes bounds the number of routes, because each request is compared with them.
	maxRoutes            = 1000
	maxRouteDescriptors  = 64
	maxDescriptorEntries = 32
	// ipv6Client is the default length of the network that counts as one client. Providers assign at least a
	// /64 to each customer, and a client can change the remaining bits at will.
	ipv6Client = 64
)

// authDefaultNames maps the values of the key "default" to limiter.Auth.Allow.
var authDefaultNames = map[string]bool{"deny": false, "allow": true}

func (d *authDefault) read(p *parser, key string, n *yaml.Node) {
	allow, ok := pick(p, key, n, authDefaultNames)
	d.set(p, n, allow, ok)
}

func (a *authSection) read(p *parser, key string, n *yaml.Node) {
	one, before := &auth{at: p.at(n)}, p.mistakes
	p.object(n, key, one)
	a.set(p, n, one, p.mistakes == before)
}

func (l *textList) read(p *parser, key string, n *yaml.Node) {
	var list []text
	before := p.mistakes
	p.list(key, n, func(item *yaml.Node) {
		var t text
		t.read(p, "an item of "+key, item)
		if t.ok {
			list = append(list, t)
		}
	})
	l.set(p, n, list, p.mistakes == before)
}

func (l *routeList) read(p *parser, key string, n *yaml.Node) {
	var list []*route
	p.each(key, n, func(item *yaml.Node) {
		one := &route{at: p.at(item)}
		one.incomplete = !p.object(item, "a route", one)
		list = append(list, one)
	})
	l.set(p, n, list, true)
}

type matchItem struct {
	key string // path, method, host or header:NAME
	text
}

const headerKey = "header:"

func (m *matchMap) read(p *parser, key string, n *yaml.Node) {
	var list []matchItem
	before := p.mistakes
	for _, e := range p.entries(n, key, false) {
		item := matchItem{key: e.key.Value}
		name, isHeader := strings.CutPrefix(item.key, headerKey)
		switch {
		case isHeader && !httpguts.ValidHeaderFieldName(name):
			p.mistake(p.at(e.key), "%q is not the name of a header; write header:X-Name", short(name))
		case isHeader || item.key == "path" || item.key == "method" || item.key == "host":
			item.read(p, item.key, e.value)
			list = append(list, item)
		default:
			p.mistake(p.at(e.key), "config error, unknown key '%s'%s; match has path, method, host and header:X-Name",
				short(item.key), spelling.DidYouMean(item.key, []string{"path", "method", "host"}))
		}
	}
	m.set(p, n, list, p.mistakes == before)
}

func (l *authDescList) read(p *parser, key string, n *yaml.Node) {
	var list [][]*authEntry
	p.list(key, n, func(item *yaml.Node) {
		if follow(item).Kind != yaml.SequenceNode {
			p.mistake(p.at(item), "a route's descriptor must be a list of entries, but is %s; write [{key: …, from: …}]", describe(item))
			return
		}
		var entries []*authEntry
		p.list("a descriptor", item, func(item *yaml.Node) {
			e := &authEntry{at: p.at(item)}
			e.incomplete = !p.object(item, "an entry", e)
			entries = append(entries, e)
		})
		if len(follow(item).Content) == 0 {
			p.mistake(p.at(item), "a route's descriptor is empty; write [{key: …, from: …}]")
		}
		list = append(list, entries)
	})
	l.set(p, n, list, true)
}

// auth compiles the sections auth of docs. The routes are in the order of the files. Settings that
// several sections have must be equal, and only one section may have trusted_proxies.
func (c *compiler) auth(docs []*document) {
	var trusted textList
	var bits whole
	before := c.mistakes
	var allow authDefault
	for _, doc := range docs {
		a := doc.Auth.value
		if a == nil {
			continue
		}
		if c.snapshot.Auth == nil {
			c.snapshot.Auth = &limiter.Auth{}
		}
		agreeAuth(c, "ipv6_prefix", &bits.given, &a.IPv6Prefix.given)
		agreeAuth(c, "default", &allow.given, &a.Default.given)
		switch {
		case !a.Trusted.stated():
		case trusted.stated():
			c.mistake(a.Trusted.at, "trusted_proxies is already stated at %s; state it once", trusted.at)
		default:
			trusted = a.Trusted
		}
	}
	all := c.snapshot.Auth
	if all == nil {
		return
	}
	all.IPv6Prefix, all.Allow = int(bits.or(ipv6Client)), allow.value
	if bits.ok && (bits.value < 1 || bits.value > 128) {
		c.mistake(bits.at, "ipv6_prefix must be from 1 to 128, but is %d", bits.value)
	}
	for _, t := range trusted.value {
		c.trust(all, t)
	}
	var routes []*route // the parsed route of each item of all.Routes
	for _, doc := range docs {
		if doc.Auth.value == nil {
			continue
		}
		for _, r := range doc.Auth.value.Routes.value {
			if len(all.Routes) == maxRoutes {
				c.mistake(r.at, "auth has more than %d routes; let a path end in *", maxRoutes)
				return
			}
			c.route(all, doc, r)
			routes = append(routes, r)
		}
	}
	if c.mistakes == before {
		c.warnSpelling(all, routes)
		c.warnReturns(all, routes)
	}
	if from := firstClientIPSource(docs); from.at.line > 0 && !trusted.stated() {
		c.warn(from.at, "%s is the address of the proxy itself, because no proxy is trusted; add trusted_proxies: [127.0.0.1/32, \"::1/128\", unix]", from.value)
	}
}

// agreeAuth does what agree does, for the values of key in the sections auth.
func agreeAuth[T comparable](c *compiler, key string, common, section *given[T]) {
	switch {
	case !section.ok:
	case !common.ok:
		*common = *section
	case common.value != section.value:
		c.mistake(section.at, "%s of auth differs from that at %s; state it once", key, common.at)
	}
}

// firstClientIPSource returns the first source that needs trusted_proxies, or the zero text.
func firstClientIPSource(docs []*document) text {
	for _, doc := range docs {
		if doc.Auth.value == nil {
			continue
		}
		for _, r := range doc.Auth.value.Routes.value {
			for _, entries := range r.Descriptors.value {
				for _, e := range entries {
					if e.From.value == "client_ip" || e.From.value == "client_network" {
						return e.From
					}
				}
			}
		}
	}
	return text{}
}

func (c *compiler) trust(a *limiter.Auth, t text) {
	if t.value == "unix" {
		a.TrustUnix = true
		return
	}
	prefix, err := netip.ParsePrefix(t.value)
	if err != nil {
		addr, err := netip.ParseAddr(t.value)
		if err != nil || addr.Zone() != "" {
			c.mistake(t.at, "an item of trusted_proxies must be an address, a network such as 10.0.0.0/8, or unix, but is %q", short(t.value))
			return
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if prefix.Addr().Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	if prefix != prefix.Masked() {
		c.mistake(t.at, "%s is an address with a length, not a network; write %s", t.value, prefix.Masked())
		return
	}
	if prefix.Bits() == 0 {
		c.warn(t.at, "%s trusts every client: each can choose its own address and so avoid its limits; list only the addresses of your proxies", t.value)
	}
	a.Trusted = append(a.Trusted, prefix)
}

func (c *compiler) route(a *limiter.Auth, doc *document, r *route) {
	out := limiter.Route{Place: r.at.String(), Domain: r.Domain.or(doc.Domain.value), Hits: r.Hits.or(1), DryRun: r.Check.value}
	before := c.mistakes
	c.pathIgnores(&out, r)
	for _, m := range r.Match.value {
		c.match(&out, m)
	}
	d := c.snapshot.Domains[out.Domain]
	switch {
	case !r.Domain.ok || d != nil || c.incomplete:
	case out.Domain == "":
		c.mistake(r.Domain.at, "the domain of a route must not be empty")
	default:
		c.mistake(r.Domain.at, "there is no domain %q, so the route would limit nothing%s", short(out.Domain), spelling.DidYouMean(out.Domain, sortedKeys(c.snapshot.Domains)))
	}
	if r.Hits.ok && (r.Hits.value < 1 || r.Hits.value > math.MaxUint32) {
		c.mistake(r.Hits.at, "hits must be from 1 to %d, but is %d", uint32(math.MaxUint32), r.Hits.value)
	}
	switch n := len(r.Descriptors.value); {
	case n == 0 && !r.Descriptors.stated() && !r.incomplete || n == 0 && r.Descriptors.ok && c.mistakes == before:
		c.mistake(r.at, "a route needs descriptors; write descriptors: [[{key: remote_address, from: client_ip}]]")
	case n > maxRouteDescriptors:
		c.mistake(r.Descriptors.at, "a route has %d descriptors; the maximum is %d", n, maxRouteDescriptors)
	}
	for _, entries := range r.Descriptors.value {
		if len(entries) > maxDescriptorEntries {
			c.mistake(entries[0].at, "a descriptor has %d entries; the maximum is %d", len(entries), maxDescriptorEntries)
			continue
		}
		list := make([]limiter.AuthEntry, len(entries))
		for i, e := range entries {
			list[i] = c.authEntry(e)
		}
		out.Descriptors = append(out.Descriptors, list)
		if d != nil && len(list) > 0 && c.mistakes == before && !c.canMatch(out.Domain, list) {
			c.warn(entries[0].at, "domain %q has no limit for this descriptor, so it limits nothing; add one, or remove the descriptor", out.Domain)
		}
	}
	if d != nil && c.mistakes == before {
		c.warnMissingEntries(d, &out, r)
	}
	a.Routes = append(a.Routes, out)
}

// warnMissingEntries warns of each requirement of d for which no descriptor of the route has an entry. r is the route
// in the file, and out is its compiled form.
func (c *compiler) warnMissingEntries(d *limiter.Domain, out *limiter.Route, r *route) {
	for _, required := range d.Require {
		has := slices.ContainsFunc(out.Descriptors, func(list []limiter.AuthEntry) bool {
			return slices.ContainsFunc(list, func(e limiter.AuthEntry) bool { return slices.Contains(required, e.Key) })
		})
		if !has {
			c.warn(r.at, "every request of this route is denied: domain %q requires an entry %s, which none of its descriptors has", out.Domain, required)
		}
	}
}

var pathIgnoreNames = map[string]canonical.Ignore{
	"case": canonical.IgnoreCase, "trailing_slash": canonical.IgnoreTrailingSlash,
	"parameters": canonical.IgnoreParameters, "backslash": canonical.IgnoreBackslash,
}

func (c *compiler) pathIgnores(out *limiter.Route, r *route) {
	for _, word := range r.PathIgnores.value {
		ignore, known := pathIgnoreNames[word.value]
		if !known {
			names := sortedKeys(pathIgnoreNames)
			c.mistake(word.at, "an item of path_ignores must be one of %s, but is %q%s", strings.Join(names, ", "), short(word.value), spelling.DidYouMean(word.value, names))
		}
		out.Ignore |= ignore
	}
}

// foldedCondition folds path, the path of a condition, as the paths of requests are folded. A slash at the end of a
// prefix stays, because in the path of a request that slash is not at the end.
func foldedCondition(path string, prefix bool, ignore canonical.Ignore) string {
	if prefix {
		ignore &^= canonical.IgnoreTrailingSlash
	}
	return canonical.Fold(path, ignore)
}

// warnSpelling warns of the first route that a client can avoid by another spelling of its path. It skips
// routes with path_ignores. One warning is enough to explain the problem.
func (c *compiler) warnSpelling(all *limiter.Auth, routes []*route) {
	for i := range all.Routes {
		r := &all.Routes[i]
		if r.Path == "" || routes[i].PathIgnores.stated() {
			continue
		}
		var escaping []string
		for _, path := range respelled(r.Path, r.PathPrefix) {
			if escapesRoute(all, i, path) {
				escaping = append(escaping, path)
			}
		}
		if len(escaping) > 0 {
			c.warn(routes[i].at, "%s %s not match path %s, and the limits of another route apply, or none; write path_ignores: [case, trailing_slash, parameters, backslash] "+
				"with what your application ignores in paths, or path_ignores: [] if it ignores nothing",
				strings.Join(escaping, ", "), map[bool]string{true: "does", false: "do"}[len(escaping) == 1], r.Path+strings.Repeat("*", btoi(r.PathPrefix)))
			return
		}
	}
}

// warnReturns warns of the first route to a domain with concurrency limits, unless access logs return slots.
func (c *compiler) warnReturns(all *limiter.Auth, routes []*route) {
	for i := range all.Routes {
		d := c.snapshot.Domains[all.Routes[i].Domain]
		if d == nil || c.o.LogListener {
			continue
		}
		for _, p := range d.Settling {
			if p.Limit.Kind == algorithms.Concurrency {
				c.warn(routes[i].at, "a concurrency limit of domain %q denies every request of this route, because nothing returns slots; "+
					"let the proxy send its access log to --log-listen", d.Name)
				return
			}
		}
	}
}

// respelled returns spellings of path that some applications treat as equal to path.
func respelled(path string, prefix bool) (all []string) {
	if path == "/" {
		return nil
	}
	folder := strings.TrimSuffix(path, "/")
	if upper := strings.ToUpper(path); upper != path {
		all = append(all, upper)
	}
	if !prefix && path == folder {
		all = append(all, path+"/")
	}
	return append(all, folder+";x"+path[len(folder):], `\`+path[1:])
}

// escapesRoute reports whether path does not match route i, and matches a later route or is allowed without a
// route.
func escapesRoute(all *limiter.Auth, i int, path string) bool {
	matches := func(r *limiter.Route) bool { return r.MatchesPath(canonical.Fold(path, r.Ignore)) }
	if matches(&all.Routes[i]) {
		return false
	}
	for j := i + 1; j < len(all.Routes); j++ {
		if matches(&all.Routes[j]) {
			return true
		}
	}
	return all.Allow
}

func (c *compiler) match(r *limiter.Route, m matchItem) {
	name, isHeader := strings.CutPrefix(m.key, headerKey)
	if !m.ok {
		return
	}
	value, prefix := strings.CutSuffix(m.value, "*")
	switch {
	case m.value == "":
		c.mistake(m.at, "%s is empty; remove it, or write a value", m.key)
	case strings.Contains(value, "*"):
		c.mistake(m.at, "%s may have a * only at its end, but is %q", m.key, short(m.value))
	case isHeader:
		r.Headers = append(r.Headers, limiter.HeaderMatch{Name: http.CanonicalHeaderKey(name), Value: value, Prefix: prefix})
	case m.key == "path":
		switch one := canonical.Path(value); {
		case !strings.HasPrefix(value, "/"):
			c.mistake(m.at, "path must start with /, but is %q", short(m.value))
		case strings.ContainsAny(value, "?#"):
			c.mistake(m.at, "path is compared without the query; remove the part from ? or #")
		case one != value:
			c.mistake(m.at, "no request has the path %q: paths are compared percent-decoded, with //, . and .. resolved; write %q", short(m.value), short(one+strings.Repeat("*", btoi(prefix))))
		case foldedCondition(value, prefix, r.Ignore) != value:
			one := foldedCondition(value, prefix, r.Ignore)
			c.mistake(m.at, "path %q never matches, because path_ignores changes the paths that it is compared with; write %q", short(m.value), short(one+strings.Repeat("*", btoi(prefix))))
		}
		r.Path, r.PathPrefix = value, prefix
	case prefix:
		c.mistake(m.at, "%s may not end in *, is %q", m.key, short(m.value))
	case m.key == "method":
		if !httpguts.ValidHeaderFieldName(value) || strings.ToUpper(value) != value {
			c.mistake(m.at, "method must be in capital letters, such as POST, but is %q", short(value))
		}
		r.Method = value
	default:
		if strings.ContainsAny(value, "/: ") || strings.HasSuffix(value, ".") {
			c.mistake(m.at, "host must be a name without a port, but is %q", short(value))
		}
		r.Host = canonical.Lower(value)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

var unnamedSources = map[string]limiter.AuthSource{
	"client_ip": limiter.FromClientIP, "client_network": limiter.FromClientNetwork, "method": limiter.FromMethod, "path": limiter.FromPath, "host": limiter.FromHost,
}

var namedSources = map[string]limiter.AuthSource{
	"header": limiter.FromHeader, "query": limiter.FromQuery, "cookie": limiter.FromCookie, "jwt": limiter.FromJWT,
}

// forgeable has the headers with which proxies describe a request. A client can send them too, so each is mapped to
// the source that a configuration must use instead.
var forgeable = map[string]string{
	"X-Forwarded-For": "client_ip", "X-Real-Ip": "client_ip", "Forwarded": "client_ip", "X-Original-Uri": "path",
	"X-Forwarded-Uri": "path", "X-Original-Method": "method", "X-Forwarded-Method": "method", "X-Forwarded-Host": "host",
}

func (c *compiler) authEntry(e *authEntry) (out limiter.AuthEntry) {
	out = limiter.AuthEntry{Key: e.Key.value, Value: e.Value.value}
	switch {
	case e.Key.value == "" && (e.Key.ok || !e.Key.stated() && !e.incomplete):
		c.mistake(e.at, "an entry has an empty key; write {key: NAME, from: SOURCE}")
	case e.From.stated() && e.Value.stated():
		c.mistake(e.Value.at, "an entry has from and value; remove one")
	case e.Value.stated() || e.incomplete || e.From.stated() && !e.From.ok:
	case !e.From.stated():
		c.mistake(e.at, "an entry needs from, or value: {key: %s, from: client_ip}", short(e.Key.value))
	default:
		c.source(e.From, &out)
	}
	return out
}

func (c *compiler) source(from text, out *limiter.AuthEntry) {
	kind, name, hasName := strings.Cut(from.value, ":")
	var known bool
	if hasName {
		out.From, known = namedSources[kind]
	} else {
		out.From, known = unnamedSources[from.value]
	}
	out.Name = name
	switch {
	case !known:
		guess := spelling.DidYouMean(kind, append(sortedKeys(unnamedSources), sortedKeys(namedSources)...))
		c.mistake(from.at, "from must be client_ip, client_network, method, path, host, header:NAME, query:NAME, cookie:NAME or jwt:CLAIM, but is %q%s", short(from.value), guess)
	case hasName && name == "":
		c.mistake(from.at, "from: %s needs a name; write \"%s:NAME\"", from.value, kind)
	case (out.From == limiter.FromHeader || out.From == limiter.FromCookie) && !httpguts.ValidHeaderFieldName(name):
		c.mistake(from.at, "%q is not the name of a %s", short(name), kind)
	case out.From == limiter.FromHeader:
		out.Name = http.CanonicalHeaderKey(name)
		if out.Name == "Host" { // net/http keeps the Host header in another field
			out.From = limiter.FromHost
		}
		if instead := forgeable[out.Name]; instead != "" {
			c.mistake(from.at, "any client can send a header %s; write from: %s, which trusts only trusted_proxies", out.Name, instead)
		}
	}
}

func (c *compiler) canMatch(domain string, entries []limiter.AuthEntry) bool {
	d := c.snapshot.Domains[domain]
	if d == nil {
		return false
	}
	if c.bad[domain] {
		return true // the limit may be in the part of the domain that has a mistake
	}
	possible := make([]descriptors.Possible, len(entries))
	for i, e := range entries {
		possible[i] = descriptors.Possible{Key: e.Key, Value: e.Value, Known: e.From == limiter.FromValue}
	}
	return d.Tree.CouldMatch(possible, limiter.HasLimits)
}
