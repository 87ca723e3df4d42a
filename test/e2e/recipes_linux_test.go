package e2e

import "testing"

// PROXY protocol headers let a test send an IPv6 address.
var envoyAcceptsProxyProtocol = change{
	"    address: { socket_address: { address: 127.0.0.1, port_value: 10000 } }\n",
	"    address: { socket_address: { address: 127.0.0.1, port_value: 10000 } }\n" +
		"    listener_filters: [ { name: envoy.filters.listener.proxy_protocol, typed_config: { " +
		"\"@type\": type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol, allow_requests_without_proxy_protocol: true } } ]\n",
}

// attack sends the attacks of all tables except malformed. network is a part of the clients' addresses that no
// other test uses.
func (g gateway) attack(t *testing.T, network int) {
	t.Helper()
	t.Run("a key", g.keysCannotBeRespelled)
	t.Run("a path", func(t *testing.T) { g.pathsCannotBeRespelled(t, network) })
	t.Run("headers of the connection", func(t *testing.T) { g.headersDoNotLiftLimits(t, network) })
	t.Run("addresses of one network", g.ipv6NetworksAreOneClient)
}

func (s *stack) asGateway() gateway {
	return gateway{stack: s, port: "10000", http2: "10000", proxied: "10000"}
}

func TestEnvoyUnderAttack(t *testing.T) {
	t.Parallel()
	g := newStack(t, "", envoyAcceptsProxyProtocol).asGateway()
	g.attack(t, 1)
	t.Run("a query", func(t *testing.T) { g.queriesCannotBeRespelled(t, 1) })
}

func TestEnvoyExtAuthzUnderAttack(t *testing.T) {
	t.Parallel()
	newExtAuthzStack(t, envoyAcceptsProxyProtocol).asGateway().attack(t, 2)
}

func TestNginxUnderAttack(t *testing.T) {
	t.Parallel()
	s := newNginxStack(t, "", append(longTimeouts, change{"listen 127.0.0.1:8000;", "listen 127.0.0.1:8000; listen 127.0.0.1:8001 proxy_protocol; listen 127.0.0.1:8002 http2; " +
		"set_real_ip_from 127.0.0.0/8; real_ip_header proxy_protocol;"})...)
	g := gateway{stack: s.stack, port: "8000", http2: "8002", proxied: "8001"}
	g.attack(t, 3)
	t.Run("a query", func(t *testing.T) { g.queriesCannotBeRespelled(t, 3) })
}

var haproxyFailsOpen = change{"http-request return status 503", "# http-request return status 503"}

func TestHAProxyUnderAttack(t *testing.T) {
	t.Parallel()
	s := newHAProxy(t, append(longHAProxyTimeouts, change{"  bind 127.0.0.1:8000\n", "  bind 127.0.0.1:8000\n  bind 127.0.0.1:8001 accept-proxy\n"})...)
	gateway{stack: s.stack, port: "8000", http2: "8000", proxied: "8001"}.attack(t, 4)
}

func TestCaddyUnderAttack(t *testing.T) {
	t.Parallel()
	s := newCaddy(t, append(longCaddyTimeouts, change{"max_header_size 64KB", "protocols h1 h2 h2c\n\t\tlistener_wrappers {\n\t\t\tproxy_protocol {\n\t\t\t\tallow 127.0.0.0/8\n\t\t\t}\n\t\t}\n\t\tmax_header_size 64KB"})...)
	gateway{stack: s.stack, port: "8000", http2: "8000", proxied: "8000"}.attack(t, 5)
}

func TestTraefikUnderAttack(t *testing.T) {
	t.Parallel()
	s := newTraefik(t, change{"    address: 127.0.0.1:8000\n", "    address: 127.0.0.1:8000\n    proxyProtocol: { trustedIPs: [127.0.0.0/8] }\n"})
	gateway{stack: s.stack, port: "8000", http2: "8000", proxied: "8000"}.attack(t, 6)
}

// The application behind the proxies accepts malformed requests too, so only a proxy or rlsidecar can refuse one.
func TestProxiesFailingOpenUnderAttack(t *testing.T) {
	t.Parallel()
	lenient := func(before, after string) change {
		return change{before + "127.0.0.1:9000" + after, before + "127.0.0.1:9002" + after}
	}
	lenientEnvoy := change{"address: 127.0.0.1, port_value: 9000", "address: 127.0.0.1, port_value: 9002"}
	for name, start := range map[string]func(t *testing.T) gateway{
		"envoy": func(t *testing.T) gateway { return newStack(t, "", failOpen, lenientEnvoy).asGateway() },
		"ext_authz": func(t *testing.T) gateway {
			return newExtAuthzStack(t, lenientEnvoy, change{"failure_mode_allow: false", "failure_mode_allow: true"}).asGateway()
		},
		"haproxy": func(t *testing.T) gateway {
			return gateway{stack: newHAProxy(t, append(longHAProxyTimeouts, haproxyFailsOpen, lenient("server app ", ""))...).stack, port: "8000", http2: "8000"}
		},
		"nginx": func(t *testing.T) gateway {
			s := newNginxStack(t, "", append(longTimeouts, nginxFailsOpen, lenient("server ", ";"), change{"listen 127.0.0.1:8000;", "listen 127.0.0.1:8000; listen 127.0.0.1:8002 http2;"})...)
			return gateway{stack: s.stack, port: "8000", http2: "8002"}
		},
		"nginx, with a key that is not cleaned": func(t *testing.T) gateway {
			s := newNginxStack(t, "", append(longTimeouts, nginxFailsOpen, lenient("server ", ";"), change{`"invalid";`, `$http_x_api_key;`},
				change{"listen 127.0.0.1:8000;", "listen 127.0.0.1:8000; listen 127.0.0.1:8002 http2;"})...)
			return gateway{stack: s.stack, port: "8000", http2: "8002"}
		},
		"caddy": func(t *testing.T) gateway {
			s := newCaddy(t, append(longCaddyTimeouts, append(caddyFailsOpen, lenient("reverse_proxy ", ""), change{"max_header_size 64KB", "protocols h1 h2 h2c\n\t\tmax_header_size 64KB"})...)...)
			return gateway{stack: s.stack, port: "8000", http2: "8000"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t)
			serveAnything(t, g.addr+":9002")
			g.malformedRequestsAreLimited(t)
		})
	}
}
