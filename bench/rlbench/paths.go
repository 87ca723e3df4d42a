package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// path is a way to use Redis whose decisions should cost little more than decisions on one plain Redis.
type path struct {
	name, what string
	keys       int
	descriptor []string // the keys of a request's descriptors, which determine its limits
	plain      []string // the keys for the sidecar on one plain Redis; nil means the same keys
	denied     bool
	target     float64 // the highest permitted cost, as a multiple of the cost on one plain Redis
	start      func(b *bench) buckets
}

var paths = []path{
	{name: "cluster", what: "a Cluster of three masters, 10k keys", keys: 10_000, descriptor: []string{"user_id"}, target: 1.15, start: onCluster},
	{name: "leased", what: "leased limits, 10k keys", keys: 10_000, descriptor: []string{"leased_id"}, plain: []string{"window_id"}, target: 1.15, start: onOne},
	{name: "leased-hot", what: "leased limit, one hot key", keys: 1, descriptor: []string{"leased_id"}, plain: []string{"window_id"}, target: 1.15, start: onOne},
	{name: "denied-keys", what: "remembered denials, 10k keys", keys: 10_000, descriptor: []string{"hot_id"}, plain: []string{"user_id"}, denied: true, target: 1.15, start: onOne},
	{name: "second", what: "a second Redis, limits by the second, 10k keys", keys: 10_000, descriptor: []string{"second_id"}, target: 1.15, start: onTwo},
	{name: "both", what: "a second Redis, a limit in each, 10k keys", keys: 10_000, descriptor: []string{"user_id", "second_id"}, target: 1.15, start: onTwo},
	{name: "tls", what: "TLS to Redis, 10k keys", keys: 10_000, descriptor: []string{"user_id"}, target: 1.6, start: onTLS},
}

func pathComparisons() (all []comparison) {
	for _, p := range paths {
		all = append(all, comparison{p.name, p.measure})
	}
	return all
}

// measure measures in turn an empty server, a sidecar on one plain Redis, and a sidecar on this path.
func (p path) measure(b *bench) []finding {
	plainRedis := b.redis()
	kept := p.start(b)
	c := b.loadConfig(p.descriptor[0], p.keys)
	c.Descriptors = descriptors(p.descriptor)
	plain := c
	if p.plain != nil {
		plain.Descriptors = descriptors(p.plain)
	}
	empty := b.empty(c)
	all := []candidate{empty}
	variants := b.variants()
	for _, v := range variants {
		onPlain := b.filled(v, on(plainRedis), plain, false)
		ours := b.filled(v, kept, c, p.denied)
		all = append(all, onPlain, ours)
	}
	measured := b.inTurn(all...)
	var found []finding
	for i, v := range variants {
		onPlain, ours := measured[1+2*i], measured[2+2*i]
		found = append(found,
			finding{
				name: p.what + ": CPU us a request, compared with an empty server", variant: v.label,
				ceiling: measured[0].of(sampleCPU), ours: ours.of(sampleCPU), format: "%.2f",
			},
			finding{
				name: p.what + ": CPU us a request, compared with one plain Redis", variant: v.label,
				ceiling: onPlain.of(sampleCPU), ours: ours.of(sampleCPU), format: "%.2f", target: p.target,
			})
	}
	return found
}

func descriptors(keys []string) (all []string) {
	for _, key := range keys {
		all = append(all, key+"={}")
	}
	return all
}

func onOne(b *bench) buckets {
	return on(b.redis())
}

func onTwo(b *bench) buckets {
	kept := onOne(b)
	second := b.redis()
	kept.flags = append(kept.flags, "--redis-per-second-url", "redis://"+second.address)
	kept.servers = append(kept.servers, second)
	return kept
}

func onTLS(b *bench) buckets {
	check(find("openssl"))
	cert, key := filepath.Join(b.dir, "cert.pem"), filepath.Join(b.dir, "key.pem") // the certificate is its own CA
	output(exec.CommandContext(b, "openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1",
		"-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert))
	address, port := freePort()
	// The server also has a port without TLS, because usedBy reads the counters through it.
	s := b.redis("--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	return buckets{[]string{"--redis-url", "rediss://" + address, "--redis-tls-ca", cert}, []*child{s}}
}

func onCluster(b *bench) buckets {
	var servers []*child
	var addresses []string
	for range 3 {
		_, bus := freePort()
		s := b.redis("--cluster-enabled", "yes", "--cluster-config-file", bus+".conf", "--cluster-port", bus,
			"--cluster-node-timeout", "600000") // long, so that no master counts as failed on a busy machine
		servers, addresses = append(servers, s), append(addresses, s.address)
	}
	output(exec.CommandContext(b, "redis-cli", slices.Concat([]string{"--cluster-yes", "--cluster", "create"}, addresses)...))
	return buckets{[]string{"--redis-url", "redis+cluster://" + strings.Join(addresses, ",")}, servers}
}
