package main

import (
	"fmt"
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
	start      func(b *bench) (buckets, error)
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
func (p path) measure(b *bench) ([]finding, error) {
	plainRedis, err := b.redis()
	if err != nil {
		return nil, err
	}
	kept, err := p.start(b)
	if err != nil {
		return nil, err
	}
	c := b.loadConfig(p.descriptor[0], p.keys)
	c.Descriptors = descriptors(p.descriptor)
	plain := c
	if p.plain != nil {
		plain.Descriptors = descriptors(p.plain)
	}
	empty, err := b.empty(c)
	if err != nil {
		return nil, err
	}
	all := []candidate{empty}
	variants := b.variants()
	for _, v := range variants {
		onPlain, err := b.filled(v, on(plainRedis), plain, false)
		if err != nil {
			return nil, err
		}
		ours, err := b.filled(v, kept, c, p.denied)
		if err != nil {
			return nil, err
		}
		all = append(all, onPlain, ours)
	}
	measured, err := b.inTurn(all...)
	if err != nil {
		return nil, err
	}
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
	return found, nil
}

func descriptors(keys []string) (all []string) {
	for _, key := range keys {
		all = append(all, key+"={}")
	}
	return all
}

func onOne(b *bench) (buckets, error) {
	s, err := b.redis()
	if err != nil {
		return buckets{}, err
	}
	return on(s), nil
}

func onTwo(b *bench) (buckets, error) {
	kept, err := onOne(b)
	if err != nil {
		return buckets{}, err
	}
	second, err := b.redis()
	if err != nil {
		return buckets{}, err
	}
	kept.flags = append(kept.flags, "--redis-per-second-url", "redis://"+second.address)
	kept.servers = append(kept.servers, second)
	return kept, nil
}

func onTLS(b *bench) (buckets, error) {
	if err := find("openssl"); err != nil {
		return buckets{}, err
	}
	cert, key := filepath.Join(b.dir, "cert.pem"), filepath.Join(b.dir, "key.pem") // the certificate is its own CA
	if out, err := exec.CommandContext(b, "openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1",
		"-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert).CombinedOutput(); err != nil {
		return buckets{}, fmt.Errorf("openssl: %w: %s", err, out)
	}
	address, port, err := freePort()
	if err != nil {
		return buckets{}, err
	}
	// The server also has a port without TLS, because usedBy reads the counters through it.
	s, err := b.redis("--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	if err != nil {
		return buckets{}, err
	}
	return buckets{[]string{"--redis-url", "rediss://" + address, "--redis-tls-ca", cert}, []*child{s}}, nil
}

func onCluster(b *bench) (buckets, error) {
	var servers []*child
	var addresses []string
	for range 3 {
		_, bus, err := freePort()
		if err != nil {
			return buckets{}, err
		}
		s, err := b.redis("--cluster-enabled", "yes", "--cluster-config-file", bus+".conf", "--cluster-port", bus,
			"--cluster-node-timeout", "600000") // long, so that no master counts as failed on a busy machine
		if err != nil {
			return buckets{}, err
		}
		servers, addresses = append(servers, s), append(addresses, s.address)
	}
	_, err := redisCLI(b, slices.Concat([]string{"--cluster-yes", "--cluster", "create"}, addresses)...)
	return buckets{[]string{"--redis-url", "redis+cluster://" + strings.Join(addresses, ",")}, servers}, err
}
